"""Lowerings of operations to instructions, one family per file."""
