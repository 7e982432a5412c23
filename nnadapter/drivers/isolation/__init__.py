"""A device in a process of its own: the two processes, and what they say to each other (docs/isolation.md)."""
