"""One step of a compiled plan with everything that a run needs, resolved beforehand."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from nnadapter.drivers.border import OutputCheck
from nnadapter.running.pool import ExecutionPool
from nnadapter.running.residence import Residence
from nnadapter.running.slots import Planned
from partition.plan import Step


@dataclass(frozen=True, slots=True)
class Substitute:
    """What runs a step in place of its own device."""

    device: str
    display_name: str
    """How messages call the device."""
    pool: ExecutionPool
    inputs: tuple[int, ...]
    """Slots."""


@dataclass(eq=False, slots=True, kw_only=True)
class BoundStep:
    """One step with everything that a run needs, resolved beforehand."""

    step: Step
    pool: ExecutionPool
    inputs: tuple[int, ...]
    """Slots."""
    outputs: tuple[int, ...]
    released: tuple[int, ...]
    expected: OutputCheck
    guarded: bool
    """Inputs are handed over read-only and contiguous, and outputs are checked: everything but the CPU."""
    planned: tuple[Planned, ...]
    """What inputs that other steps make have to be, if they were planned to be something."""
    on_failure: Callable[[Step, BaseException], Substitute]
    """Makes what runs the step instead, or raises."""
    names: tuple[str, ...]
    """Of the inputs."""
    position: int = 0
    """Among the steps of the plan."""
    is_told_sizes: bool = False
    """Its program leaves sizes open, and is adapter IR."""
    residence: Residence | None = None
    """What it may do in its device's own memory; None where there is none."""
    seconds: float = 0.0
    """Duration of the last run, for the report."""
    failures: list[str] = field(default_factory=list)
    """Why it did not deliver: the first few different reasons."""
    substitute: Substitute | None = None
    """What runs the step instead, from its first failure on."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while `substitute` is made and `failures` grows."""

    @property
    def pools(self) -> list[ExecutionPool]:
        """Its program, and what runs instead."""
        return [self.pool, *([self.substitute.pool] if self.substitute is not None else [])]
