"""What a session does by `Options.verify` and `Options.shadow`. See docs/accuracy.md."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import count
from typing import Any
from weakref import WeakSet

from nnadapter.accuracy.drift import Drift
from nnadapter.accuracy.locating import ErrorCause, ErrorLocation
from nnadapter.accuracy.step_checks import StepCheck, check_step, forget_reference, is_random
from nnadapter.accuracy.subject import Subject
from nnadapter.errors import FAILURES, AccuracyError, describe
from nnadapter.process.cache import Cache
from nnadapter.process.forking import new_lock
from nnadapter.running.bound_step import BoundStep
from nnadapter.running.compiled import RunnablePlan
from nnadapter.running.deviation import Deviation
from nnadapter.running.failing import fall_back, named
from nnadapter.running.incidents import Incident
from nnadapter.running.provenance import Provenance

_MOST_STEPS = 1024
"""Steps whose past is remembered; plans for other shapes have others."""
_MOST_NOTES = 16
_ROOM = 2.0
"""What a step may be off by over what it was off by when it was found to be right."""
_StepKey = tuple[str, ...]
"""Device and nodes: of a choice of branches, another one has others that make the same outputs."""


class _StepHistory:
    """What is known of one step."""

    __slots__ = ("drift", "usual", "why_not")

    def __init__(self) -> None:
        self.drift = Drift()
        self.usual: dict[str, float] = {}
        """By value, what it was off by though nothing was wrong, where that is more than is allowed."""
        self.why_not = ""
        """Why it cannot be compared; empty where it can."""

    def is_beyond(self, check: StepCheck) -> bool:
        """Whether a value is off by more than is allowed, and than is usual."""
        every = check.deviations.items()
        return any(off.tolerances > max(1.0, _ROOM * self.usual.get(name, 0.0)) for name, off in every)

    def accept(self, check: StepCheck) -> None:
        """Take what a step is off by as usual."""
        for name, off in check.deviations.items():
            if off.tolerances > 1:
                self.usual[name] = max(off.tolerances, self.usual.get(name, 0.0))


class SessionChecks:
    """Those of one session. See `nnadapter.running.checks.Checks`.

    Args:
        subject: the plans.
        verify: check every plan on its first feed.
        shadow: compare one run in so many; None for none.
    """

    def __init__(self, subject: Subject, *, verify: bool, shadow: int | None) -> None:
        self._subject, self._verify, self._shadow = subject, verify, shadow or 0
        self._runs = count(1)
        self._checked: WeakSet[RunnablePlan] = WeakSet()
        self._count = 0
        self._taken: set[tuple[str, ...]] = set()
        """Nodes that were taken from a device, behind its name."""
        self._past: Cache[_StepKey, _StepHistory] = Cache("steps that were compared", _MOST_STEPS)
        self._notes: dict[str, None] = {}
        self._comparing = new_lock()
        self.first = new_lock()
        """See `Checks.first`."""

    def is_due(self) -> bool:
        """See `Checks.is_due`."""
        return self._shadow > 0 and next(self._runs) % self._shadow == 0

    def is_checked(self, plan: RunnablePlan) -> bool:
        """See `Checks.is_checked`."""
        return not self._verify or plan in self._checked

    @property
    def count(self) -> int:
        """See `Checks.count`."""
        return self._count

    @property
    def notes(self) -> Sequence[str]:
        """See `Checks.notes`."""
        return tuple(self._notes)

    def after(self, plan: RunnablePlan, provenance: Provenance, values: Sequence[Any]) -> tuple[Incident, ...]:
        """See `Checks.after`."""
        every = list(zip(plan.plan.steps, provenance.steps, strict=False)) if values else []
        guarded = [(bound, run.device) for bound, run in every if bound.guarded]
        steps = [bound for bound, device in guarded if device == bound.step.device]
        with self._comparing:
            check = self._shadowed if self.is_checked(plan) else self._verified
            incidents = tuple(incident for bound in steps if (incident := check(plan, bound, values)) is not None)
            if not incidents and len(steps) == len(guarded) and (values or plan.plan.note):
                self._count += plan not in self._checked
                self._checked.add(plan)
        if not self._shadow:
            for bound in steps:
                forget_reference(bound)
        return incidents

    def _verified(self, plan: RunnablePlan, bound: BoundStep, values: Sequence[Any]) -> Incident | None:
        """Check a step, unless that was done before; what was found to be wrong and taken from its device."""
        located = self._subject.known(plan, bound)
        if located is None:
            check = self._compared(plan, bound, values)
            if check is None:
                return None
            located = self._located(plan, bound, values) if check.is_beyond else ErrorLocation(ErrorCause.NOTHING)
            if check.is_beyond and located.blame is ErrorCause.NOTHING:
                self._accept(plan, bound, check)
            if located.blame is not ErrorCause.PROGRAM:
                located = self._subject.keep(plan, bound, located)
        return None if located.blame is ErrorCause.NOTHING else self._put_right(plan, bound, located)

    def _shadowed(self, plan: RunnablePlan, bound: BoundStep, values: Sequence[Any]) -> Incident | None:
        """Check a step once more, and whether it is off too often by now."""
        past = self._past_of(plan, bound)
        check = None if past.why_not else self._compared(plan, bound, values)
        if check is None:
            return None
        is_beyond = past.is_beyond(check)
        if is_beyond and not past.drift.checks:
            located = self._located(plan, bound, values)
            if located.blame in (ErrorCause.NODES, ErrorCause.TOGETHER):
                return self._put_right(plan, bound, located)
            if located.blame is ErrorCause.NOTHING:
                self._accept(plan, bound, check)
                is_beyond = False
        if not past.drift.add(is_beyond=is_beyond):
            return None
        if self._located(plan, bound, values).blame is ErrorCause.NOTHING:
            self._accept(plan, bound, check)
            past.drift = Drift()
            return None
        return self._put_aside(plan, bound, check.largest, past.drift.checks)

    def _compared(self, plan: RunnablePlan, bound: BoundStep, values: Sequence[Any]) -> StepCheck | None:
        """Compare a step; None where it cannot be, which is said."""
        past, allowed = self._past_of(plan, bound), self._subject.allowed(plan, bound)
        try:
            check = check_step(bound, values, allowed)
            if check.is_beyond and past.is_beyond(check) and is_random(bound, values, allowed):
                past.why_not = "the CPU makes something else of it each time"
        except FAILURES as error:
            past.why_not = f"the CPU does not run it: {describe(error)}"
        if not past.why_not:
            return check
        self._note(f"segment {bound.step.segment} on {bound.step.device!r} is not compared: {past.why_not}")
        return None

    def _located(self, plan: RunnablePlan, bound: BoundStep, values: Sequence[Any]) -> ErrorLocation:
        try:
            return self._subject.locate(plan, bound, values)
        except FAILURES:  # what is left of a step, or a device that fails, says nothing of its nodes
            return ErrorLocation(ErrorCause.PROGRAM)

    def _past_of(self, plan: RunnablePlan, bound: BoundStep) -> _StepHistory:
        """What is known of a step, which plans for other shapes have as well."""
        return self._past.made((bound.step.device, *self._subject.nodes(plan, bound)), _StepHistory)

    def _accept(self, plan: RunnablePlan, bound: BoundStep, check: StepCheck) -> None:
        """Take what a step is off by as usual, and say so."""
        self._past_of(plan, bound).accept(check)
        self._note(
            f"segment {bound.step.segment} on {bound.step.device!r} differs from the CPU, and each of its nodes alone "
            f"does not: {_off(check.largest)}"
        )

    def _put_right(self, plan: RunnablePlan, bound: BoundStep, located: ErrorLocation) -> Incident:
        """Say which nodes are wrong, and take them from their device."""
        device, subject = bound.step.device, self._subject
        nodes = located.nodes or tuple(subject.nodes(plan, bound))
        off = "" if located.deviation is None else f": {_off(located.deviation)}"
        problem = f"device {device!r} computes {_WRONGLY[located.blame].format(named(nodes))}{off}"
        shown = f"; {located.reproducer} shows it" if located.reproducer else ""
        incident = self._said(bound, nodes, problem, f"they go to the next device{shown}", located.deviation)
        removal = (device, *nodes)
        subject.take_back(plan, bound, () if removal in self._taken else nodes, problem)  # else it would never end
        self._taken.add(removal)
        return incident

    def _put_aside(self, plan: RunnablePlan, bound: BoundStep, off: Deviation, checks: int) -> Incident:
        """Say that a device drifts, and take everything from it."""
        step = bound.step
        nodes = tuple(self._subject.nodes(plan, bound))
        problem = (
            f"device {step.device!r} drifts: after {checks} checks, segment {step.segment} ({named(nodes)}) is wrong: "
            f"{_off(off)}"
        )
        instead = f"all goes to the next device; `nnadapter compare MODEL -d {step.device} --layers` looks for the node"
        incident = self._said(bound, nodes, problem, instead, off)
        self._subject.take_back(plan, bound, (), problem)
        return incident

    def _said(
        self, bound: BoundStep, nodes: Sequence[str], problem: str, instead: str, off: Deviation | None
    ) -> Incident:
        step, times = bound.step, math.inf if off is None else off.tolerances
        error = AccuracyError(problem, device=step.device, segment=step.segment, nodes=nodes, deviation=times)
        return fall_back("accuracy", step, nodes, problem, instead, error, self._subject.incidents)

    def _note(self, text: str) -> None:
        if len(self._notes) < _MOST_NOTES:
            self._notes[text] = None


_WRONGLY = {
    ErrorCause.NODES: "{} wrongly",
    ErrorCause.TOGETHER: "{} wrongly where it runs them together",
    ErrorCause.PROGRAM: "{} wrongly in the program that it has, and another one rightly",
}


def _off(off: Deviation) -> str:
    times = "infinitely many" if off.tolerances == math.inf else f"{off.tolerances:.3g}"
    return f"{off.value!r} is off by {off.largest_absolute:.3g}, {times} times what is allowed"
