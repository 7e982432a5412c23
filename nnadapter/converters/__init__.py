"""Conversion of ONNX to the adapter IR."""

from __future__ import annotations

from nnadapter.converters import (  # noqa: F401  importing a family registers its converters
    attention,
    convolution,
    counterparts,
    custom,
    elementwise,
    indexing,
    linear_algebra,
    movement,
    normalization,
    pooling,
    quantization,
    quantized_products,
    recurrent,
    reduction,
    resampling,
    spectral,
)
from nnadapter.converters.convert import Conversion, convert_graph
from nnadapter.converters.registry import converted
from nnadapter.onnx.model import OnnxNode, read_node
from nnadapter.onnx.schemas import since_version

__all__ = ["Conversion", "OnnxNode", "convert_graph", "converted", "read_node", "since_version"]
