"""A user's own model on a simulated cluster: one run, a comparison, a plan, and the same run again."""
