"""nnadapter driver for a fictional accelerator."""
