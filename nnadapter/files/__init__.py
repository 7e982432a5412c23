"""Files: atomic writing, strict reading, and detection of model sources."""
