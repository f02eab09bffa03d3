"""MPI ranks: progress engine, collectives, counter, launcher."""
