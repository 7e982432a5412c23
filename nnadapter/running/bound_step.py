"""One step of a compiled plan with everything that a run needs, resolved beforehand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import NamedTuple

from nnadapter.drivers.border import OutputCheck
from nnadapter.running.incidents import Incident
from nnadapter.running.index_checks import BoundCheck
from nnadapter.running.pool import ExecutionPool
from nnadapter.running.residence import Residence
from nnadapter.running.resting import WELL, Health
from nnadapter.running.slots import Planned
from partition.plan import Step


class Substitute(NamedTuple):
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
    say: Callable[[Step, BaseException, str], Incident]
    """Says what the device failed to do and what is done instead, as the policy wants it said."""
    make_room: Callable[[], bool]
    """See `PlanDevices`."""
    on_check: Callable[[Step], Substitute]
    """Makes what the step is compared with, or raises."""
    names: tuple[str, ...]
    """Of the inputs."""
    lock: Lock
    """Held while `substitute` or `reference` is made and `failures` grows; steps at one position share it."""
    health: Health = WELL
    """Of its device."""
    known_as: tuple[str, ...] = ()
    """What its device's health tells it by: what it makes and its nodes, which plans for other shapes have as well."""
    copies_inputs: bool = False
    """The device gets copies of inputs, as nothing else keeps it from writing to them."""
    index_checks: tuple[BoundCheck, ...] = ()
    """The indices and lengths that are checked before it runs."""
    position: int = 0
    """Among the steps of the plan."""
    is_told_sizes: bool = False
    """Its program leaves sizes open, and is adapter IR."""
    residence: Residence | None = None
    """What it may do in its device's own memory; None where there is none."""
    seconds: float = 0.0
    """Duration of the last run, for the report."""
    failures: tuple[str, ...] = ()
    """Why it did not deliver: the first few different reasons."""
    substitute: Substitute | None = None
    """What runs the step instead, from its first failure on."""
    reference: Substitute | None = None
    """What the step is compared with, from its first comparison on."""

    @property
    def pools(self) -> list[ExecutionPool]:
        """Its program, what runs instead, and what it is compared with."""
        others = (alternative.pool for alternative in (self.substitute, self.reference) if alternative is not None)
        return [self.pool, *others]
