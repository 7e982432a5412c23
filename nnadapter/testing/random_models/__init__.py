"""Random models of the adapter IR, operation by operation, with values that keep them tame."""
