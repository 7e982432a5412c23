"""What ONNX Runtime's own ops compute, in ONNX's: one file per family; importing them registers them.

Those in ONNX's own domain that ONNX does not have, or not at that opset, belong to them.
"""

from __future__ import annotations

from nnadapter.onnx.microsoft import (
    activations,
    attention,
    convolution,
    few_bits,
    group_query,
    normalization,
    products,
    quantized,
    quantized_attention,
    quantized_products,
    quantized_recurrent,
    rotary,
    states,
)

__all__ = [
    "activations",
    "attention",
    "convolution",
    "few_bits",
    "group_query",
    "normalization",
    "products",
    "quantized",
    "quantized_attention",
    "quantized_products",
    "quantized_recurrent",
    "rotary",
    "states",
]
