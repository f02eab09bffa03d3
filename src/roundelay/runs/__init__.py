"""A run's folder and record: created, written, read, followed, thinned out."""
