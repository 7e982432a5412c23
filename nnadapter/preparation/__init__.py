"""A model read, its shapes propagated and its constants folded, before anything is placed."""
