"""The adapter IR."""
