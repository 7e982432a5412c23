"""Lowerings: how each operation of the adapter IR becomes instructions, one family per file."""
