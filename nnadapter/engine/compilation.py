"""Compilation of a partitioning: programs of segments, repair after failures, and the plan that they are bound to.

Which of some atoms a device fails to compile: found by compiling some of them, in bounded tries and seconds.

Halves are compiled. A half that fails is halved again, so every atom that fails alone is found. Where neither half
fails it is what they hold together: two atoms that fail only beside each other are searched for by halving what stands
beside them. If they are not two either, the whole is too large, and is to be cut. A device of which nothing compiles is
not at odds with nodes, and is not searched for long.

What is taken from a device that failed to compile a segment: the nodes at fault, where they are found.

They are banned: the device is not given nodes of the same form any more, in this session and, where it has a cache,
in others until the ban expires. A segment that is too large for its device is cut in two. Where neither is found within
the bounds of a search, the device loses the whole segment.

A device that said yes and fails to compile has broken its promise: its segment is taken from it, the graph is cut
again, and the fact is kept for the report. Programs that were compiled already are used again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import NamedTuple

from nnadapter.candidates.part import Part
from nnadapter.drivers import Admission, Program, Reason, SegmentModel, Unsupported
from nnadapter.drivers.arenas import Arenas
from nnadapter.drivers.boundary import ask_admission, blamed_nodes, checked_program, clone_with_constants
from nnadapter.drivers.failures import NamedCalls, named_call
from nnadapter.drivers.tensor_copies import TENSORS
from nnadapter.engine.binder import Bindable, Binder
from nnadapter.engine.bound_steps import BoundStep, OtherShapeError, Substitute
from nnadapter.engine.compiled import Compiled
from nnadapter.engine.cpu_fallback import CpuFallback
from nnadapter.engine.executor import CompiledPlan
from nnadapter.engine.fallback import (
    REPEATED,
    Cause,
    Incident,
    Incidents,
    fall_back,
    named,
    note_unanswered,
    refuse_fallback,
    run_failure,
    warn_of_idle,
    warn_of_last_resort,
)
from nnadapter.engine.plan_devices import PlanDevices, evict_nothing, making
from nnadapter.engine.specialization import (
    SegmentRequest,
    SpecializedPrograms,
    check_admitted,
)
from nnadapter.errors import (
    FAILURES,
    CompilationError,
    DeviceLostError,
    ExecutionError,
    NNAdapterError,
    OutOfMemoryError,
    RulesError,
    TransientError,
    describe,
)
from nnadapter.ir.model import Model
from nnadapter.ir.structure import GuardedShapes
from nnadapter.ir.structure import program_sharing_key_of as likeness_of_model
from nnadapter.planning.absent import INSTEAD
from nnadapter.planning.alongside import overlap_of
from nnadapter.planning.dynamic_shapes import DynamicPartitioning
from nnadapter.planning.indices import checks_by_segment
from nnadapter.planning.judgment import Atoms, Judgment, banning, barred, model_of
from nnadapter.planning.planner import Planner
from nnadapter.planning.setting import SessionDevice, Setting
from nnadapter.planning.settling import AdmittedSegment, Partitioning
from nnadapter.process.resources import close_all
from partition.plan import Plan, Step

_TRIES = 4
"""Programs that a segment is tried to be bound to."""
Likeness = Hashable
"""What segments have in common that may share a program, each with its own constants."""


class Built(NamedTuple):
    """A compiled segment, and the values that its inputs stand for."""

    program: Program
    inputs: tuple[str, ...]
    seconds: float
    """What compiling took."""
    program_sharing_key: Likeness | None = None
    """What it has in common with models that may be bound to its program; None where it is never asked."""
    takes_sizes: bool = False
    """Its model is adapter IR that leaves sizes open."""
    twin: Hashable = None
    """The segment whose program it was bound to; None if it was compiled."""


def program_sharing_key_of(device: str, part: Part) -> Likeness | None:
    """Equal for segments of a device that differ in names and in what constants hold; None where that is not known."""
    if not isinstance(part.model, Model) or part.model.has_dynamic_shapes:
        return None
    return device, likeness_of_model(part.model)


class Programs:
    """The programs of a plan in the making, by segment. What is no longer in the plan is kept until `keep_only`."""

    def __init__(self) -> None:
        self._built: dict[Hashable, Built] = {}
        self._compiled: dict[Likeness, list[Hashable]] = {}

    def __contains__(self, key: Hashable) -> bool:
        """Whether that segment was built."""
        return key in self._built

    def __getitem__(self, key: Hashable) -> Built:
        """What was built for a segment."""
        return self._built[key]

    def add(self, key: Hashable, built: Built) -> None:
        """Keep what was built for a segment."""
        self._built[key] = built
        if built.program_sharing_key is not None and built.twin is None:
            self._compiled.setdefault(built.program_sharing_key, []).append(key)

    def alike(self, likeness: Likeness) -> list[Hashable]:
        """Segments with that likeness that were compiled, the newest first, as many as are worth a try."""
        return self._compiled.get(likeness, [])[: -_TRIES - 1 : -1]

    def twins(self, plan: Plan) -> dict[int, int]:
        """Segment -> the one whose program it was bound to."""
        segments: dict[Hashable, int] = {atoms_of(plan, step): step.segment for step in plan.steps}
        twin_atoms = {number: self._built[key].twin for key, number in segments.items()}
        return {number: segments[twin] for number, twin in twin_atoms.items() if twin in segments}

    def keep_only(self, plan: Plan) -> None:
        """Close programs of segments that the plan does not have."""
        used = {atoms_of(plan, step) for step in plan.steps}
        close_all([self._built.pop(key).program for key in self._built.keys() - used])

    def close(self) -> None:
        """Close all."""
        close_all(built.program for built in self._built.values())


def calls_about(partitioning: Partitioning, step: Step) -> NamedCalls:
    """The calls of a step's device about it."""
    return NamedCalls(step.device, step.segment, nodes_of(partitioning, step))


