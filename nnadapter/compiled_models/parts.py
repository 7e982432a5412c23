"""Kinds of parts, and what readers and writers of them share."""

MODEL, REPORT, PROGRAM, CONSTANT = "model", "report", "program", "constant"
IR, ONNX = "segment.ir", "segment.onnx"
LARGEST_RANK = 64
"""Dimensions of an array at most; numpy has no more."""
MOST_SIZES = 1024
"""Elements of an array of sizes."""
