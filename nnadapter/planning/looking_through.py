"""Whether a plan whose sizes are open holds at some shapes: the model is worked out at these (`planning.bounds`).

Programs with open sizes of devices that take ONNX compute tensors that have elements, and windows that fit in what they
move over: at others OpenVINO's fail, and are not to be trusted from then on.
"""

from __future__ import annotations

from collections.abc import Collection

from nnadapter.errors import InvalidModelError
from nnadapter.onnx.preparation.prepare import Prepared, Shapes, Specialized, specialize
from nnadapter.onnx.preparation.wide_windows import wide_windows


def is_full(prepared: Prepared, nodes: Collection[int], shapes: Shapes) -> bool:
    """Whether a model at these shapes is run by these of its nodes; each makes elements of such, and its windows fit.

    Nodes that are folded at these shapes, and could not be at those of the plan, make the same where they are run.

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
    folded = frozenset(nodes).difference(specialized.positions)
    return (
        frozenset(specialized.positions) <= frozenset(nodes)
        and not any(0 in (value.shape or ()) for value in made)
        and all(_has_elements(specialized, index) for index in folded)
        and not wide_windows(specialized)
    )


def _has_elements(specialized: Specialized, index: int) -> bool:
    """Whether all that a folded node makes is of known sizes, and has elements."""
    made = (specialized.graph.value(name).static_shape for name in specialized.own.nodes[index].outputs if name)
    return all(shape is not None and 0 not in shape for shape in made)
