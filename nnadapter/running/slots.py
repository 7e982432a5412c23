"""Where the values of a plan are kept while it runs, and what is expected of those that pass between steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from nnadapter.drivers.border import OutputCheck
from nnadapter.errors import ExecutionError
from partition.graph import Graph
from partition.plan import Plan


class Planned(NamedTuple):
    """A value between two steps, as it was planned."""

    name: str
    slot: int
    shape: tuple[int, ...]

    def check(self, values: Sequence[Any]) -> None:
        """Raise OtherShapeError for another shape: what was inferred of the model is not what its nodes make."""
        value = values[self.slot]
        if value.shape != self.shape:
            raise OtherShapeError(
                f"{self.name!r} is {value.dtype}{list(value.shape)}, planned {value.dtype}{list(self.shape)}"
            )


class OtherShapeError(ExecutionError):
    """A value came in another shape than was planned. Nobody outside of this room sees it."""


def slots_of(plan: Plan) -> dict[str, int]:
    """A number for every value that passes between steps, comes in or goes out."""
    names = dict.fromkeys((*plan.graph.inputs, *plan.graph.outputs))
    for step in plan.steps:
        names.update(dict.fromkeys((*step.inputs, *step.outputs)))
    return {name: slot for slot, name in enumerate(names)}


def planned_values(graph: Graph, slots: Mapping[str, int], inputs: Sequence[str]) -> Iterator[Planned]:
    """Return what comes from other steps, as far as its shape is known."""
    for name in inputs:
        shape = graph.value(name).static_shape
        if shape is not None and name in graph.producer and _array_type(graph.value(name).dtype) is not None:
            yield Planned(name, slots[name], shape)


def expected_outputs(graph: Graph, outputs: Sequence[str]) -> OutputCheck:
    """Return what is known of values that a step makes; None stands for sizes that are open."""
    checks: list[tuple[tuple[int | None, ...], np.dtype[Any]] | None] = []
    for name in outputs:
        value = graph.value(name)
        shape = None if value.shape is None else tuple(size if isinstance(size, int) else None for size in value.shape)
        dtype = None if shape is None else _array_type(value.dtype)
        checks.append(None if shape is None or dtype is None else (shape, dtype))
    return checks


def _array_type(name: str | None) -> np.dtype[Any] | None:
    try:
        return None if name is None else np.dtype(name)
    except TypeError:  # a type that numpy does not know, so that nothing can be checked
        return None
