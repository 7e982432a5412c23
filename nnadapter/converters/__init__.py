"""ONNX to the adapter IR: a registry of converters, one file per family of ops, and the conversion of a whole graph."""

from __future__ import annotations

from nnadapter.converters import (  # noqa: F401  importing a family registers its converters
    accumulation,
    arithmetic,
    attention,
    bits,
    convolution,
    cropping,
    elementwise,
    functions,
    generation,
    indexing,
    linear_algebra,
    losses,
    matrix,
    movement,
    normalization,
    norms,
    pooling,
    quantize_linear,
    quantized_products,
    recurrent,
    reduction,
    resizing,
    sampling,
    scattering,
    slicing,
    softmax,
    spectral,
    spectral_constants,
    states,
    unpooling,
)
from nnadapter.converters.convert import Conversion, convert_graph
from nnadapter.converters.registry import converted
from nnadapter.onnx.node import OnnxNode, read_node
from nnadapter.onnx.schemas import since_version

__all__ = ["Conversion", "OnnxNode", "convert_graph", "converted", "read_node", "since_version"]
