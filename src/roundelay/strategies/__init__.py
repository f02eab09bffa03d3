"""The literature, one file a paper."""
