"""Learning-rate schedules and preconditioners."""
