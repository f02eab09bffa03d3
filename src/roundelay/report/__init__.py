"""Reports: a page, tables and figures from records."""
