"""A segment with calls of kernels in it, as programs for the driver and calls, in the order in which they run.

An operation of the driver is on the level of the calls that it waits for; what is on one level is one program, so that
there are as few programs as possible. A path from one operation of a level to another through a call cannot be: it
would raise the level.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

from nnadapter.drivers.interface import SegmentModel
from nnadapter.kernels.segment import Segment


@dataclass(frozen=True, slots=True, eq=False)
class KernelPiece:
    """What is run in one go."""

    operations: tuple[int, ...]
    """Positions in the segment."""
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    model: SegmentModel | None
    """For the driver; None for the call of a kernel."""


def split(segment: Segment) -> tuple[KernelPiece, ...]:
    """Return the pieces of a segment, in an order in which they can run. Linear in the segment."""
    levels = _levels(segment)
    read = _read_outside(segment, levels)
    by_level: dict[int, list[int]] = {}
    for position, level in enumerate(levels):
        by_level.setdefault(level, []).append(position)
    return tuple(piece for level in sorted(by_level) for piece in _pieces(segment, by_level[level], read))


def without_calls(segment: Segment) -> tuple[SegmentModel, list[int]]:
    """Return what of a segment is the driver's, with holes where kernels compute, and where its operations stand."""
    operations = segment.operations
    positions = [position for position, operation in enumerate(operations) if operation.called is None]
    produced_names = {name for position in positions for name in operations[position].makes}
    required_names = [*segment.outputs, *(name for position in segment.calls for name in operations[position].reads)]
    outputs = [name for name in dict.fromkeys(required_names) if name in produced_names]
    return segment.part(positions, _inputs_of(segment, positions, produced_names), outputs), positions


def _levels(segment: Segment) -> list[int]:
    """Even levels are the driver's, odd ones calls."""
    of_value: dict[str, int] = {}
    levels = []
    for operation in segment.operations:
        level = max((of_value[name] for name in operation.reads if name in of_value), default=0)
        if operation.called is not None:
            level += level % 2 == 0
        else:
            level += level % 2
        levels.append(level)
        of_value.update((name, level) for name in operation.makes)
    return levels


def _read_outside(segment: Segment, levels: Sequence[int]) -> set[str]:
    """Values that are read on another level than they are made on, or by a call, or go out."""
    producer_levels = {name: levels[at] for at, operation in enumerate(segment.operations) for name in operation.makes}
    boundary_values = set(segment.outputs)
    for at, operation in enumerate(segment.operations):
        is_call_level = levels[at] % 2 == 1
        boundary_values.update(
            name for name in operation.reads if is_call_level or producer_levels.get(name) != levels[at]
        )
    return boundary_values


def _pieces(segment: Segment, positions: list[int], read: set[str]) -> Iterator[KernelPiece]:
    operations = [segment.operations[position] for position in positions]
    if operations[0].called is None:
        produced_names = dict.fromkeys(name for operation in operations for name in operation.makes)
        inputs = _inputs_of(segment, positions, produced_names.keys())
        outputs = tuple(name for name in produced_names if name in read)
        yield KernelPiece(tuple(positions), inputs, outputs, segment.part(positions, inputs, outputs))
        return
    # Calls may wait for calls of their own level: the model's order is one in which all can run.
    for position, operation in zip(positions, operations, strict=True):
        assert operation.called is not None, "a level is of one kind"
        yield KernelPiece((position,), operation.called.inputs, operation.makes, None)


def _inputs_of(segment: Segment, positions: Sequence[int], produced_names: Set[str]) -> tuple[str, ...]:
    read = (name for position in positions for name in segment.operations[position].reads)
    return tuple(name for name in dict.fromkeys(read) if name not in produced_names)
