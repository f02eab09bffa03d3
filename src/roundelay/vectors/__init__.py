"""Arithmetic on flat vectors."""
