"""Where plans are written to: a file of their own, or an entry of a cache beside those that hold the programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nnadapter.files.container.writing import ContainerWriter
from nnadapter.running.bound_step import BoundStep


def _nowhere(bound: BoundStep) -> int | None:
    """Every program is written."""
    return None


@dataclass(frozen=True, slots=True)
class Target:
    """Where plans are written to."""

    writer: ContainerWriter
    kept: Callable[[BoundStep], int | None] = _nowhere
    """The part that a step's program is already, which is not written again; None where it is none."""
    stands_alone: bool = True
    """It is to run without the model: it holds what programs were compiled from, and what the CPU runs where a device
    fails."""
