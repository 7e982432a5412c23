"""Repair after a failed compilation: find the nodes that a device cannot compile, and plan without them.

Bisection within a budget finds atoms that fail alone, or two that fail only together. A segment that is only too large
is cut in two. Failing nodes are banned on the device; its cache, if any, stores the bans. If the search finds nothing,
the device loses the entire segment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

from nnadapter.drivers import Admission, Reason, Unsupported
from nnadapter.drivers.boundary import ask_admission, checked_program
from nnadapter.drivers.failures import named_call
from nnadapter.engine.segment_programs import atoms_of
from nnadapter.errors import FAILURES, DeviceLostError, OutOfMemoryError, describe
from nnadapter.planning.judgment import Atoms, Judgment, banning, barred, model_of
from nnadapter.planning.setting import SessionDevice, Setting
from nnadapter.planning.settling import AdmittedSegment, Partitioning
from nnadapter.process.resources import close_all
from nnadapter.records import dataclass, field
from partition.plan import Step

Compiles = Callable[[Sequence[int]], bool]

_MOST_TRIES = 128
_MOST_SECONDS = 30.0
_HOPELESS = 6
"""Number of tries after which the search ends if no single atom compiles."""


@dataclass(frozen=True, slots=True)
class Culprits:
    """Atoms that make a segment fail to compile."""

    alone: tuple[int, ...] = ()
    beside: tuple[tuple[int, int], ...] = ()
    """Pairs of atoms that fail only together."""
    is_too_large: bool = False

    def __add__(self, other: Culprits) -> Culprits:
        return Culprits(self.alone + other.alone, self.beside + other.beside, self.is_too_large or other.is_too_large)


NOT_FOUND = Culprits()


class _SpentError(Exception):
    pass


@dataclass(eq=False, slots=True)
class Budget:
    """Compilations and seconds that a session may still spend to find nodes at fault."""

    tries: int = _MOST_TRIES
    seconds: float = _MOST_SECONDS
    clock: Callable[[], float] = field(default=time.perf_counter)

    def left(self) -> bool:
        return self.tries > 0 and self.seconds > 0

    def spend(self, work: Callable[[], bool]) -> bool:
        if not self.left():
            raise _SpentError
        started = self.clock()
        self.tries -= 1
        try:
            return work()
        finally:
            self.seconds -= self.clock() - started


def culprits_of(atoms: Sequence[int], compiles: Compiles, budget: Budget) -> Culprits:
    """Return the atoms at fault in `atoms`, which failed to compile together, or `NOT_FOUND`.

    `compiles` returns whether the device compiles some atoms.
    """
    tried = passed = 0

    def compiles_in_budget(some: Sequence[int]) -> bool:
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
        culprits = _search(tuple(atoms), compiles_in_budget)
    except _SpentError:
        return NOT_FOUND
    return culprits if passed or len(atoms) == 1 else NOT_FOUND


def _search(failing: tuple[int, ...], compiles: Compiles) -> Culprits:
    if len(failing) == 1:
        return Culprits(alone=failing)
    first_half, second_half = failing[: len(failing) // 2], failing[len(failing) // 2 :]
    failed = [half for half in (first_half, second_half) if not compiles(half)]
    if not failed:
        return _together(first_half, second_half, compiles)
    culprits = NOT_FOUND
    for half in failed:
        culprits += _search(half, compiles)
        if culprits.is_too_large:
            break
    return culprits


def _together(first_half: tuple[int, ...], second_half: tuple[int, ...], compiles: Compiles) -> Culprits:
    first_atom = _needed(first_half, second_half, compiles)
    second_atom = _needed(second_half, (first_atom,), compiles) if not compiles((*second_half, first_atom)) else None
    if second_atom is None or compiles((first_atom, second_atom)):
        return Culprits(is_too_large=True)
    return Culprits(beside=((first_atom, second_atom),))


def _needed(candidates: tuple[int, ...], partners: tuple[int, ...], compiles: Compiles) -> int:
    """Return the last atom of the shortest prefix of `candidates` that fails to compile with `partners`."""
    passing, failing = 0, len(candidates)
    while failing - passing > 1:
        middle = (passing + failing) // 2
        if compiles((*candidates[:middle], *partners)):
            passing = middle
        else:
            failing = middle
    return candidates[failing - 1]


class Repair:
    """Search for nodes that a device cannot compile, within the budget of one session."""

    def __init__(self, setting: Setting) -> None:
        self._setting, self._budget = setting, Budget()

    def without_failed(
        self,
        judgment: Judgment,
        partitioning: Partitioning,
        step: Step,
        error: BaseException,
        admissions: dict[Atoms, AdmittedSegment],
    ) -> Judgment:
        """Return the judgment without the nodes or the segment that the device of `step` failed to compile.

        A segment that is too large is refused in `admissions`, the cached answers of devices, so that it is cut in two.
        """
        key, reason = atoms_of(partitioning.plan, step), describe(error)
        device, atoms = self._setting.by_name[step.device], key[1]
        culprits = self._find_culprits(partitioning, device, atoms, error)
        is_cut = culprits.is_too_large and len(atoms) > 1
        if is_cut:
            text = f"the segment failed to compile, but its parts compile: {reason}"
            if not isinstance(error, OutOfMemoryError):
                _ban(device, partitioning, atoms, text, is_size=True)
            admissions[key] = AdmittedSegment(
                admissions[key].part, Admission(verdict=Unsupported(Reason.MEMORY_LIMIT, text))
            )
        refused = dict.fromkeys(culprits.alone, f"the device failed to compile it: {reason}")
        for atom, partner in culprits.beside:
            name = _names(partitioning, (atom,))[0]
            refused[partner] = f"the device failed to compile it together with {name!r}: {reason}"
        if not refused and not is_cut:
            return banning(judgment, self._setting, {key: Unsupported(Reason.COMPILE_FAILED, reason)})
        for atom, text in refused.items():
            _ban(device, partitioning, (atom,), text)
        bans: dict[Atoms, Unsupported] = {
            (device.name, (atom,)): Unsupported(Reason.COMPILE_FAILED, text) for atom, text in refused.items()
        }
        return barred(banning(judgment, self._setting, bans) if bans else judgment, self._setting)

    def _find_culprits(
        self, partitioning: Partitioning, device: SessionDevice, atoms: Sequence[int], error: BaseException
    ) -> Culprits:
        if isinstance(error, DeviceLostError) and not device.is_isolated:
            return NOT_FOUND  # the device can try no more segments
        if isinstance(error, OutOfMemoryError):
            self._budget.tries -= 1
            return Culprits(is_too_large=self._budget.left())
        compiles = partial(_compiles, partitioning, device)
        if self._budget.left() and self._budget.spend(lambda: compiles(atoms)):
            return NOT_FOUND  # not its contents are at fault, but perhaps cloning a program
        return culprits_of(atoms, compiles, self._budget)


def _compiles(partitioning: Partitioning, device: SessionDevice, atoms: Sequence[int]) -> bool:
    model, names = model_of(partitioning.model, device, atoms), _names(partitioning, atoms)
    admission = named_call(device.name, "admit", None, names)(ask_admission, device.context, model)
    if isinstance(admission.verdict, Unsupported):
        return True
    try:
        program = named_call(device.name, "compile", None, names)(device.context.compile, model)
        close_all([checked_program(program)])
    except FAILURES:
        return False
    return True


def _ban(
    device: SessionDevice, partitioning: Partitioning, atoms: Sequence[int], reason: str, *, is_size: bool = False
) -> None:
    if device.bans is not None:
        model = model_of(partitioning.model, device, atoms)
        device.bans.add(model, _names(partitioning, atoms), reason, "compile", is_size=is_size)


def _names(partitioning: Partitioning, atoms: Sequence[int]) -> list[str]:
    graph = partitioning.plan.graph
    return [graph.nodes[node].name for atom in atoms for node in graph.atoms[atom]]
