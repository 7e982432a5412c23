"""The adapter IR's protobuf form: models as files that are read without onnx, weights beside them, memory-mapped.

`nnadapter/ir/model.proto` says what a file holds; docs/model-format.md describes it field by field.
"""

from __future__ import annotations

from nnadapter.ir.protobuf.serialization import VERSION, from_bytes, load, save, to_bytes
from nnadapter.process.lazily import lazily

__all__ = ["VERSION", "from_bytes", "load", "save", "to_bytes"]

__getattr__ = lazily(
    __name__,
    {
        ".descriptor": "DESCRIPTOR",
        ".serialization": "new parse",
    },
)
