"""Fair comparison: a matrix of runs under one budget of frames, and its answer."""
