"""Files of ours: where they lie, how they are written, how they are read."""
