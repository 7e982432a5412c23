"""Compilation of a partitioning: programs of its segments, repair after failures, and binding to a plan.

If a device fails to compile a segment, failing atoms are searched by bisection, within a budget: atoms that fail alone,
or two that fail only together. Otherwise the segment is too large and is cut in two. Failing nodes are banned on the
device, also in later sessions if it has a cache. If the search finds nothing, the device loses the whole segment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
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
from nnadapter.records import dataclass, field, replace
from partition.plan import Plan, Step

_TRIES = 4
SharingKey = Hashable
"""Key of segments that may share a program, each with its own constants."""


class Built(NamedTuple):
    """Compiled segment, and the value names of its inputs."""

    program: Program
    inputs: tuple[str, ...]
    seconds: float
    program_sharing_key: SharingKey | None = None
    takes_sizes: bool = False
    twin: Hashable = None
    """Segment with the cloned program; None if this one was compiled."""


def program_sharing_key_of(device: str, part: Part) -> SharingKey | None:
    """Return a key equal for segments that differ only in names and constants; None if they cannot share."""
    if not isinstance(part.model, Model) or part.model.has_dynamic_shapes:
        return None
    return device, likeness_of_model(part.model)


class Programs:
    """Programs by segment. Segments that leave the plan stay until `keep_only`."""

    def __init__(self) -> None:
        self._built: dict[Hashable, Built] = {}
        self._compiled: dict[SharingKey, list[Hashable]] = {}

    def __contains__(self, key: Hashable) -> bool:
        return key in self._built

    def __getitem__(self, key: Hashable) -> Built:
        return self._built[key]

    def add(self, key: Hashable, built: Built) -> None:
        self._built[key] = built
        if built.program_sharing_key is not None and built.twin is None:
            self._compiled.setdefault(built.program_sharing_key, []).append(key)

    def alike(self, sharing_key: SharingKey) -> list[Hashable]:
        """Return compiled segments with this key, newest first, as many as are worth trying."""
        return self._compiled.get(sharing_key, [])[: -_TRIES - 1 : -1]

    def twins(self, plan: Plan) -> dict[int, int]:
        segments: dict[Hashable, int] = {atoms_of(plan, step): step.segment for step in plan.steps}
        twin_atoms = {number: self._built[key].twin for key, number in segments.items()}
        return {number: segments[twin] for number, twin in twin_atoms.items() if twin in segments}

    def keep_only(self, plan: Plan) -> None:
        used_atoms = {atoms_of(plan, step) for step in plan.steps}
        close_all([self._built.pop(key).program for key in self._built.keys() - used_atoms])

    def close(self) -> None:
        close_all(built.program for built in self._built.values())


def calls_about(partitioning: Partitioning, step: Step) -> NamedCalls:
    """Return the device, segment and node names that errors of driver calls for a step mention."""
    return NamedCalls(step.device, step.segment, nodes_of(partitioning, step))


def nodes_of(partitioning: Partitioning, step: Step) -> list[str]:
    """Return the names of the nodes in a step."""
    return [partitioning.plan.graph.nodes[node].name for node in step.nodes]


def bound_by(binder: Binder, position: int, built: Built) -> BoundStep:
    """Bind a program to the step at a position of a plan."""
    return binder.step(position, built.program, built.inputs, is_told_sizes=built.takes_sizes)


def atoms_of(plan: Plan, step: Step) -> Atoms:
    """Return a segment's device and atoms, which identify it in plans that are cut differently."""
    return step.device, tuple(sorted({plan.graph.atom_of[node] for node in step.nodes}))


