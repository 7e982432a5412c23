"""A placement as a file: written, read, and bound to a model that may have been edited since."""
