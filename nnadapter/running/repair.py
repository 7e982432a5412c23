"""Repair after failed compilation: a bounded search for the nodes at fault, which lose their device.

Which of some atoms a device fails to compile: found by compiling some of them, in bounded tries and seconds.

Halves are compiled. A half that fails is halved again, so every atom that fails alone is found. Where neither half
fails it is what they hold together: two atoms that fail only beside each other are searched for by halving what stands
beside them. If they are not two either, the whole is too large, and is to be cut. A device of which nothing compiles is
not at odds with nodes, and is not searched for long.

What is taken from a device that failed to compile a segment: the nodes at fault, where they are found.

They are banned: the device is not given nodes of the same form any more, in this session and, where it has a cache,
in others until the ban expires. A segment that is too large for its device is cut in two. Where neither is found within
the bounds of a search, the device loses the whole segment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from nnadapter.drivers.boundary import ask_admission, blamed_nodes, checked_program
from nnadapter.drivers.failures import named_call
from nnadapter.drivers.interface import Admission, SegmentModel
from nnadapter.errors import FAILURES, DeviceLostError, OutOfMemoryError, describe
from nnadapter.planning.judgment import Atoms, Judgment, banning, barred, model_of
from nnadapter.planning.setting import SessionDevice, Setting
from nnadapter.planning.settling import AdmittedSegment, Partitioning
from nnadapter.process.resources import close_all
from nnadapter.running.builder import atoms_of
from partition.plan import Plan, Step
from partition.verdict import Reason, Unsupported

Compiles = Callable[[Sequence[int]], bool]
"""Whether a device compiles these atoms."""

_MOST_TRIES = 128
_MOST_SECONDS = 30.0
"""Both of one session."""
_HOPELESS = 6
"""Tries after which something must have compiled, if only a single atom."""


@dataclass(frozen=True, slots=True)
class Culprits:
    """What was found."""

    alone: tuple[int, ...] = ()
    """Atoms each of which fails by itself."""
    beside: tuple[tuple[int, int], ...] = ()
    """Atoms that fail together, and not alone."""
    is_too_large: bool = False
    """Not single atoms nor two are at fault, but that they are so many."""

    def __add__(self, other: Culprits) -> Culprits:
        """Those of both."""
        return Culprits(self.alone + other.alone, self.beside + other.beside, self.is_too_large or other.is_too_large)


NOT_FOUND = Culprits()


class _SpentError(Exception):
    """The bounds are reached. Nobody outside of this file sees it."""


@dataclass(eq=False, slots=True)
class Budget:
    """What may be spent on searching in one session."""

    tries: int = _MOST_TRIES
    seconds: float = _MOST_SECONDS
    clock: Callable[[], float] = field(default=time.perf_counter)

    def left(self) -> bool:
        """Whether there is something left."""
        return self.tries > 0 and self.seconds > 0

    def spend(self, work: Callable[[], bool]) -> bool:
        """Do a try; raise where none is left."""
        if not self.left():
            raise _SpentError
        started = self.clock()
        self.tries -= 1
        try:
            return work()
        finally:
            self.seconds -= self.clock() - started


def culprits_of(atoms: Sequence[int], compiles: Compiles, budget: Budget) -> Culprits:
    """Return what is at fault where a device failed to compile all of `atoms`, in their order.

    Returns:
        What was found within the budget; `NOT_FOUND` if it was not enough, or nothing compiles.
    """
    tried = passed = 0

    def asked(some: Sequence[int]) -> bool:
        nonlocal tried, passed
        if tried == _HOPELESS and not passed:
            passed = any(budget.spend(partial(compiles, (atom,))) for atom in (atoms[0], atoms[-1]))
            if not passed:
                raise _SpentError
        tried += 1
        is_compiled = budget.spend(partial(compiles, some))
        passed += is_compiled
        return is_compiled

    try:
        found = _search(tuple(atoms), asked)
    except _SpentError:
        return NOT_FOUND
    return found if passed or len(atoms) == 1 else NOT_FOUND


def _search(failing: tuple[int, ...], compiles: Compiles) -> Culprits:
    """What is at fault in atoms that fail together."""
    if len(failing) == 1:
        return Culprits(alone=failing)
    left, right = failing[: len(failing) // 2], failing[len(failing) // 2 :]
    failed = [half for half in (left, right) if not compiles(half)]
    if not failed:
        return _together(left, right, compiles)
    found = NOT_FOUND
    for half in failed:
        found += _search(half, compiles)
        if found.is_too_large:  # it is cut in two, and what fails of that is searched then
            break
    return found


def _together(left: tuple[int, ...], right: tuple[int, ...], compiles: Compiles) -> Culprits:
    """What is at fault where two halves compile and the whole does not."""
    one = _needed(left, right, compiles)
    other = _needed(right, (one,), compiles) if not compiles((*right, one)) else None
    if other is None or compiles((one, other)):
        return Culprits(is_too_large=True)
    return Culprits(beside=((one, other),))


def _needed(candidates: tuple[int, ...], beside: tuple[int, ...], compiles: Compiles) -> int:
    """The last of the fewest first candidates that fail beside others; all of them do."""
    passing, failing = 0, len(candidates)
    while failing - passing > 1:
        middle = (passing + failing) // 2
        if compiles((*candidates[:middle], *beside)):
            passing = middle
        else:
            failing = middle
    return candidates[failing - 1]


class Repair:
    """Finds what a device cannot compile, within the bounds of one session.

    Args:
        setting: the devices.
    """

    def __init__(self, setting: Setting) -> None:
        self._setting, self._budget = setting, Budget()

    def without(
        self,
        judgment: Judgment,
        partitioning: Partitioning,
        step: Step,
        error: BaseException,
        known: dict[Atoms, AdmittedSegment],
    ) -> Judgment:
        """Return the judgment without what a device failed to compile.

        Args:
            judgment: as it is now.
            partitioning: with the step.
            step: that failed.
            error: what the driver raised.
            known: answers of devices to segments; a segment that is too large is refused there, to be cut in two.
        """
        key, why = atoms_of(partitioning.plan, step), describe(error)
        device, atoms = self._setting.by_name[step.device], key[1]
        if isinstance(error, DeviceLostError) and not device.is_isolated:
            return banning(judgment, self._setting, {key: Unsupported(Reason.COMPILE_FAILED, why)})
        found = self._found(partitioning, device, atoms, error)
        is_cut = found.is_too_large and len(atoms) > 1
        if is_cut:
            text = f"as a whole it failed to compile, and its parts do not: {why}"
            model = model_of(partitioning.model, device, atoms)
            if not isinstance(error, OutOfMemoryError):
                _ban(device, model, _names(partitioning, atoms), text, is_size=True)
            known[key] = AdmittedSegment(known[key].part, Admission(verdict=Unsupported(Reason.MEMORY_LIMIT, text)))
        refused = dict.fromkeys(found.alone, f"it failed to compile it: {why}")
        for one, other in found.beside:
            (name,) = _names(partitioning, (one,))[:1]
            refused[other] = f"it failed to compile it together with {name!r}: {why}"
        if not refused and not is_cut:
            return banning(judgment, self._setting, {key: Unsupported(Reason.COMPILE_FAILED, why)})
        for atom, text in refused.items():
            _ban(device, model_of(partitioning.model, device, (atom,)), _names(partitioning, (atom,)), text)
        bans: dict[Atoms, Unsupported] = {
            (device.name, (atom,)): Unsupported(Reason.COMPILE_FAILED, text) for atom, text in refused.items()
        }
        return barred(banning(judgment, self._setting, bans) if bans else judgment, self._setting)

    def _found(
        self, partitioning: Partitioning, device: SessionDevice, atoms: Sequence[int], error: BaseException
    ) -> Culprits:
        if isinstance(error, OutOfMemoryError):
            self._budget.tries -= 1
            return Culprits(is_too_large=self._budget.left())
        compiles = self._compiles(partitioning, device)
        if self._budget.left() and self._budget.spend(lambda: compiles(atoms)):
            return NOT_FOUND  # not what it holds is at fault: it could not be bound to another's program, say
        return culprits_of(atoms, compiles, self._budget)

    def _compiles(self, partitioning: Partitioning, device: SessionDevice) -> Callable[[Sequence[int]], bool]:
        def compiles(atoms: Sequence[int]) -> bool:
            """Whether the device compiles these atoms; what it does not admit it is not at fault for."""
            model, names = model_of(partitioning.model, device, atoms), _names(partitioning, atoms)
            admission = named_call(device.name, "admit", None, names)(ask_admission, device.context, model)
            if isinstance(admission.verdict, Unsupported):
                return True
            try:
                program = named_call(device.name, "compile", None, names)(device.context.compile, model)
                close_all([checked_program(program)])
            except FAILURES:  # a driver may raise anything; this is its border
                return False
            return True

        return compiles


def _ban(device: SessionDevice, model: SegmentModel, nodes: Sequence[str], why: str, *, is_size: bool = False) -> None:
    if device.bans is not None:
        device.bans.add(model, nodes, why, "compile", is_size=is_size)


def _names(partitioning: Partitioning, atoms: Sequence[int]) -> list[str]:
    graph = partitioning.plan.graph
    return [graph.nodes[node].name for atom in atoms for node in graph.atoms[atom]]


def blamed(partitioning: Partitioning, step: Step, error: BaseException) -> Mapping[int, Unsupported]:
    """The nodes (positions in `step`) that a device is to blame for not loading; what is no valid ONNX is not."""
    refused = blamed_nodes(error, len(step.nodes))
    return {position: why for position, why in refused.items() if not _is_invalid(partitioning, step.nodes[position])}


def _is_invalid(partitioning: Partitioning, node: int) -> bool:
    verdict = partitioning.model.conversion.verdicts[node]
    return isinstance(verdict, Unsupported) and verdict.reason is Reason.INVALID_NODE


def delegated(setting: Setting, plan: Plan, left: Step) -> dict[Atoms, Unsupported]:
    """Every segment on a device that accelerates, refused for what cutting it out left behind.

    ONNX Runtime loads whole models that contradict themselves, and not always the parts, of which more is known.
    """
    detail = f"ONNX Runtime does not load segment {left.segment}, which is left then"
    why = Unsupported(Reason.COMPILE_FAILED, detail)
    return {atoms_of(plan, step): why for step in plan.steps if step.device in setting.accelerators}


def host_of(setting: Setting, plan: Plan, step: Step) -> SessionDevice:
    """The host, if it takes every node of a step as far as is known, else the last resort.

    A pin to the device that failed says nothing of the host, which is asked; a ban from the host holds.
    """
    host = setting.host
    has_bans = any(ban.device == host.name for ban in setting.constraints.rules.bans)

    def takes(node: int) -> bool:
        verdict = plan.verdicts[host.name][plan.graph.atom_of[node]]
        is_pinned = isinstance(verdict, Unsupported) and verdict.reason is Reason.RULE and not has_bans
        return bool(verdict) or is_pinned

    return host if all(map(takes, step.nodes)) else setting.last_resort
