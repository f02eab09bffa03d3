"""Experiments: their settings, training them, and continuing them."""
