"""Fair comparison: a matrix of runs under one budget of frames, and what they say."""
