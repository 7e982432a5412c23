"""Windows of a model that are larger than what they move over at some shapes, of which inference says nothing."""

from __future__ import annotations

from nnadapter.onnx.node import OnnxNode
from nnadapter.onnx.preparation.prepare import Specialized
from nnadapter.onnx.windows import fits_windows, moves_windows


def wide_windows(specialized: Specialized) -> str:
    """Return the name of a node whose window is larger than what it moves over; empty where all of them fit."""
    return next((node.name for node in specialized.nodes if moves_windows(node) and not _fits(specialized, node)), "")


def _fits(specialized: Specialized, node: OnnxNode) -> bool:
    """Whether a window fits, or nobody knows."""
    shapes = [specialized.graph.value(name).static_shape for name in node.inputs[:2]]
    static_shapes = [shape for shape in shapes if shape is not None]
    return len(static_shapes) < len(shapes) or fits_windows(node, static_shapes)
