"""Kinds of parts, and what readers and writers of them share."""

MODEL, REPORT, PROGRAM, CONSTANT = "model", "report", "program", "constant"
IR, ONNX = "segment.ir", "segment.onnx"
MOST_SIZES = 1024
"""Elements of an array of sizes."""
