"""Models as protobuf files, readable without onnx, with memory-mapped weights in a separate file.

`nnadapter/ir/model.proto` defines the format; docs/reference/formats.md describes every field.
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
