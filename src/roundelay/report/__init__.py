"""What records are turned into: traces, tables, plots, a page."""
