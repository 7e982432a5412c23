"""The second half of the way: an analyzed model -> compiled programs, bound to slots.

A device that said yes and fails to compile has broken its promise: its segment is taken from it, the graph is cut
again, and the fact is kept for the report. Programs that were compiled already are used again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from nnadapter.drivers.arenas import Arenas
from nnadapter.drivers.failures import NamedCalls
from nnadapter.errors import (
    FAILURES,
    CompilationError,
    ExecutionError,
    NNAdapterError,
    OutOfMemoryError,
    RulesError,
    TransientError,
    describe,
)
from nnadapter.ir.guarded_shapes import GuardedShapes
from nnadapter.offering.part import Part
from nnadapter.planning.absent import INSTEAD
from nnadapter.planning.alongside import overlap_of
from nnadapter.planning.indices import checks_by_segment
from nnadapter.planning.judgment import Atoms, Judgment, banning
from nnadapter.planning.opening import DynamicPartitioning
from nnadapter.planning.planner import Planner
from nnadapter.planning.setting import SessionDevice, Setting
from nnadapter.planning.settling import AdmittedSegment, Partitioning
from nnadapter.running.binder import Bindable, Binder
from nnadapter.running.bound_step import OtherShapeError, Substitute
from nnadapter.running.builder import (
    Builder,
    Built,
    Programs,
    atoms_of,
    bound_by,
    calls_about,
    nodes_of,
    program_sharing_key_of,
)
from nnadapter.running.compiled import Compiled
from nnadapter.running.executor import CompiledPlan
from nnadapter.running.failing import REPEATED, fall_back, named, run_failure
from nnadapter.running.fallback import Cause, note_unanswered, refuse_fallback, warn_of_idle, warn_of_last_resort
from nnadapter.running.filling import SpecializedPlan, SpecializedPlans, SpecializedPrograms
from nnadapter.running.incidents import Incident, Incidents
from nnadapter.running.plan_devices import PlanDevices, evict_nothing
from nnadapter.running.repair import Repair, blamed, delegated, host_of
from nnadapter.running.whole import CpuFallback
from partition.plan import Step


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
            return Compiled(partitioning, plan, (), seconds, opening=opening)
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
                return Compiled(partitioning, plan, tuple(notes), taken, programs.twins(partitioning.plan))
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

        def wrap(
            plan: CompiledPlan, seconds: Mapping[int, float], of: SpecializedPrograms[SpecializedPlan]
        ) -> SpecializedPlan:
            return SpecializedPlan(partitioning, plan, (), seconds, opening=opening, of=of)

        fillable = {
            position: opening.fillable[step.segment]
            for position, step in enumerate(opened.plan.steps)
            if step.segment in opening.fillable
        }
        filling = SpecializedPrograms(opened.plan.steps, fillable, opening.sizes, binder, shared, build, wrap)
        return SpecializedPlans(partitioning, binder.plan([]), (), {}, opening=opening, filling=filling)

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
