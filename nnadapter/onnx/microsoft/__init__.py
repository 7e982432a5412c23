"""What ONNX Runtime's own ops compute, in ONNX's: one file per family; importing them registers them.

Those in ONNX's own domain that ONNX does not have, or not at that opset, belong to them.
"""

from __future__ import annotations

from nnadapter.onnx.microsoft import (
    attention,
    block_quantization,
    elementwise,
    normalization,
    products,
    quantization,
    stateful_attention,
)

__all__ = [
    "attention",
    "block_quantization",
    "elementwise",
    "normalization",
    "products",
    "quantization",
    "stateful_attention",
]
