"""The adapter IR's protobuf form: models as files that are read without onnx, weights beside them, memory-mapped.

`nnadapter/ir/model.proto` says what a file holds; docs/model-format.md describes it field by field.
"""

from nnadapter.ir.protobuf.serialization import VERSION, from_bytes, load, save, to_bytes

__all__ = ["VERSION", "from_bytes", "load", "save", "to_bytes"]
