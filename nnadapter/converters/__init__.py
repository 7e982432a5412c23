"""ONNX to the adapter IR: a registry of converters, one file per family of ops, and the conversion of a whole graph."""

from __future__ import annotations

from nnadapter.converters import (  # noqa: F401  importing a family registers its converters
    arithmetic,
    convolution,
    elementwise,
    indexing,
    matrix,
    movement,
    normalisation,
    pooling,
    reduction,
    resizing,
    slicing,
    softmax,
)
from nnadapter.converters.convert import Conversion, convert_graph
from nnadapter.converters.node import OnnxNode
from nnadapter.converters.registry import converted, read_node, since_version

__all__ = ["Conversion", "OnnxNode", "convert_graph", "converted", "read_node", "since_version"]