def nodes_of(partitioning: Partitioning, step: Step) -> list[str]:
    """Return the names of the nodes in a step."""
    return [partitioning.plan.graph.nodes[node].name for node in step.nodes]


def bound_by(binder: Binder, position: int, built: Built) -> BoundStep:
    """Return the step at a position of a plan with what was built for it."""
    return binder.step(position, built.program, built.inputs, is_told_sizes=built.takes_sizes)


def atoms_of(plan: Plan, step: Step) -> Atoms:
    """What a segment is known by, however the graph is cut around it."""
    return step.device, tuple(sorted({plan.graph.atom_of[node] for node in step.nodes}))


class Builder:
    """Has the devices of one setting make programs."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting

    def built(self, part: Part, calls: NamedCalls, likeness: Likeness | None = None, *, alone: bool = False) -> Built:
        """Compile a part that its device admitted; `alone` where it is all of a plan."""
        started = time.perf_counter()
        context = self._setting.by_name[calls.device].context
        call = "compile_whole_graph" if alone else "compile"
        with making(self._setting.trace, calls.device, "compile", *calls.about):
            program = checked_program(calls[call](getattr(context, call), part.model))
        is_told_sizes = isinstance(part.model, Model) and part.model.has_dynamic_shapes
        return Built(program, part.inputs, time.perf_counter() - started, likeness, is_told_sizes)

    def like(
        self, part: Part, calls: NamedCalls, likeness: Likeness | None, programs: Programs, *, alone: bool
    ) -> Built:
        """A part that its device admitted: by a program of one that is like it, or compiled.

        Args:
            part: the part.
            calls: of its device, about it.
            likeness: of it.
            programs: those that were made.
            alone: it is all of a plan.
        """
        TENSORS.free_orphans()
        bound = self._bound(part, calls, likeness, programs) if likeness is not None else None
        return bound or self.built(part, calls, likeness, alone=alone)

    def filled(
        self, wanted: Sequence[SegmentRequest], calls: Mapping[int, NamedCalls], *, alone: bool
    ) -> Iterator[tuple[Program, float]]:
        """The programs of filled segments, see `specialization.Build`.

        The device is asked about each, also where it took one that is like it: what it says may hang on contents.

        Args:
            wanted: the segments.
            calls: of their devices, about each, by segment.
            alone: there is one, and it is all of the plan.
        """
        made, by_name = Programs(), self._setting.by_name
        for step, part, _ in wanted:  # one thing for all after the other: half the time of all things for each
            check_admitted(by_name[step.device].context, calls[step.segment], part)
        for step, part, _ in wanted:
            likeness = None if alone else program_sharing_key_of(step.device, part)
            built = self.like(part, calls[step.segment], likeness, made, alone=alone)
            yield built.program, built.seconds  # first: nobody has it before, and an interrupt may come any time
            made.add(step.segment, built)

    def _bound(self, part: Part, calls: NamedCalls, likeness: Likeness, programs: Programs) -> Built | None:
        """The part by a program of one that is like it; None where it has to be compiled."""
        started, context = time.perf_counter(), self._setting.by_name[calls.device].context
        for twin in programs.alike(likeness):
            with making(self._setting.trace, calls.device, "clone_with_constants", *calls.about):
                bound = calls["clone_with_constants"](clone_with_constants, context, programs[twin].program, part.model)
            if bound is not None:
                return Built(bound, part.inputs, time.perf_counter() - started, likeness, twin=twin)
        return None


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


@dataclass(eq=False)
class Compiler:
    """Compiles what was partitioned in one setting."""

    setting: Setting
    make_room: Callable[[], bool] = evict_nothing
    """See `PlanDevices`."""
    arenas: Arenas = field(init=False)
    """Memory for values between steps, which all plans share; devices in processes of their own map it."""

    def __post_init__(self) -> None:
        """Begin with the incidents of opening devices, and with memory that all devices know."""
        self.arenas = Arenas(shared=any(device.is_isolated for device in self.setting.devices))
        self.incidents = Incidents(self.setting.constraints.fallback, self.setting.trace)
        """Of the session."""
        for device, kind, message in self.setting.absent:
            self.incidents.add(Incident("load", device, None, (), kind, message, INSTEAD))
        self._repair, self._builder = Repair(self.setting), Builder(self.setting)
        self._said: set[Cause] = set()
        """What was warned of in the session."""

    def compile(self, planner: Planner, judgment: Judgment) -> Compiled:
        """Settle, compile, and settle again without what failed, until everything is compiled.

        Args:
            planner: settles.
            judgment: of a model of the planner's.

        Raises:
            NotDelegatedError: fallback is forbidden and something would have to fall back.
            CompilationError: not even the CPU takes what is left.
        """
        programs = Programs()
        try:
            return self._compile(planner, judgment, programs)
        except BaseException:
            programs.close()
            raise

    def compile_open(self, partitioning: Partitioning, opening: DynamicPartitioning) -> Compiled:
        """Compile a partitioning for many sizes.

        Args:
            partitioning: at some shapes, as the report tells of it.
            opening: the same with its sizes left open.

        Raises:
            CompilationError: a device took a segment with open sizes, and fails to compile it.
        """
        programs, opened = Programs(), opening.partitioning
        warn_of_idle(partitioning, self._said)
        try:
            failed = self._compile_all(opened, programs, without=opening.fillable)
            if failed:
                step, error = failed[0]
                raise CompilationError(
                    f"{step.device} took segment {step.segment} with open sizes and failed to compile it: "
                    f"{describe(error)}",
                    device=step.device,
                    segment=step.segment,
                ) from error
            if opening.fillable:
                return self._filling(partitioning, opening, programs)
            built = {step.segment: programs[atoms_of(opened.plan, step)] for step in opened.plan.steps}
            seconds = {segment: program.seconds for segment, program in built.items()}
            plan = self._bind(opened, programs, opening.sizes)
            return Compiled(partitioning=partitioning, plan=plan, compile_seconds=seconds, opening=opening)
        except BaseException:
            programs.close()
            raise

    @property
    def resting(self) -> tuple[str, ...]:
        """What is said of devices that rest now."""
        return self._site.resting

    def _compile(self, planner: Planner, judgment: Judgment, programs: Programs) -> Compiled:
        notes: list[str] = []
        known: dict[Atoms, AdmittedSegment] = {}
        host = self.setting.host.name
        partitioning = planner.settle(judgment, known)
        warn_of_idle(partitioning, self._said)
        while True:
            refuse_fallback(partitioning)
            failed = self._compile_all(partitioning, programs)
            if not failed:
                programs.keep_only(partitioning.plan)
                note_unanswered(partitioning, self.incidents)
                warn_of_last_resort(partitioning, self._said)
                taken = {
                    step.segment: programs[atoms_of(partitioning.plan, step)].seconds
                    for step in partitioning.plan.steps
                }
                plan = self._bind(partitioning, programs)
                return Compiled(
                    partitioning=partitioning,
                    plan=plan,
                    notes=tuple(notes),
                    compile_seconds=taken,
                    bound_to=programs.twins(partitioning.plan),
                )
            reported: list[tuple[Step, BaseException]] = []
            before = partitioning
            try:
                for step, error in failed:
                    accused = blamed(partitioning, step, error)
                    if not (accused and step.device == host):
                        if self.incidents.policy("compile") == "forbid":
                            self._compile_failed(partitioning, step, error, "")
                        reported.append((step, error))
                    if accused:
                        judgment = planner.blame(judgment, step, accused)
                    elif step.device == host:
                        judgment = banning(judgment, self.setting, delegated(self.setting, partitioning.plan, step))
                        break
                    else:
                        judgment = self._repair.without(judgment, partitioning, step, error, known)
                partitioning = planner.settle(judgment, known)
            except RulesError:
                for step, error in reported:
                    self._compile_failed(before, step, error, "and rules leave these nodes no other device")
                raise
            for step, error in reported:
                instead = _new_places(before, step, partitioning)
                if self.setting.by_name[step.device].is_host:
                    instead = "so nothing is cut out of the model, and it runs there as a whole"
                notes.append(self._compile_failed(before, step, error, instead))

    def _compile_all(
        self, partitioning: Partitioning, programs: Programs, without: Collection[int] = ()
    ) -> list[tuple[Step, BaseException]]:
        """Compile all segments but for some, and return those that failed."""
        failed: list[tuple[Step, BaseException]] = []
        host = self.setting.host.name
        for step, piece in zip(partitioning.plan.steps, partitioning.pieces, strict=True):
            key = atoms_of(partitioning.plan, step)
            if key in programs or step.segment in without:
                continue
            if failed and step.device == host:
                continue  # the cut will change: what is left for the CPU is compiled when it is final
            try:
                programs.add(key, self._program_or_again(partitioning, step, piece, programs))
            except FAILURES as error:  # a driver may raise anything; this is its border
                if (
                    step.device == host
                    and not blamed(partitioning, step, error)
                    and not delegated(self.setting, partitioning.plan, step)
                ):
                    raise
                failed.append((step, error))
        return failed

    def _program_or_again(
        self, partitioning: Partitioning, step: Step, piece: AdmittedSegment | None, programs: Programs
    ) -> Built:
        """A segment compiled; once more where its driver says that this may help, or room was made for it."""
        while True:
            try:
                return self._program(partitioning, step, piece, programs)
            except OutOfMemoryError:
                if not self.make_room():
                    raise
            except TransientError as error:
                built = self._program(partitioning, step, piece, programs)
                self._compile_failed(partitioning, step, error, REPEATED)
                return built

    def _program(
        self, partitioning: Partitioning, step: Step, piece: AdmittedSegment | None, programs: Programs
    ) -> Built:
        alone, calls = len(partitioning.plan.steps) == 1, calls_about(partitioning, step)
        if piece is not None:
            likeness = None if alone else program_sharing_key_of(calls.device, piece.part)
            return self._builder.like(piece.part, calls, likeness, programs, alone=alone)
        parts = partitioning.model.parts
        whole = parts.cpu_part(step)
        try:
            return self._builder.built(whole, calls, alone=alone)
        except CompilationError:
            # The model as it was may hold a node that ONNX Runtime does not take and that is known before the run.
            return self._builder.built(parts.part(step), calls)

    def _compile_failed(self, partitioning: Partitioning, step: Step, error: BaseException, instead: str) -> str:
        nodes = nodes_of(partitioning, step)
        message = (
            f"device {step.device!r} took segment {step.segment} ({named(nodes)}) and failed to compile it: "
            f"{describe(error)}"
        )
        fall_back("compile", step, nodes, message, instead, error, self.incidents)
        return message

    def _bind(self, partitioning: Partitioning, programs: Programs, sizes: GuardedShapes | None = None) -> CompiledPlan:
        built = [programs[atoms_of(partitioning.plan, step)] for step in partitioning.plan.steps]
        segments = [step.segment for step in partitioning.plan.steps]
        binder = self._binder(partitioning, dict(zip(segments, [program.inputs for program in built], strict=True)))
        return binder.plan([bound_by(binder, position, program) for position, program in enumerate(built)], sizes)

    def _binder(self, partitioning: Partitioning, reads: Mapping[int, tuple[str, ...]]) -> Binder:
        bindable = Bindable(
            plan=partitioning.plan,
            reads=reads,
            overlap=overlap_of(partitioning, reads),
            constants=partitioning.model.specialized.constants,
            nodes_of=partial(nodes_of, partitioning),
            run_failed=partial(self._run_failed, partitioning),
            say=partial(self._say_run_failed, partitioning),
            reference=partial(self._reference, partitioning),
            checks=checks_by_segment(partitioning.model, partitioning.plan, self.setting.accelerators, reads),
            make_cpu_fallback=partial(self._make_cpu_fallback, partitioning),
        )
        return Binder(self._site, self.arenas, bindable)

    @cached_property
    def _site(self) -> PlanDevices:
        setting = self.setting
        threading = {device.name: device.capability.threading for device in setting.devices}
        return PlanDevices(
            accelerators=setting.accelerators,
            owning=setting.owning,
            threading=threading,
            trace=setting.trace,
            raw=frozenset(device.name for device in setting.devices if device.has_raw_inputs),
            rests=setting.constraints.fallback_at("run") != "forbid",
            make_room=self.make_room,
        )

    def _filling(self, partitioning: Partitioning, opening: DynamicPartitioning, programs: Programs) -> Compiled:
        """The class of a plan some of whose segments are compiled for each set of sizes."""
        opened = opening.partitioning
        steps = enumerate(opened.plan.steps)
        built = {
            position: programs[atoms_of(opened.plan, step)]
            for position, step in steps
            if step.segment not in opening.fillable
        }
        reads = {segment: part.inputs for segment, part in opening.fillable.items()}
        reads |= {opened.plan.steps[position].segment: program.inputs for position, program in built.items()}
        binder = self._binder(opened, reads)
        shared = {
            position: (bound_by(binder, position, program), program.seconds) for position, program in built.items()
        }

        calls = {step.segment: calls_about(opened, step) for step in opened.plan.steps}
        build = partial(self._builder.filled, calls=calls, alone=len(opened.plan.steps) == 1)

        def wrap(plan: CompiledPlan, seconds: Mapping[int, float], programs: SpecializedPrograms[Compiled]) -> Compiled:
            return Compiled(
                partitioning=partitioning, plan=plan, compile_seconds=seconds, opening=opening, programs=programs
            )

        fillable = {
            position: opening.fillable[step.segment]
            for position, step in enumerate(opened.plan.steps)
            if step.segment in opening.fillable
        }
        return Compiled(
            partitioning=partitioning,
            plan=binder.plan([]),
            compile_seconds={},
            opening=opening,
            programs=SpecializedPrograms(opened.plan.steps, fillable, opening.sizes, binder, shared, build, wrap),
            is_template=True,
        )

    def _make_cpu_fallback(self, partitioning: Partitioning, error: NNAdapterError) -> CpuFallback:
        """The model as it was, on the host. Raises where the policy forbids that, and `error` where the host cannot."""
        forbidden = self.setting.constraints.fallback_at("run") == "forbid"
        if forbidden and isinstance(error, OtherShapeError):
            self._cpu_fallback_incident(partitioning, error)
        outputs = partitioning.plan.graph.outputs
        try:
            whole = None if forbidden else self.on_host(partitioning.model.parts.as_it_was(outputs), outputs)
        except NNAdapterError:
            whole = None
        if whole is None:
            raise error
        return replace(whole, say=partial(self._cpu_fallback_incident, partitioning))

    def on_host(self, part: Part, outputs: tuple[str, ...]) -> CpuFallback:
        """A model as a whole, compiled by the host.

        Raises:
            NNAdapterError: it does not load the model.
        """
        calls = NamedCalls(self.setting.host.name)
        built = self._builder.built(part, calls)
        return CpuFallback(calls.device, self._site.pools(calls)(built.program), built.inputs, outputs)

    def _cpu_fallback_incident(self, partitioning: Partitioning, error: NNAdapterError) -> Incident:
        plan = partitioning.plan
        nodes = [node.name for node in plan.graph.nodes]
        message = f"a run cannot go on as it was planned: {describe(error)}"
        instead = f"{self.setting.host.display_name} runs the model as it was"
        return fall_back("run", plan.steps[0], nodes, message, instead, error, self.incidents)

    def _run_failed(
        self, partitioning: Partitioning, slots: Mapping[str, int], step: Step, error: BaseException
    ) -> Substitute:
        """What runs a failed step instead: the host, or the last resort. Raises where the policy says so."""
        if self.incidents.policy("run") == "forbid":
            self._say_run_failed(partitioning, step, error, "")
        message = run_failure(step, nodes_of(partitioning, step), describe(error))
        return self._make_substitute(partitioning, slots, step, message, error)

    def _reference(self, partitioning: Partitioning, slots: Mapping[str, int], step: Step) -> Substitute:
        """What a step is compared with: the host, or the last resort."""
        message = f"segment {step.segment} of device {step.device!r} is to be compared with the CPU"
        return self._make_substitute(partitioning, slots, step, message, None)

    def _make_substitute(
        self,
        partitioning: Partitioning,
        slots: Mapping[str, int],
        step: Step,
        message: str,
        error: BaseException | None,
    ) -> Substitute:
        device, built = self._build_substitute(
            host_of(self.setting, partitioning.plan, step), partitioning, message, step, error
        )
        if not slots.keys() >= set(built.inputs):  # of what stays inside of another segment it may ask for the size
            raise ExecutionError(message, device=step.device, segment=step.segment, phase="run") from error
        pools = self._site.pools(NamedCalls(device.name, *calls_about(partitioning, step).about))
        inputs = tuple(slots[name] for name in built.inputs)
        return Substitute(device.name, device.display_name, pools(built.program), inputs)

    def _say_run_failed(self, partitioning: Partitioning, step: Step, error: BaseException, instead: str) -> Incident:
        nodes = nodes_of(partitioning, step)
        message = run_failure(step, nodes, describe(error))
        return fall_back("run", step, nodes, message, instead, error, self.incidents)

    def _build_substitute(
        self, device: SessionDevice, partitioning: Partitioning, message: str, step: Step, error: BaseException | None
    ) -> tuple[SessionDevice, Built]:
        """A step compiled for `device`, or for the last resort."""
        part, last_resort = partitioning.model.parts.part(step), self.setting.last_resort
        about = calls_about(partitioning, step).about
        try:
            return device, self._builder.built(part, NamedCalls(device.name, *about))
        except CompilationError as failure:
            if device is not last_resort and not blamed(partitioning, step, failure):
                raise
            last = failure
        if device is not last_resort:
            with suppress(CompilationError):
                return last_resort, self._builder.built(part, NamedCalls(last_resort.name, *about))
        raise ExecutionError(
            f"{message}; nothing else runs it: {last}", device=step.device, segment=step.segment
        ) from error


def _new_places(before: Partitioning, step: Step, after: Partitioning) -> str:
    """Return where the nodes of a step are after the graph is cut again, in words."""
    names = nodes_of(before, step)
    wanted = set(names)
    steps = [(new_step.device, len(wanted.intersection(nodes_of(after, new_step)))) for new_step in after.plan.steps]
    counts: dict[str, int] = {}
    for device, count in steps:
        if count:
            counts[device] = counts.get(device, 0) + count
    stay = counts.pop(step.device, 0)
    others = " and ".join(repr(device) for device in counts) or "other devices"
    if not stay:
        return f"these nodes go to {others}"
    if counts:
        return f"{stay} of these {len(names)} nodes stay, the others go to {others}"
    segments = sum(1 for device, count in steps if count and device == step.device)
    return f"these nodes stay on {step.device!r}" + (f", cut into {segments} segments" if segments > 1 else "")
