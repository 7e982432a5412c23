"""Optimizers of ONNX Runtime's that change what a model computes, where preparation brings them in.

`ExpandElimination` takes an Expand for one that changes nothing if the shape to expand to is a constant of ones, zeros
and the sizes that are there; 1 expanded to 0 has no elements. Models compute such shapes, and ONNX Runtime sees them as
constants only once preparation has folded them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnadapter.onnx.nodes import with_nested

if TYPE_CHECKING:
    import onnx


def wrong_optimizers(model: onnx.ModelProto) -> tuple[str, ...]:
    """Return the names of the optimizers that a session of the model has to do without.

    Source: ONNX Runtime 1.31, core/optimizer/expand_elimination.cc.
    """
    targets = {node.input[1] for node in with_nested(model.graph.node) if node.op_type == "Expand"}
    if any(tensor.name in targets and _holds_zero(tensor) for tensor in model.graph.initializer):
        return ("ExpandElimination",)
    return ()


def _holds_zero(shape: onnx.TensorProto) -> bool:
    from nnadapter.onnx.references import array_of

    return not array_of(shape).all()