class Builder:
    """Builder of programs on the devices of a setting."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting

    def built(
        self, part: Part, calls: NamedCalls, sharing_key: SharingKey | None = None, *, is_sole: bool = False
    ) -> Built:
        """Compile an admitted part; `is_sole` if it is the entire plan."""
        started = time.perf_counter()
        context = self._setting.by_name[calls.device].context
        call = "compile_whole_graph" if is_sole else "compile"
        with making(self._setting.trace, calls.device, "compile", *calls.about):
            program = checked_program(calls[call](getattr(context, call), part.model))
        is_told_sizes = isinstance(part.model, Model) and part.model.has_dynamic_shapes
        return Built(program, part.inputs, time.perf_counter() - started, sharing_key, is_told_sizes)

    def like(
        self, part: Part, calls: NamedCalls, sharing_key: SharingKey | None, programs: Programs, *, is_sole: bool
    ) -> Built:
        """Clone the program of a similar part if the device can, otherwise compile."""
        TENSORS.free_orphans()
        bound = self._bound(part, calls, sharing_key, programs) if sharing_key is not None else None
        return bound or self.built(part, calls, sharing_key, is_sole=is_sole)

    def filled(
        self, requests: Sequence[SegmentRequest], calls: Mapping[int, NamedCalls], *, is_sole: bool
    ) -> Iterator[tuple[Program, float]]:
        """Yield the programs of specialized segments and their compile times.

        Every segment is admitted separately, since a verdict may depend on constants.
        """
        programs, by_name = Programs(), self._setting.by_name
        for step, part, _ in requests:  # all checks first: half the time of alternating
            check_admitted(by_name[step.device].context, calls[step.segment], part)
        for step, part, _ in requests:
            sharing_key = None if is_sole else program_sharing_key_of(step.device, part)
            built = self.like(part, calls[step.segment], sharing_key, programs, is_sole=is_sole)
            # yield before storing: the caller must own the program before an interrupt can come
            yield built.program, built.seconds
            programs.add(step.segment, built)

    def _bound(self, part: Part, calls: NamedCalls, sharing_key: SharingKey, programs: Programs) -> Built | None:
        started, context = time.perf_counter(), self._setting.by_name[calls.device].context
        for twin in programs.alike(sharing_key):
            with making(self._setting.trace, calls.device, "clone_with_constants", *calls.about):
                bound = calls["clone_with_constants"](clone_with_constants, context, programs[twin].program, part.model)
            if bound is not None:
                return Built(bound, part.inputs, time.perf_counter() - started, sharing_key, twin=twin)
        return None


Compiles = Callable[[Sequence[int]], bool]

_MOST_TRIES = 128
_MOST_SECONDS = 30.0
_HOPELESS = 6
"""Number of tries by when at least a single atom must have compiled."""


@dataclass(frozen=True, slots=True)
class Culprits:
    """Atoms that make a segment fail to compile: `alone` each by itself, `beside` in pairs."""

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
    """Tries and seconds that a session may still spend on such searches."""

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
    """Return the atoms at fault in `atoms`, which failed to compile together; `NOT_FOUND` without result."""
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
    """Return the last atom of the shortest prefix of candidates that fails together with `partners`."""
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

    def without(
        self,
        judgment: Judgment,
        partitioning: Partitioning,
        step: Step,
        error: BaseException,
        admitted: dict[Atoms, AdmittedSegment],
    ) -> Judgment:
        """Return the judgment without the nodes or the segment that a device failed to compile.

        A segment that is too large is refused in the cached admissions, and so cut in two.
        """
        key, reason = atoms_of(partitioning.plan, step), describe(error)
        device, atoms = self._setting.by_name[step.device], key[1]
        if isinstance(error, DeviceLostError) and not device.is_isolated:
            return banning(judgment, self._setting, {key: Unsupported(Reason.COMPILE_FAILED, reason)})
        culprits = self._find_culprits(partitioning, device, atoms, error)
        is_cut = culprits.is_too_large and len(atoms) > 1
        if is_cut:
            text = f"the segment failed to compile, but its parts compile: {reason}"
            model = model_of(partitioning.model, device, atoms)
            if not isinstance(error, OutOfMemoryError):
                _ban(device, model, _names(partitioning, atoms), text, is_size=True)
            admitted[key] = AdmittedSegment(
                admitted[key].part, Admission(verdict=Unsupported(Reason.MEMORY_LIMIT, text))
            )
        refused = dict.fromkeys(culprits.alone, f"the device failed to compile it: {reason}")
        for atom, partner in culprits.beside:
            (name,) = _names(partitioning, (atom,))[:1]
            refused[partner] = f"the device failed to compile it together with {name!r}: {reason}"
        if not refused and not is_cut:
            return banning(judgment, self._setting, {key: Unsupported(Reason.COMPILE_FAILED, reason)})
        for atom, text in refused.items():
            _ban(device, model_of(partitioning.model, device, (atom,)), _names(partitioning, (atom,)), text)
        bans: dict[Atoms, Unsupported] = {
            (device.name, (atom,)): Unsupported(Reason.COMPILE_FAILED, text) for atom, text in refused.items()
        }
        return barred(banning(judgment, self._setting, bans) if bans else judgment, self._setting)

    def _find_culprits(
        self, partitioning: Partitioning, device: SessionDevice, atoms: Sequence[int], error: BaseException
    ) -> Culprits:
        if isinstance(error, OutOfMemoryError):
            self._budget.tries -= 1
            return Culprits(is_too_large=self._budget.left())
        compiles = self._compiles(partitioning, device)
        if self._budget.left() and self._budget.spend(lambda: compiles(atoms)):
            return NOT_FOUND  # not its contents are at fault, but perhaps cloning a program
        return culprits_of(atoms, compiles, self._budget)

    def _compiles(self, partitioning: Partitioning, device: SessionDevice) -> Callable[[Sequence[int]], bool]:
        def compiles(atoms: Sequence[int]) -> bool:
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

        return compiles


def _ban(device: SessionDevice, model: SegmentModel, nodes: Sequence[str], text: str, *, is_size: bool = False) -> None:
    if device.bans is not None:
        device.bans.add(model, nodes, text, "compile", is_size=is_size)


def _names(partitioning: Partitioning, atoms: Sequence[int]) -> list[str]:
    graph = partitioning.plan.graph
    return [graph.nodes[node].name for atom in atoms for node in graph.atoms[atom]]


def blamed(partitioning: Partitioning, step: Step, error: BaseException) -> Mapping[int, Unsupported]:
    """Return the nodes (positions in `step`) that a device failed to load, except invalid ONNX nodes."""
    refused = blamed_nodes(error, len(step.nodes))
    return {position: text for position, text in refused.items() if not _is_invalid(partitioning, step.nodes[position])}


def _is_invalid(partitioning: Partitioning, node: int) -> bool:
    verdict = partitioning.model.conversion.verdicts[node]
    return isinstance(verdict, Unsupported) and verdict.reason is Reason.INVALID_NODE


def delegated(setting: Setting, plan: Plan, remaining: Step) -> dict[Atoms, Unsupported]:
    """Refuse all accelerated segments, because ONNX Runtime cannot load a remaining segment.

    It may load a contradictory model but not its parts, since their types are known.
    """
    detail = f"ONNX Runtime cannot load segment {remaining.segment}, which would remain for it"
    refusal = Unsupported(Reason.COMPILE_FAILED, detail)
    return {atoms_of(plan, step): refusal for step in plan.steps if step.device in setting.accelerators}


def host_of(setting: Setting, plan: Plan, step: Step) -> SessionDevice:
    """Return the host if it takes every node of a step, otherwise the last resort.

    A pin to the failed device is no refusal by the host; a ban from the host is.
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
    """Compiler of partitionings for one setting."""

    setting: Setting
    make_room: Callable[[], bool] = evict_nothing
    arenas: Arenas = field(init=False)
    """Memory of intermediate values, shared by all plans; isolated devices map it."""

    def __post_init__(self) -> None:
        self.arenas = Arenas(shared=any(device.is_isolated for device in self.setting.devices))
        self.incidents = Incidents(self.setting.constraints.fallback, self.setting.trace)
        for device, kind, message in self.setting.absent:
            self.incidents.add(Incident("load", device, None, (), kind, message, INSTEAD))
        self._repair, self._builder = Repair(self.setting), Builder(self.setting)
        self._said: set[Cause] = set()

    def compile(self, planner: Planner, judgment: Judgment) -> Compiled:
        """Place, cut and compile; repeat without the failed nodes until everything compiles.

        Raises NotDelegatedError if fallback is needed but forbidden, and CompilationError if the CPU refuses nodes too.
        """
        programs = Programs()
        try:
            return self._compile(planner, judgment, programs)
        except BaseException:
            programs.close()
            raise

    def compile_open(self, partitioning: Partitioning, opening: DynamicPartitioning) -> Compiled:
        """Compile a dynamic partitioning; `partitioning` is the one at some shapes, for the report."""
        programs, opened = Programs(), opening.partitioning
        warn_of_idle(partitioning, self._said)
        try:
            failed = self._compile_all(opened, programs, without=opening.fillable)
            if failed:
                step, error = failed[0]
                raise CompilationError(
                    f"{step.device} took segment {step.segment} with dynamic shapes and failed to compile it: "
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
        return self._site.resting

    def _compile(self, planner: Planner, judgment: Judgment, programs: Programs) -> Compiled:
        notes: list[str] = []
        admissions: dict[Atoms, AdmittedSegment] = {}
        host = self.setting.host.name
        partitioning = planner.settle(judgment, admissions)
        warn_of_idle(partitioning, self._said)
        while True:
            refuse_fallback(partitioning)
            failed = self._compile_all(partitioning, programs)
            if not failed:
                programs.keep_only(partitioning.plan)
                note_unanswered(partitioning, self.incidents)
                warn_of_last_resort(partitioning, self._said)
                seconds = {
                    step.segment: programs[atoms_of(partitioning.plan, step)].seconds
                    for step in partitioning.plan.steps
                }
                plan = self._bind(partitioning, programs)
                return Compiled(
                    partitioning=partitioning,
                    plan=plan,
                    notes=tuple(notes),
                    compile_seconds=seconds,
                    bound_to=programs.twins(partitioning.plan),
                )
            reported: list[tuple[Step, BaseException]] = []
            unrepaired = partitioning
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
                        judgment = self._repair.without(judgment, partitioning, step, error, admissions)
                partitioning = planner.settle(judgment, admissions)
            except RulesError:
                for step, error in reported:
                    self._compile_failed(unrepaired, step, error, "and rules allow no other device for these nodes")
                raise
            for step, error in reported:
                instead = _new_places(unrepaired, step, partitioning)
                if self.setting.by_name[step.device].is_host:
                    instead = "so the entire model runs there"
                notes.append(self._compile_failed(unrepaired, step, error, instead))

    def _compile_all(
        self, partitioning: Partitioning, programs: Programs, without: Collection[int] = ()
    ) -> list[tuple[Step, BaseException]]:
        failed: list[tuple[Step, BaseException]] = []
        host = self.setting.host.name
        for step, piece in zip(partitioning.plan.steps, partitioning.pieces, strict=True):
            key = atoms_of(partitioning.plan, step)
            if key in programs or step.segment in without:
                continue
            if failed and step.device == host:
                continue
            try:
                programs.add(key, self._program_or_again(partitioning, step, piece, programs))
            except FAILURES as error:
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
        """Compile a segment; retry once after a transient error, and as long as memory can be freed."""
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
        is_sole, calls = len(partitioning.plan.steps) == 1, calls_about(partitioning, step)
        if piece is not None:
            sharing_key = None if is_sole else program_sharing_key_of(calls.device, piece.part)
            return self._builder.like(piece.part, calls, sharing_key, programs, is_sole=is_sole)
        parts = partitioning.model.parts
        cpu_part = parts.cpu_part(step)
        try:
            return self._builder.built(cpu_part, calls, is_sole=is_sole)
        except CompilationError:
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
        build = partial(self._builder.filled, calls=calls, is_sole=len(opened.plan.steps) == 1)

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
        """Return the CPU fallback, or raise: if the policy forbids it, or `error` if the host cannot load the model."""
        forbidden = self.setting.constraints.fallback_at("run") == "forbid"
        if forbidden and isinstance(error, OtherShapeError):
            self._cpu_fallback_incident(partitioning, error)
        outputs = partitioning.plan.graph.outputs
        try:
            cpu_fallback = None if forbidden else self.on_host(partitioning.model.parts.as_it_was(outputs), outputs)
        except NNAdapterError:
            cpu_fallback = None
        if cpu_fallback is None:
            raise error
        return replace(cpu_fallback, say=partial(self._cpu_fallback_incident, partitioning))

    def on_host(self, part: Part, outputs: tuple[str, ...]) -> CpuFallback:
        calls = NamedCalls(self.setting.host.name)
        built = self._builder.built(part, calls)
        return CpuFallback(calls.device, self._site.pools(calls)(built.program), built.inputs, outputs)

    def _cpu_fallback_incident(self, partitioning: Partitioning, error: NNAdapterError) -> Incident:
        plan = partitioning.plan
        nodes = [node.name for node in plan.graph.nodes]
        message = f"a run cannot continue as planned: {describe(error)}"
        instead = f"{self.setting.host.display_name} runs the original model"
        return fall_back("run", plan.steps[0], nodes, message, instead, error, self.incidents)

    def _run_failed(
        self, partitioning: Partitioning, slots: Mapping[str, int], step: Step, error: BaseException
    ) -> Substitute:
        if self.incidents.policy("run") == "forbid":
            self._say_run_failed(partitioning, step, error, "")
        message = run_failure(step, nodes_of(partitioning, step), describe(error))
        return self._make_substitute(partitioning, slots, step, message, error)

    def _reference(self, partitioning: Partitioning, slots: Mapping[str, int], step: Step) -> Substitute:
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
        if not slots.keys() >= set(built.inputs):
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
            f"{message}; no other device can run the segment: {last}", device=step.device, segment=step.segment
        ) from error


def _new_places(old: Partitioning, step: Step, new: Partitioning) -> str:
    names = nodes_of(old, step)
    name_set = set(names)
    steps = [(new_step.device, len(name_set.intersection(nodes_of(new, new_step)))) for new_step in new.plan.steps]
    counts: dict[str, int] = {}
    for device, count in steps:
        if count:
            counts[device] = counts.get(device, 0) + count
    stay = counts.pop(step.device, 0)
    destinations = " and ".join(repr(device) for device in counts) or "other devices"
    if not stay:
        return f"these nodes go to {destinations}"
    if counts:
        return f"{stay} of these {len(names)} nodes stay, the others go to {destinations}"
    segments = sum(1 for device, count in steps if count and device == step.device)
    return f"these nodes stay on {step.device!r}" + (f", cut into {segments} segments" if segments > 1 else "")
