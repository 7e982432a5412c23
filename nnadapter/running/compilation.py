"""The second half of the way: an analyzed model -> compiled programs, bound to slots.

A device that said yes and fails to compile has broken its promise: its segment is taken from it, the graph is cut
again, and the fact is kept for the report. Programs that were compiled already are used again.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from nnadapter.drivers.border import bind, blamed_nodes, checked_program
from nnadapter.drivers.crashes import named_call
from nnadapter.drivers.interface import Program
from nnadapter.errors import (
    FAILURES,
    CompilationError,
    DriverError,
    ExecutionError,
    NNAdapterError,
    describe,
)
from nnadapter.ir.model import Model
from nnadapter.ir.size_class import SizeClass
from nnadapter.memory.arenas import Arenas
from nnadapter.offering.filled_parts import FillablePart
from nnadapter.offering.part import Part
from nnadapter.planning.alongside import overlap_of
from nnadapter.planning.judgment import Atoms, Judgment, banning
from nnadapter.planning.opening import Opened
from nnadapter.planning.planner import Planner
from nnadapter.planning.setting import SessionDevice, Setting
from nnadapter.planning.settling import AdmittedSegment, Partitioning
from nnadapter.running.binder import Bindable, Binder
from nnadapter.running.bound_step import Substitute
from nnadapter.running.built import (
    About,
    Built,
    Likeness,
    Programs,
    about_step,
    atoms_of,
    bound_by,
    likeness_of,
    nodes_of,
)
from nnadapter.running.compiled import Compiled
from nnadapter.running.executor import CompiledPlan
from nnadapter.running.failing import fall_back
from nnadapter.running.fallback import named, refuse_fallback, warn_of_idle, warn_of_last_resort
from nnadapter.running.filled import Filled, FilledClass
from nnadapter.running.filling import Build, Filling, admission_of
from nnadapter.running.site import Site
from nnadapter.running.slots import OtherShapeError
from nnadapter.running.traced_programs import making
from nnadapter.running.whole import Whole
from partition.plan import Plan, Step
from partition.verdict import Reason, Unsupported


@dataclass(eq=False)
class Compiler:
    """Compiles what was partitioned in one setting."""

    setting: Setting
    arenas: Arenas = field(default_factory=Arenas)
    """Memory for values between steps, which all plans share."""

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

    def compile_open(self, partitioning: Partitioning, opening: Opened) -> Compiled:
        """Compile a partitioning for many sizes.

        Args:
            partitioning: at some shapes, as the report tells of it.
            opening: the same with its sizes left open.

        Raises:
            CompilationError: a device took a segment with open sizes, and fails to compile it.
        """
        programs, opened = Programs(), opening.partitioning
        warn_of_idle(partitioning)
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
            seconds = {segment: each.seconds for segment, each in built.items()}
            plan = self._bind(opened, programs, opening.sizes)
            return Compiled(partitioning, plan, (), seconds, opening=opening)
        except BaseException:
            programs.close()
            raise

    def _compile(self, planner: Planner, judgment: Judgment, programs: Programs) -> Compiled:
        notes: list[str] = []
        known: dict[Atoms, AdmittedSegment] = {}
        host = self.setting.host.name
        partitioning = planner.settle(judgment, known)
        warn_of_idle(partitioning)
        while True:
            refuse_fallback(partitioning)
            failed = self._compile_all(partitioning, programs)
            if not failed:
                programs.keep_only(partitioning.plan)
                warn_of_last_resort(partitioning)
                taken = {
                    step.segment: programs[atoms_of(partitioning.plan, step)].seconds
                    for step in partitioning.plan.steps
                }
                plan = self._bind(partitioning, programs)
                return Compiled(partitioning, plan, tuple(notes), taken, programs.twins(partitioning.plan))
            for step, error in failed:
                blamed = _blamed(partitioning, step, error)
                if not (blamed and step.device == host):
                    notes.append(self._compile_failed(partitioning, step, error))
                if blamed:
                    judgment = planner.blame(judgment, step, blamed)
                    continue
                if step.device == host:
                    judgment = banning(judgment, self.setting, self._delegated(partitioning.plan, step))
                    break
                why = Unsupported(Reason.COMPILE_FAILED, describe(error))
                judgment = banning(judgment, self.setting, {atoms_of(partitioning.plan, step): why})
            partitioning = planner.settle(judgment, known)

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
                programs.add(key, self._program(partitioning, step, piece, programs))
            except FAILURES as error:  # a driver may raise anything; this is its border
                if (
                    step.device == host
                    and not _blamed(partitioning, step, error)
                    and not self._delegated(partitioning.plan, step)
                ):
                    raise
                failed.append((step, error))
        return failed

    def _program(
        self, partitioning: Partitioning, step: Step, piece: AdmittedSegment | None, programs: Programs
    ) -> Built:
        alone, about = len(partitioning.plan.steps) == 1, about_step(partitioning, step)
        if piece is not None and alone:
            return self._built(step.device, piece.part, about, alone=True)
        if piece is not None:
            likeness = likeness_of(step.device, piece.part)
            bound = self._bound(step.device, piece.part, about, likeness, programs)
            return bound or replace(self._built(step.device, piece.part, about), likeness=likeness)
        parts = partitioning.model.parts
        whole = parts.cpu_part(step)
        try:
            return self._built(step.device, whole, about, alone=alone)
        except CompilationError:
            # The model as it was may hold a node that ONNX Runtime does not take and that is known before the run.
            return self._built(step.device, parts.part(step), about)

    def _built(self, device: str, part: Part, about: About = (), *, alone: bool = False) -> Built:
        started = time.perf_counter()
        context = self.setting.by_name[device].context
        call = "compile_whole" if alone else "compile"
        with making(self.setting.trace, device, "compile", *about):
            program = checked_program(named_call(device, call, *about)(getattr(context, call), part.model))
        is_told_sizes = isinstance(part.model, Model) and part.model.is_open
        return Built(program, part.inputs, time.perf_counter() - started, is_told_sizes=is_told_sizes)

    def _bound(
        self, device: str, part: Part, about: About, likeness: Likeness | None, programs: Programs
    ) -> Built | None:
        """The part by a program of one that is like it; None where it has to be compiled."""
        started = time.perf_counter()
        for twin in programs.alike(likeness):
            context = self.setting.by_name[device].context
            with making(self.setting.trace, device, "bind", *about):
                bound = named_call(device, "bind", *about)(bind, context, programs[twin].program, part.model)
            if bound is not None:
                return Built(bound, part.inputs, time.perf_counter() - started, likeness, twin=twin)
        return None

    def _compile_failed(self, partitioning: Partitioning, step: Step, error: BaseException) -> str:
        nodes = [partitioning.plan.graph.nodes[node].name for node in step.nodes]
        message = (
            f"device {step.device!r} took segment {step.segment} ({named(nodes)}) and failed to compile it: "
            f"{describe(error)}"
        )
        instead = "these nodes go to the next device"
        if self.setting.by_name[step.device].is_host:
            instead = "so nothing is cut out of the model, and it runs there as a whole"
        self._fall_back(CompilationError, step, nodes, message, instead, error)
        return message

    def _bind(self, partitioning: Partitioning, programs: Programs, sizes: SizeClass | None = None) -> CompiledPlan:
        built = [programs[atoms_of(partitioning.plan, step)] for step in partitioning.plan.steps]
        segments = [step.segment for step in partitioning.plan.steps]
        binder = self._binder(partitioning, dict(zip(segments, [each.inputs for each in built], strict=True)))
        return binder.plan([bound_by(binder, position, each) for position, each in enumerate(built)], sizes)

    def _binder(self, partitioning: Partitioning, reads: Mapping[int, tuple[str, ...]]) -> Binder:
        bindable = Bindable(
            plan=partitioning.plan,
            reads=reads,
            overlap=overlap_of(partitioning, reads),
            constants=partitioning.model.specialized.constants,
            nodes_of=partial(nodes_of, partitioning),
            run_failed=partial(self._run_failed, partitioning),
            whole=partial(self._whole, partitioning),
        )
        return Binder(self._site, self.arenas, bindable)

    @cached_property
    def _site(self) -> Site:
        setting = self.setting
        threading = {device.name: device.capability.threading for device in setting.devices}
        return Site(accelerators=setting.accelerators, owning=setting.owning, threading=threading, trace=setting.trace)

    def _filling(self, partitioning: Partitioning, opening: Opened, programs: Programs) -> Compiled:
        """The class of a plan some of whose segments are compiled for each set of sizes."""
        opened = opening.partitioning
        steps = enumerate(opened.plan.steps)
        built = {
            position: programs[atoms_of(opened.plan, step)]
            for position, step in steps
            if step.segment not in opening.fillable
        }
        reads = {segment: part.inputs for segment, part in opening.fillable.items()}
        reads |= {opened.plan.steps[position].segment: each.inputs for position, each in built.items()}
        binder = self._binder(opened, reads)
        shared = {position: (bound_by(binder, position, each), each.seconds) for position, each in built.items()}

        def building() -> Build:
            made = Programs()

            def build(step: Step, _: FillablePart, part: Part, __: tuple[Any, ...]) -> tuple[Program, float]:
                admitted = AdmittedSegment(part, admission_of(self.setting.by_name[step.device].context, step, part))
                built = self._program(opened, step, admitted, made)
                made.add(atoms_of(opened.plan, step), built)
                return built.program, built.seconds

            return build

        def wrap(plan: CompiledPlan, seconds: Mapping[int, float], of: Filling[Filled]) -> Filled:
            return Filled(partitioning, plan, (), seconds, opening=opening, of=of)

        fillable = {
            position: opening.fillable[step.segment]
            for position, step in enumerate(opened.plan.steps)
            if step.segment in opening.fillable
        }
        filling = Filling(opened.plan.steps, fillable, opening.sizes, binder, shared, building, wrap)
        return FilledClass(partitioning, binder.plan([]), (), {}, opening=opening, filling=filling)

    def _whole(self, partitioning: Partitioning, error: NNAdapterError) -> Whole:
        """The model as it was, on the host. Raises where the policy forbids that, and `error` where the host cannot."""
        forbidden = self.setting.constraints.fallback == "forbid"
        if forbidden and isinstance(error, OtherShapeError):
            self._given_up(partitioning, error)
        host, outputs = self.setting.host, partitioning.plan.graph.outputs
        try:
            built = None if forbidden else self._built(host.name, partitioning.model.parts.as_it_was(outputs))
        except NNAdapterError:
            built = None
        if built is None:
            raise error
        pool = self._site.pool(host.name, built.program)
        return Whole(host.name, pool, built.inputs, outputs, partial(self._given_up, partitioning))

    def _given_up(self, partitioning: Partitioning, error: NNAdapterError) -> None:
        plan = partitioning.plan
        nodes = [node.name for node in plan.graph.nodes]
        message = f"a run cannot go on as it was planned: {describe(error)}"
        instead = f"{self.setting.host.display_name} runs the model as it was"
        self._fall_back(ExecutionError, plan.steps[0], nodes, message, instead, error)

    def _run_failed(
        self, partitioning: Partitioning, slots: Mapping[str, int], step: Step, error: BaseException
    ) -> Substitute:
        """What runs a failed step instead: the host, or the last resort. Raises where the policy says so."""
        nodes = [partitioning.plan.graph.nodes[node].name for node in step.nodes]
        message = (
            f"device {step.device!r} failed while it ran segment {step.segment} ({named(nodes)}): {describe(error)}"
        )
        device = self._host_of(partitioning.plan, step)
        fall_back = partial(self._fall_back, ExecutionError, step, nodes, message, error=error)
        if self.setting.constraints.fallback == "forbid":
            fall_back(instead="")
        device, built = self._built_instead(device, partitioning, message, step, error)
        if not slots.keys() >= set(built.inputs):  # of what stays inside of another segment it may ask for the size
            raise ExecutionError(message, device=step.device, segment=step.segment) from error
        fall_back(instead=f"it runs on {device.display_name} instead")
        return Substitute(
            device.name,
            device.display_name,
            self._site.pool(device.name, built.program, *about_step(partitioning, step)),
            tuple(slots[name] for name in built.inputs),
        )

    def _built_instead(
        self, device: SessionDevice, partitioning: Partitioning, message: str, step: Step, error: BaseException
    ) -> tuple[SessionDevice, Built]:
        """A failed step compiled for `device`, or for the last resort."""
        part, last_resort = partitioning.model.parts.part(step), self.setting.last_resort
        try:
            return device, self._built(device.name, part, about_step(partitioning, step))
        except CompilationError as failure:
            if device is not last_resort and not _blamed(partitioning, step, failure):
                raise
            last = failure
        if device is not last_resort:
            with suppress(CompilationError):
                return last_resort, self._built(last_resort.name, part, about_step(partitioning, step))
        raise ExecutionError(
            f"{message}; nothing else runs it: {last}", device=step.device, segment=step.segment
        ) from error

    def _host_of(self, plan: Plan, step: Step) -> SessionDevice:
        """The host, if it takes every node of a step as far as is known, else the last resort."""
        taken = plan.verdicts[self.setting.host.name]
        takes = all(taken[plan.graph.atom_of[node]] for node in step.nodes)
        return self.setting.host if takes else self.setting.last_resort

    def _delegated(self, plan: Plan, left: Step) -> dict[Atoms, Unsupported]:
        """Every segment on a device that accelerates, refused for what cutting it out left behind.

        ONNX Runtime loads whole models that contradict themselves, and not always the parts, of which more is known.
        """
        detail = f"ONNX Runtime does not load segment {left.segment}, which is left then"
        why = Unsupported(Reason.COMPILE_FAILED, detail)
        return {atoms_of(plan, step): why for step in plan.steps if step.device in self.setting.accelerators}

    def _fall_back(
        self,
        kind: type[DriverError],
        step: Step,
        nodes: Sequence[str],
        message: str,
        instead: str,
        error: BaseException,
    ) -> None:
        """Say what a device failed to do as the policy wants it said: an error, a warning, or nothing."""
        fall_back(kind, step, nodes, message, instead, error, self.setting.constraints.fallback, self.setting.trace)


def _blamed(partitioning: Partitioning, step: Step, error: BaseException) -> Mapping[int, Unsupported]:
    """The nodes (positions in `step`) that a device is to blame for not loading; what is no valid ONNX is not."""
    refused = blamed_nodes(error, len(step.nodes))
    return {position: why for position, why in refused.items() if not _is_invalid(partitioning, step.nodes[position])}


def _is_invalid(partitioning: Partitioning, node: int) -> bool:
    verdict = partitioning.model.conversion.verdicts[node]
    return isinstance(verdict, Unsupported) and verdict.reason is Reason.INVALID_NODE
