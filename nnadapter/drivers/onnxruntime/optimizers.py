"""Optimizers of ONNX Runtime's that change what a model computes, or crash, where preparation brings them in.

`ExpandElimination` takes an Expand for one that changes nothing if the shape to expand to is a constant of ones, zeros
and the sizes that are there; 1 expanded to 0 has no elements. Models compute such shapes, and ONNX Runtime sees them as
constants only once preparation has folded them.

`ConstantFolding` puts the branch that is taken in the place of an `If` whose condition is constant. Where another `If`
is inside, that may end the process (seen with 1.32). Preparation leaves such an `If` if its branch contradicts itself.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from nnadapter.onnx.nodes import with_nested

if TYPE_CHECKING:
    import onnx


def wrong_optimizers(model: onnx.ModelProto) -> tuple[str, ...]:
    """Return the names of the optimizers that a session of the model has to do without.

    Source: ONNX Runtime 1.31, core/optimizer/expand_elimination.cc and constant_folding.cc.
    """
    nodes = list(with_nested(model.graph.node))
    targets = {node.input[1] for node in nodes if node.op_type == "Expand"}
    wrong = []
    if any(tensor.name in targets and _holds_zero(tensor) for tensor in model.graph.initializer):
        wrong.append("ExpandElimination")
    choices = [node for node in nodes if node.op_type == "If"]
    known = {tensor.name for tensor in model.graph.initializer} if len(choices) > 1 else ()
    if any(node.input[0] in known and _holds_choice(node) for node in choices):
        wrong.append("ConstantFolding")
    return tuple(wrong)


def _holds_choice(node: onnx.NodeProto) -> bool:
    return any(inner.op_type == "If" for inner in islice(with_nested([node]), 1, None))


def _holds_zero(shape: onnx.TensorProto) -> bool:
    from nnadapter.onnx.references import array_of

    return not array_of(shape).all()
