"""A segment with calls of kernels in it, as programs for the driver and calls, in the order in which they run.

An operation of the driver is on the level of the calls that it waits for; what is on one level is one program, so that
there are as few programs as possible. A path from one operation of a level to another through a call cannot be: it
would raise the level.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nnadapter.ir.extract import submodel
from nnadapter.ir.model import ABSENT, Model
from nnadapter.ir.operand import Lifetime
from nnadapter.ir.operations.custom import CUSTOM


@dataclass(frozen=True, slots=True, eq=False)
class KernelPiece:
    """What is run in one go."""

    operations: tuple[int, ...]
    """Positions in the segment's model."""
    inputs: tuple[int, ...]
    """Operands of the segment's model."""
    outputs: tuple[int, ...]
    model: Model | None
    """For the driver; None for the call of a kernel."""


def calls_in(model: Model) -> list[int]:
    """Positions of the operations that kernels compute."""
    return [position for position, operation in enumerate(model.operations) if operation.type == CUSTOM]


def split(model: Model) -> tuple[KernelPiece, ...]:
    """Return the pieces of a segment, in an order in which they can run. Linear in the model."""
    levels = _levels(model)
    read = _read_outside(model, levels)
    by_level: dict[int, list[int]] = {}
    for position, level in enumerate(levels):
        by_level.setdefault(level, []).append(position)
    return tuple(piece for level in sorted(by_level) for piece in _pieces(model, by_level[level], read))


def without_calls(model: Model) -> tuple[Model, list[int]]:
    """Return what of a model is the driver's, with holes where kernels compute, and the positions of its operations."""
    rest = [position for position, operation in enumerate(model.operations) if operation.type != CUSTOM]
    made = {operand for position in rest for operand in model.operations[position].outputs}
    inputs = _inputs_of(model, rest, made)
    calls = calls_in(model)
    wanted = [*model.outputs, *(operand for position in calls for operand in model.operations[position].inputs)]
    outputs = [operand for operand in dict.fromkeys(wanted) if operand in made]
    return submodel(model, rest, inputs, outputs), rest


def _levels(model: Model) -> list[int]:
    """Even levels are the driver's, odd ones calls."""
    of_operand: dict[int, int] = {}
    levels = []
    for operation in model.operations:
        level = max((of_operand[operand] for operand in operation.inputs if operand in of_operand), default=0)
        if operation.type == CUSTOM:
            level += level % 2 == 0
        else:
            level += level % 2
        levels.append(level)
        of_operand.update((operand, level) for operand in operation.outputs)
    return levels


def _read_outside(model: Model, levels: Sequence[int]) -> set[int]:
    """Operands that are read on another level than they are made on, or by a call, or go out."""
    made = {operand: levels[at] for at, operation in enumerate(model.operations) for operand in operation.outputs}
    boundary_operands = set(model.outputs)
    for at, operation in enumerate(model.operations):
        apart = levels[at] % 2 == 1
        boundary_operands.update(operand for operand in operation.inputs if apart or made.get(operand) != levels[at])
    return boundary_operands


def _pieces(model: Model, positions: list[int], read: set[int]) -> Iterator[KernelPiece]:
    if model.operations[positions[0]].type != CUSTOM:
        made = {operand for position in positions for operand in model.operations[position].outputs}
        inputs = _inputs_of(model, positions, made)
        ordered = dict.fromkeys(operand for position in positions for operand in model.operations[position].outputs)
        outputs = tuple(operand for operand in ordered if operand in read)
        yield KernelPiece(tuple(positions), inputs, outputs, submodel(model, positions, inputs, outputs))
        return
    # Calls may wait for calls of their own level: the model's order is one in which all can run.
    for position in positions:
        operation = model.operations[position]
        yield KernelPiece((position,), operation.inputs, operation.outputs, None)


def _inputs_of(model: Model, positions: Sequence[int], made: set[int]) -> tuple[int, ...]:
    read = (operand for position in positions for operand in model.operations[position].inputs)
    return tuple(
        operand
        for operand in dict.fromkeys(read)
        if operand != ABSENT and operand not in made and model.operands[operand].lifetime is not Lifetime.CONSTANT
    )
