"""The stages of ``roundelay prepare``, and the data they write."""
