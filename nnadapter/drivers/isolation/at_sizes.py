"""Computations at one set of sizes after the other, by a program whose sizes are left open, in a device's own process.

What a driver decides on sizes while it is asked is noted there, in the trace of the model that it was given; so is only
known there at which sizes its program holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nnadapter.ir.model import Model
from nnadapter.ir.operand import Array
from nnadapter.ir.structure import numbers
from nnadapter.ir.tracing import Trace, Traced

SizedTask = tuple[Any, Sequence[int], Sequence[Array]]
"""An execution, the sizes that are left open, in the order in which the trace has them, and what to compute with."""


def at_sizes(model: Model, task: SizedTask) -> tuple[Any, Sequence[Array]] | None:
    """An execution at the sizes of a task, with its inputs; None where the program does not hold there."""
    execution, variables, inputs = task
    sizes = trace_of(model).replay(variables)
    return None if sizes is None else (execution.at(sizes), inputs)


def trace_of(model: Model) -> Trace:
    """The trace of a model with open sizes."""
    return next(number.trace for number in numbers(model) if isinstance(number, Traced))
