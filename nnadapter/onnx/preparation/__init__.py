"""A model prepared: its shapes propagated and its constants folded, before anything is placed."""
