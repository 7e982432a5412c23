"""Compiler of a session: compiles the segments of a partitioning and binds them to a plan.

If a device fails to compile a segment, `repair.py` finds the nodes at fault, the planner places them elsewhere, and the
new segments are compiled. Substitutes for steps and plans are compiled here too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, partial

from nnadapter import errors
from nnadapter.candidates.part import Part
from nnadapter.drivers import Reason, Unsupported
from nnadapter.drivers.arenas import Arenas
from nnadapter.drivers.boundary import blamed_nodes
from nnadapter.drivers.failures import NamedCalls
from nnadapter.engine import fallback
from nnadapter.engine.binder import Bindable, Binder
from nnadapter.engine.bound_steps import OtherShapeError, Substitute
from nnadapter.engine.compiled import Compiled
from nnadapter.engine.executor import CompiledPlan, CpuFallback
from nnadapter.engine.plan_devices import PlanDevices, evict_nothing
from nnadapter.engine.repair import Repair
from nnadapter.engine.segment_programs import SegmentCompiler, SegmentProgram, SegmentPrograms, atoms_of
from nnadapter.engine.specialization import SpecializedPrograms
from nnadapter.errors import CompilationError, NNAdapterError, describe
from nnadapter.planning.absent import INSTEAD
from nnadapter.planning.dynamic_shapes import DynamicPartitioning
from nnadapter.planning.indices import checks_by_segment
from nnadapter.planning.judgment import Atoms, Judgment, banning
from nnadapter.planning.overlap import overlap_of
from nnadapter.planning.planner import Planner
from nnadapter.planning.setting import SessionDevice, Setting
from nnadapter.planning.settling import AdmittedSegment, Partitioning
from nnadapter.records import dataclass, field, replace
from partition.plan import Step

Failure = tuple[Step, BaseException]


@dataclass(eq=False)
class Compiler:
    """Compiler of partitionings on the devices of one session."""

    setting: Setting
    make_room: Callable[[], bool] = evict_nothing
    arenas: Arenas = field(init=False)
    """Memory of intermediate values for all plans; shared memory if a device is isolated."""

    def __post_init__(self) -> None:
        self.arenas = Arenas(shared=any(device.is_isolated for device in self.setting.devices))
        self.incidents = fallback.Incidents(self.setting.constraints.fallback, self.setting.trace)
        for device, kind, message in self.setting.absent:
            self.incidents.add(fallback.Incident("load", device, None, (), kind, message, INSTEAD))
        self._repair, self._segments = Repair(self.setting), SegmentCompiler(self.setting)
        self._warned: set[fallback.Cause] = set()

    @property
    def pause_texts(self) -> tuple[str, ...]:
        return self._devices.pause_texts

    def compile(self, planner: Planner, judgment: Judgment) -> Compiled:
        """Place nodes, cut segments and compile them; repeat without failed nodes until all segments compile.

        Raises NotDelegatedError if fallback is needed but forbidden, and CompilationError if the CPU refuses nodes.
        """
        programs = SegmentPrograms()
        try:
            return self._compile(planner, judgment, programs)
        except BaseException:
            programs.close()
            raise

    def compile_dynamic(self, partitioning: Partitioning, dynamic: DynamicPartitioning) -> Compiled:
        """Compile a dynamic partitioning; `partitioning` is its static original, for the report.

        Segments in `dynamic.specializable` are not compiled, since their devices take only static shapes.
        """
        programs, planned = SegmentPrograms(), dynamic.partitioning
        fallback.warn_of_idle(partitioning, self._warned)
        try:
            failures = self._compile_segments(planned, programs, without=dynamic.specializable)
            if failures:
                step, error = failures[0]
                raise CompilationError(
                    f"{step.device} accepted segment {step.segment} with dynamic shapes and failed to compile it: "
                    f"{describe(error)}",
                    device=step.device,
                    segment=step.segment,
                ) from error
            if dynamic.specializable:
                return self._bind_template(partitioning, dynamic, programs)
            bound = programs.of(planned.plan)
            return Compiled(
                partitioning=partitioning,
                plan=self._bind(planned, bound, dynamic),
                compile_seconds={segment: program.seconds for segment, program in enumerate(bound)},
                dynamic=dynamic,
            )
        except BaseException:
            programs.close()
            raise

    def cpu_fallback(self, part: Part, outputs: tuple[str, ...]) -> CpuFallback:
        calls = NamedCalls(self.setting.host.name)
        built = self._segments.compile(part, calls)
        return CpuFallback(calls.device, self._devices.pools(calls)(built.program), built.inputs, outputs)

    def _compile(self, planner: Planner, judgment: Judgment, programs: SegmentPrograms) -> Compiled:
        notes: list[str] = []
        admissions: dict[Atoms, AdmittedSegment] = {}
        partitioning = planner.settle(judgment, admissions)
        fallback.warn_of_idle(partitioning, self._warned)
        fallback.refuse_fallback(partitioning)
        while failures := self._compile_segments(partitioning, programs):
            judgment, partitioning = self._plan_without_failures(
                planner, judgment, partitioning, failures, admissions, notes
            )
            fallback.refuse_fallback(partitioning)
        programs.keep_only(partitioning.plan)
        fallback.note_unanswered(partitioning, self.incidents)
        fallback.warn_of_last_resort(partitioning, self._warned)
        bound = programs.of(partitioning.plan)
        return Compiled(
            partitioning=partitioning,
            plan=self._bind(partitioning, bound),
            notes=tuple(notes),
            compile_seconds={segment: program.seconds for segment, program in enumerate(bound)},
            cloned_from=programs.clones(partitioning.plan),
        )

    def _compile_segments(
        self, partitioning: Partitioning, programs: SegmentPrograms, without: Collection[int] = ()
    ) -> list[Failure]:
        """Compile the segments that `programs` lacks, except `without`, and add them; return the failures.

        After a failure the host's segments are not compiled, since the graph will be cut again.
        """
        failures: list[Failure] = []
        host = self.setting.host.name
        for step, admitted in zip(partitioning.plan.steps, partitioning.pieces, strict=True):
            key = atoms_of(partitioning.plan, step)
            if key in programs or step.segment in without or (failures and step.device == host):
                continue
            try:
                programs.add(key, self._compile_or_retry(partitioning, step, admitted, programs))
            except errors.FAILURES as error:
                if (
                    step.device == host
                    and not _nodes_at_fault(partitioning, step, error)
                    and not _refusals_by_accelerators(partitioning, step)
                ):
                    raise
                failures.append((step, error))
        return failures

    def _compile_or_retry(
        self, partitioning: Partitioning, step: Step, admitted: AdmittedSegment | None, programs: SegmentPrograms
    ) -> SegmentProgram:
        """Compile a segment.

        Retry once after a transient error, and after an OutOfMemoryError as long as idle plans can be closed.
        """
        while True:
            try:
                return self._compile_segment(partitioning, step, admitted, programs)
            except errors.OutOfMemoryError:
                if not self.make_room():
                    raise
            except errors.TransientError as error:
                program = self._compile_segment(partitioning, step, admitted, programs)
                self._report_compile_failure(partitioning, step, error, fallback.REPEATED)
                return program

    def _compile_segment(
        self, partitioning: Partitioning, step: Step, admitted: AdmittedSegment | None, programs: SegmentPrograms
    ) -> SegmentProgram:
        is_sole, calls = len(partitioning.plan.steps) == 1, _calls_about(partitioning, step)
        if admitted is not None:
            return self._segments.clone_or_compile(admitted.part, calls, programs, is_sole=is_sole)
        parts = partitioning.model.parts
        cpu_part = parts.cpu_part(step)
        try:
            return self._segments.compile(cpu_part, calls, is_sole=is_sole)
        except CompilationError:
            return self._segments.compile(parts.part(step), calls)

    def _plan_without_failures(
        self,
        planner: Planner,
        judgment: Judgment,
        partitioning: Partitioning,
        failures: Sequence[Failure],
        admissions: dict[Atoms, AdmittedSegment],
        notes: list[str],
    ) -> tuple[Judgment, Partitioning]:
        """Ban the nodes at fault from their device, and place the model again.

        If an accelerator's error names no nodes, a search finds them. If the host's error names no nodes, the host gets
        the entire model.
        """
        host, reported = self.setting.host, list[Failure]()
        try:
            for step, error in failures:
                is_host, blamed = step.device == host.name, _nodes_at_fault(partitioning, step, error)
                if not (blamed and is_host):
                    if self.incidents.policy("compile") == "forbid":
                        self._report_compile_failure(partitioning, step, error, "")
                    reported.append((step, error))
                if blamed:
                    judgment = planner.blame(judgment, step, blamed)
                elif is_host:
                    judgment = banning(judgment, self.setting, _refusals_by_accelerators(partitioning, step))
                    break
                else:
                    judgment = self._repair.without_failed(judgment, partitioning, step, error, admissions)
            repaired = planner.settle(judgment, admissions)
        except errors.RulesError:
            for step, error in reported:
                self._report_compile_failure(
                    partitioning, step, error, "and rules allow no other device for these nodes"
                )
            raise
        for step, error in reported:
            is_host = step.device == host.name
            instead = "so the entire model runs there" if is_host else _new_places(partitioning, step, repaired)
            notes.append(self._report_compile_failure(partitioning, step, error, instead))
        return judgment, repaired

    def _report_compile_failure(
        self, partitioning: Partitioning, step: Step, error: BaseException, instead: str
    ) -> str:
        nodes = _nodes_of(partitioning, step)
        message = (
            f"{step.device!r} accepted segment {step.segment} ({fallback.named(nodes)}) and failed to compile it: "
            f"{describe(error)}"
        )
        fallback.fall_back("compile", step, nodes, message, instead, error, self.incidents)
        return message

    @cached_property
    def _devices(self) -> PlanDevices:
        setting = self.setting
        return PlanDevices(
            accelerators=setting.accelerators,
            owning=setting.owning,
            threading={device.name: device.capability.threading for device in setting.devices},
            trace=setting.trace,
            raw=frozenset(device.name for device in setting.devices if device.has_raw_inputs),
            pauses=setting.constraints.fallback_at("run") != "forbid",
            make_room=self.make_room,
        )

    def _bind(
        self,
        partitioning: Partitioning,
        programs: Sequence[SegmentProgram],
        dynamic: DynamicPartitioning | None = None,
    ) -> CompiledPlan:
        binder = self._binder(partitioning, {segment: program.inputs for segment, program in enumerate(programs)})
        steps = [
            binder.step(segment, program.program, program.inputs, takes_sizes=program.takes_sizes)
            for segment, program in enumerate(programs)
        ]
        return binder.plan(steps, None if dynamic is None else dynamic.sizes)

    def _bind_template(
        self, partitioning: Partitioning, dynamic: DynamicPartitioning, programs: SegmentPrograms
    ) -> Compiled:
        plan = dynamic.partitioning.plan
        shared = {
            step.segment: programs[atoms_of(plan, step)]
            for step in plan.steps
            if step.segment not in dynamic.specializable
        }
        reads = {segment: part.inputs for segment, part in dynamic.specializable.items()}
        reads |= {segment: program.inputs for segment, program in shared.items()}
        binder = self._binder(dynamic.partitioning, reads)
        shared_steps = {
            segment: (
                binder.step(segment, program.program, program.inputs, takes_sizes=program.takes_sizes),
                program.seconds,
            )
            for segment, program in shared.items()
        }
        calls = {step.segment: _calls_about(dynamic.partitioning, step) for step in plan.steps}
        build = partial(self._segments.compile_specialized, calls=calls, is_sole=len(plan.steps) == 1)

        def wrap(plan: CompiledPlan, seconds: Mapping[int, float], programs: SpecializedPrograms[Compiled]) -> Compiled:
            return Compiled(
                partitioning=partitioning, plan=plan, compile_seconds=seconds, dynamic=dynamic, programs=programs
            )

        specialized = SpecializedPrograms(dynamic.specializable, dynamic.sizes, binder, shared_steps, build, wrap)
        return replace(wrap(binder.plan([]), {}, specialized), is_template=True)

    def _binder(self, partitioning: Partitioning, reads: Mapping[int, tuple[str, ...]]) -> Binder:
        plan, model = partitioning.plan, partitioning.model
        bindable = Bindable(
            plan=plan,
            reads=reads,
            overlap=overlap_of(partitioning, reads),
            constants=model.specialized.constants,
            nodes_of=partial(_nodes_of, partitioning),
            incidents=self.incidents,
            make_substitute=partial(self._make_substitute, partitioning),
            checks=checks_by_segment(model, plan, self.setting.accelerators, reads),
            make_cpu_fallback=partial(self._make_cpu_fallback, partitioning),
        )
        return Binder(self._devices, self.arenas, bindable)

    def _make_substitute(
        self, partitioning: Partitioning, slots: Mapping[str, int], step: Step, error: BaseException | None
    ) -> Substitute:
        """Compile the nodes of a step for the host, or for the last resort if the host refuses them.

        `error` is the failure of the step; None if results are only compared.
        """
        nodes = _nodes_of(partitioning, step)
        if error is None:
            message = f"segment {step.segment} of device {step.device!r} cannot be compared with the CPU"
        else:
            message = fallback.run_failure(step, nodes, describe(error))
        part, last_resort = partitioning.model.parts.part(step), self.setting.last_resort
        reason: CompilationError | None = None
        for device in dict.fromkeys((_host_of(partitioning, step), last_resort)):
            calls = NamedCalls(device.name, step.segment, nodes)
            try:
                built = self._segments.compile(part, calls)
                break
            except CompilationError as failure:
                if device is not last_resort and not _nodes_at_fault(partitioning, step, failure):
                    raise
                reason = reason or failure
        else:
            raise errors.ExecutionError(
                f"{message}; no other device can run the segment: {reason}", device=step.device, segment=step.segment
            ) from error
        if not slots.keys() >= set(built.inputs):
            raise errors.ExecutionError(message, device=step.device, segment=step.segment, phase="run") from error
        inputs = tuple(slots[name] for name in built.inputs)
        return Substitute(device.name, device.display_name, self._devices.pools(calls)(built.program), inputs)

    def _make_cpu_fallback(self, partitioning: Partitioning, error: NNAdapterError) -> CpuFallback:
        forbidden = self.setting.constraints.fallback_at("run") == "forbid"
        if forbidden and isinstance(error, OtherShapeError):
            self._report_cpu_fallback(partitioning, error)
        outputs = partitioning.plan.graph.outputs
        try:
            cpu_fallback = (
                None if forbidden else self.cpu_fallback(partitioning.model.parts.as_it_was(outputs), outputs)
            )
        except NNAdapterError:
            cpu_fallback = None
        if cpu_fallback is None:
            raise error
        return replace(cpu_fallback, say=partial(self._report_cpu_fallback, partitioning))

    def _report_cpu_fallback(self, partitioning: Partitioning, error: NNAdapterError) -> fallback.Incident:
        plan = partitioning.plan
        nodes = [node.name for node in plan.graph.nodes]
        message = f"a run cannot continue as planned: {describe(error)}"
        instead = f"{self.setting.host.display_name} runs the original model"
        return fallback.fall_back("run", plan.steps[0], nodes, message, instead, error, self.incidents)


def _nodes_of(partitioning: Partitioning, step: Step) -> list[str]:
    return [partitioning.plan.graph.nodes[node].name for node in step.nodes]


def _calls_about(partitioning: Partitioning, step: Step) -> NamedCalls:
    return NamedCalls(step.device, step.segment, _nodes_of(partitioning, step))


def _nodes_at_fault(partitioning: Partitioning, step: Step, error: BaseException) -> Mapping[int, Unsupported]:
    """Return the nodes (positions in `step`) that an error blames, except invalid ONNX nodes."""
    verdicts = partitioning.model.conversion.verdicts

    def is_invalid(node: int) -> bool:
        verdict = verdicts[node]
        return isinstance(verdict, Unsupported) and verdict.reason is Reason.INVALID_NODE

    refused = blamed_nodes(error, len(step.nodes))
    return {position: reason for position, reason in refused.items() if not is_invalid(step.nodes[position])}


def _refusals_by_accelerators(partitioning: Partitioning, remaining: Step) -> dict[Atoms, Unsupported]:
    """Return a refusal of every accelerated segment, so that ONNX Runtime gets the entire model.

    ONNX Runtime may load a model with contradictory types, but refuse the segment `remaining`, which declares its
    types.
    """
    detail = f"ONNX Runtime cannot load segment {remaining.segment}, which would remain for it"
    refusal = Unsupported(Reason.COMPILE_FAILED, detail)
    plan, accelerators = partitioning.plan, partitioning.setting.accelerators
    return {atoms_of(plan, step): refusal for step in plan.steps if step.device in accelerators}


def _host_of(partitioning: Partitioning, step: Step) -> SessionDevice:
    """Return the host if it supports every node of a step, otherwise the last resort.

    A user's ban of a node excludes the host; a user's pin to the failed device does not.
    """
    setting, plan = partitioning.setting, partitioning.plan
    host = setting.host
    has_bans = any(ban.device == host.name for ban in setting.constraints.rules.bans)

    def takes(node: int) -> bool:
        verdict = plan.verdicts[host.name][plan.graph.atom_of[node]]
        is_pinned = isinstance(verdict, Unsupported) and verdict.reason is Reason.RULE and not has_bans
        return bool(verdict) or is_pinned

    return host if all(map(takes, step.nodes)) else setting.last_resort


def _new_places(old: Partitioning, step: Step, new: Partitioning) -> str:
    names = set(_nodes_of(old, step))
    counts: dict[str, int] = {}
    segments = 0
    for new_step in new.plan.steps:
        count = len(names.intersection(_nodes_of(new, new_step)))
        if count:
            counts[new_step.device] = counts.get(new_step.device, 0) + count
            segments += new_step.device == step.device
    stay = counts.pop(step.device, 0)
    destinations = " and ".join(repr(device) for device in counts) or "other devices"
    if not stay:
        return f"these nodes go to {destinations}"
    if counts:
        return f"{stay} of these {len(step.nodes)} nodes stay, the others go to {destinations}"
    return f"these nodes stay on {step.device!r}" + (f", cut into {segments} segments" if segments > 1 else "")
