"""ONNX Runtime's contrib ops as functions of ONNX ops: one file per family, registered on import.

Includes ops that ONNX Runtime adds to ONNX's own domain.
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
