"""Working memory: where buffers lie in one block by when they are needed, and blocks that are lent."""
