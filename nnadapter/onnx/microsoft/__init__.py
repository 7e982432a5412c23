"""ONNX Runtime's contrib ops, including its ops in ONNX's domain, as functions of ONNX ops."""

from __future__ import annotations

# these import the other modules of rules
from nnadapter.onnx.microsoft import block_quantization, products, quantization, stateful_attention

__all__ = ["block_quantization", "products", "quantization", "stateful_attention"]
