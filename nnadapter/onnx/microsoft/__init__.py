"""ONNX Runtime's contrib ops, including its ops in ONNX's domain, as functions of ONNX ops."""

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
