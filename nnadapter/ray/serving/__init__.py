"""A model behind HTTP, by the Open Inference Protocol v2: what Ray Serve calls with each request."""
