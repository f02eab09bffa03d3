"""What a cluster that need not exist would do: calibrate its description, simulate every strategy on it, rank them."""
