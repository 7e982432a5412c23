"""Paddle's inference models as ONNX: which files they are, the process that converts them, and where that is kept."""
