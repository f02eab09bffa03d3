"""Where learners run: on real processes, under MPI, or on a simulated cluster.  Knows nothing of speech."""
