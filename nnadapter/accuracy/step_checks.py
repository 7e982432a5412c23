"""One step of a run, held against the same nodes on the CPU, on the step's own inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nnadapter.accuracy.tolerances import Allowed
from nnadapter.drivers.copies import on_host
from nnadapter.running.bound_step import BoundStep, Substitute
from nnadapter.running.deviation import Deviation, deviation, largest


@dataclass(frozen=True, eq=False, slots=True)
class StepCheck:
    """What a step made, and what the CPU makes of the same."""

    bound: BoundStep
    deviations: Mapping[str, Deviation]
    """By value that it makes."""

    @property
    def largest(self) -> Deviation:
        """The largest of its values."""
        return largest([*self.deviations.values()] or [Deviation(value="")])

    @property
    def is_beyond(self) -> bool:
        """Whether a value is off too much."""
        return self.largest.tolerances > 1


def check_step(bound: BoundStep, values: Sequence[Any], allowed: Allowed) -> StepCheck:
    """Compute a step on the CPU, and compare.

    Args:
        bound: the step.
        values: of the run, by slot, arrays or `Copies`.
        allowed: how far its values may be off.

    Raises:
        NNAdapterError: the CPU does not compute it.
    """
    expected = _expected(bound, values)
    return _compared(bound, [on_host(values[slot]) for slot in bound.outputs], expected, allowed)


def is_random(bound: BoundStep, values: Sequence[Any], allowed: Allowed) -> bool:
    """Whether the CPU itself makes something else of the same each time: such a step cannot be compared."""
    return _compared(bound, _expected(bound, values), _expected(bound, values), allowed).is_beyond


def forget_reference(bound: BoundStep) -> None:
    """Free what a step was compared with."""
    with bound.lock:
        reference, bound.reference = bound.reference, None
    if reference is not None:
        reference.pool.close()


def _expected(bound: BoundStep, values: Sequence[Any]) -> Sequence[Any]:
    reference = _reference(bound)
    return reference.pool.compute([on_host(values[slot]) for slot in reference.inputs])


def _reference(bound: BoundStep) -> Substitute:
    with bound.lock:
        if bound.reference is None:
            bound.reference = bound.on_check(bound.step)
        return bound.reference


def _compared(bound: BoundStep, got: Sequence[Any], expected: Sequence[Any], allowed: Allowed) -> StepCheck:
    every = zip(bound.step.outputs, got, expected, strict=True)
    return StepCheck(bound, {name: deviation(name, value, other, allowed.of(name)) for name, value, other in every})
