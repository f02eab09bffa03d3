"""Theory: how fast a topology reaches a consensus, and the terms of a bound for AD-PSGD."""
