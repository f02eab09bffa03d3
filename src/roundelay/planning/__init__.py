"""Predict the speed of strategies on a described cluster: calibrate the description, simulate, rank."""
