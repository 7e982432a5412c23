"""An nnadapter driver for a made-up accelerator."""
