"""Drivers as tables: for each operation a function that gives what computes it; the rest is derived."""
