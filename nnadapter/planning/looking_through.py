"""Whether a plan whose sizes are open holds at some shapes: the model is worked out at these (`planning.bounds`)."""

from __future__ import annotations

from collections.abc import Collection

from nnadapter.errors import InvalidModelError
from nnadapter.onnx.preparation.prepare import Prepared, Shapes, specialize


def is_full(prepared: Prepared, nodes: Collection[int], shapes: Shapes) -> bool:
    """Whether a model at these shapes is run by these of its nodes, and each of them makes elements of such.

    Args:
        prepared: the model.
        nodes: positions of those that a plan runs.
        shapes: of its inputs, which may have no elements themselves.
    """
    try:
        specialized = specialize(prepared, shapes)
    except InvalidModelError:
        return False
    made = (specialized.graph.value(name) for node in specialized.graph.nodes for name in node.outputs if name)
    return frozenset(specialized.positions) == frozenset(nodes) and not any(0 in (value.shape or ()) for value in made)
