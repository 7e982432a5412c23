"""At which shapes a plan whose sizes are open holds: those between shapes at which it was looked through.

A plan with open sizes is for tensors that have elements, and for sizes that fold the same nodes. What lies within the
model may come to have none at some sizes (`x[1:]` of one row). So a model is worked out at the least and the largest
sizes that come, and nothing between is: sizes of models grow with those of inputs, or shrink with them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from nnadapter.errors import InvalidModelError
from nnadapter.onnx.preparation.prepare import Prepared, Shapes, specialize

_FURTHER = 4
"""How many times the largest size that was looked at may be passed before it is looked again."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The least and the largest size of every dimension at which a plan was looked through."""

    least: Mapping[str, tuple[int, ...]]
    most: Mapping[str, tuple[int, ...]]

    def hold(self, shapes: Shapes) -> bool:
        """Whether the plan is known to hold at these shapes."""
        for name, shape in shapes.items():
            for low, size, high in zip(self.least[name], shape, self.most[name], strict=True):
                if not low <= size <= high * _FURTHER:
                    return False
        return True

    @property
    def ends(self) -> tuple[Shapes, Shapes]:
        """The shapes of the least and of the largest sizes."""
        return self.least, self.most

    def widened(self, shapes: Shapes) -> Bounds:
        """The bounds that hold these shapes as well."""
        return Bounds(
            {name: tuple(map(min, self.least[name], shape)) for name, shape in shapes.items()},
            {name: tuple(map(max, self.most[name], shape)) for name, shape in shapes.items()},
        )


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
