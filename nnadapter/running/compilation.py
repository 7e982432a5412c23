"""The second half of the way: an analysed model -> compiled programs, bound to slots.

A device that said yes and fails to compile has broken its promise: its segment is taken from it, the graph is cut
again, and the fact is kept for the report. Programs that were compiled already are used again.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from nnadapter.closing import close_all
from nnadapter.drivers.border import FAILURES, OutputCheck, checked_program, describe
from nnadapter.drivers.capability import Threading
from nnadapter.drivers.interface import Program
from nnadapter.drivers.registry import device_lock
from nnadapter.drivers.selection import CPU, HOSTS, REFERENCE
from nnadapter.errors import (
    CompilationError,
    DriverError,
    ExecutionError,
    FallbackWarning,
    NotDelegatedError,
)
from nnadapter.offering.segments import Part
from nnadapter.options import Options
from nnadapter.planning.judged import Analysis, Atoms, Judged, Piece
from nnadapter.running.executor import BoundStep, CompiledPlan, ExecutionPool, Substitute, called
from nnadapter.targets import Target
from partition.graph import Graph
from partition.plan import Plan, Step
from partition.verdict import Reason, Unsupported


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A placement that was weighed by running it."""

    name: str
    """What found it."""
    predicted: float | None
    """Seconds; None for one that was remembered."""
    measured: float
    """Seconds: the median of its runs here."""


@dataclass(frozen=True, eq=False)
class Compiled:
    """An analysis with its programs."""

    analysis: Analysis
    plan: CompiledPlan
    notes: tuple[str, ...]
    """What did not go as promised, for the report."""
    compile_seconds: Mapping[int, float]
    """Per segment, what compiling it took."""
    timed: tuple[Timed, ...] = ()
    """What it was chosen from by measurement, fastest first; empty where it was not."""
    chosen: str = ""
    """How it was measured, in words."""

    @property
    def memory_bytes(self) -> int:
        """Bytes that its programs and their executions hold, as far as the drivers say so."""
        return self.plan.memory_bytes

    def close(self) -> None:
        """Free every program."""
        self.plan.close()


@dataclass(frozen=True, slots=True)
class Built:
    """A compiled segment, and the values that its inputs stand for."""

    program: Program
    inputs: tuple[str, ...]
    seconds: float
    """What compiling took."""


@dataclass(eq=False)
class Compiler:
    """Compiles analyses for one session's devices under one policy."""

    targets: tuple[Target, ...]
    options: Options

    def compile(self, judged: Judged) -> Compiled:
        """Settle, compile, and settle again without what failed, until everything is compiled.

        Raises:
            NotDelegatedError: fallback is forbidden and something would have to fall back.
            CompilationError: not even the CPU takes what is left.
        """
        programs: dict[Atoms, Built] = {}
        try:
            return self._compile(judged, programs)
        except BaseException:
            close_all(built.program for built in programs.values())
            raise

    def _compile(self, judged: Judged, programs: dict[Atoms, Built]) -> Compiled:
        notes: list[str] = []
        known: dict[Atoms, Piece] = {}
        analysis = judged.settle(known)
        warn_of_idle(analysis, self.targets, self.options)
        while True:
            refuse_fallback(analysis, self.targets, self.options)
            failed = self._compile_all(analysis, programs)
            if not failed:
                _close_unused(analysis.plan, programs)
                warn_of_last_resort(analysis, self.targets, self.options)
                taken = {step.segment: programs[_atoms(analysis.plan, step)].seconds for step in analysis.plan.steps}
                return Compiled(analysis, self._bind(analysis, programs), tuple(notes), taken)
            for step, error in failed:
                if step.device == CPU and _blamed(error):
                    judged = judged.blaming(step, _blamed(error))
                    continue
                notes.append(self._compile_failed(analysis, step, error))
                if _blamed(error):
                    judged = judged.blaming(step, _blamed(error))
                    continue
                if step.device == CPU:
                    judged = judged.banning(_delegated(analysis.plan, step))
                    break
                why = Unsupported(Reason.COMPILE_FAILED, describe(error))
                judged = judged.banning({_atoms(analysis.plan, step): why})
            analysis = judged.settle(known)

    def _compile_all(self, analysis: Analysis, programs: dict[Atoms, Built]) -> list[tuple[Step, BaseException]]:
        failed: list[tuple[Step, BaseException]] = []
        for step, piece in zip(analysis.plan.steps, analysis.pieces, strict=True):
            key = _atoms(analysis.plan, step)
            if key in programs:
                continue
            if failed and step.device == CPU:
                continue  # the cut will change: what is left for the CPU is compiled when it is final
            try:
                programs[key] = self._program(analysis, step, piece)
            except FAILURES as error:  # a driver may raise anything; this is its border
                if step.device == CPU and not _blamed(error) and not _delegated(analysis.plan, step):
                    raise
                failed.append((step, error))
        return failed

    def _program(self, analysis: Analysis, step: Step, piece: Piece | None) -> Built:
        if piece is not None:
            return self._built(step.device, piece.part, alone=len(analysis.plan.steps) == 1)
        whole = analysis.parts.cpu_part(step)
        try:
            return self._built(step.device, whole, alone=len(analysis.plan.steps) == 1)
        except CompilationError:
            # The model as it was may hold a node that ONNX Runtime does not take and that is known before the run.
            return self._built(step.device, analysis.parts.part(step))

    def _built(self, device: str, part: Part, *, alone: bool = False) -> Built:
        started = time.perf_counter()
        context = self._target(device).context
        program = checked_program((context.compile_whole if alone else context.compile)(part.model))
        return Built(program, part.inputs, time.perf_counter() - started)

    def _compile_failed(self, analysis: Analysis, step: Step, error: BaseException) -> str:
        nodes = [analysis.plan.graph.nodes[node].name for node in step.nodes]
        message = (
            f"device {step.device!r} took segment {step.segment} ({named(nodes)}) and failed to compile it: "
            f"{describe(error)}"
        )
        instead = "these nodes go to the next device"
        if step.device == CPU:
            instead = "so nothing is cut out of the model, and it runs there as a whole"
        self._fall_back(CompilationError, step, nodes, message, instead, error)
        return message

    def _bind(self, analysis: Analysis, programs: Mapping[Atoms, Built]) -> CompiledPlan:
        graph = analysis.plan.graph
        slots = slots_of(analysis.plan)
        constants = {
            slots[name]: analysis.specialised.constants[name]
            for name in graph.outputs
            if name in analysis.specialised.constants
        }
        steps = [
            BoundStep(
                step=step,
                pool=self._pool(step.device, built.program),
                inputs=tuple(slots[name] for name in built.inputs),
                outputs=tuple(slots[name] for name in step.outputs),
                released=tuple(slots[name] for name in step.released),
                expected=() if step.device in HOSTS else _expected(graph, step.outputs),
                guarded=step.device not in HOSTS,
                on_failure=partial(self._run_failed, analysis, slots),
            )
            for step, built in ((step, programs[_atoms(analysis.plan, step)]) for step in analysis.plan.steps)
        ]
        return CompiledPlan(steps, slots, {name: slots[name] for name in graph.outputs}, constants)

    def _run_failed(self, analysis: Analysis, slots: Mapping[str, int], step: Step, error: BaseException) -> Substitute:
        """What runs a failed step instead: the CPU, or the last resort. Raises where the policy says so."""
        nodes = [analysis.plan.graph.nodes[node].name for node in step.nodes]
        message = (
            f"device {step.device!r} failed while it ran segment {step.segment} ({named(nodes)}): {describe(error)}"
        )
        device = self._host_of(analysis.plan, step)
        fall_back = partial(self._fall_back, ExecutionError, step, nodes, message, error=error)
        if self.options.fallback == "forbid":
            fall_back(instead="")
        device, built = self._built_instead(device, analysis.parts.part(step), message, step, error)
        fall_back(instead=f"it runs on {called(device)} instead")
        return Substitute(device, self._pool(device, built.program), tuple(slots[name] for name in built.inputs))

    def _built_instead(
        self, device: str, part: Part, message: str, step: Step, error: BaseException
    ) -> tuple[str, Built]:
        """A failed step compiled for `device`, or for the last resort."""
        try:
            return device, self._built(device, part)
        except CompilationError as failure:
            if device != REFERENCE and not failure.refused:
                raise
            last = failure
        if device != REFERENCE:
            with suppress(CompilationError):
                return REFERENCE, self._built(REFERENCE, part)
        raise ExecutionError(
            f"{message}; nothing else runs it: {last}", device=step.device, segment=step.segment
        ) from error

    def _host_of(self, plan: Plan, step: Step) -> str:
        """The CPU, if it takes every node of a step as far as is known, else the last resort."""
        refused = any(not plan.verdicts[CPU][plan.graph.atom_of[node]] for node in step.nodes)
        return REFERENCE if refused else CPU

    def _pool(self, device: str, program: Program) -> ExecutionPool:
        how: Threading = self._target(device).capability.threading
        return ExecutionPool(program, how, device_lock(device))

    def _target(self, name: str) -> Target:
        return next(target for target in self.targets if target.name == name)

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
        if self.options.fallback == "forbid":
            raise kind(
                f"{message}; fallback is forbidden, so allow it or report this to the vendor",
                device=step.device,
                segment=step.segment,
                nodes=nodes,
            ) from error
        if self.options.fallback == "warn":
            warnings.warn(f"{message}; {instead}", FallbackWarning, stacklevel=2)


def refuse_fallback(analysis: Analysis, targets: Sequence[Target], options: Options) -> None:
    """Raise NotDelegatedError where fallback is forbidden and nodes are left for a device that nobody named."""
    plan = analysis.plan
    unnamed = {target.name for target in targets if not target.named}
    spare = [step for step in plan.steps if step.device in unnamed]
    left = [node for step in spare for node in step.nodes]
    if not left or options.fallback != "forbid":
        return
    names = [plan.graph.nodes[node].name for node in left]
    first = targets[0].name
    raise NotDelegatedError(
        f"fallback is forbidden and {len(left)} of {len(plan.graph.nodes)} nodes are taken by no named device "
        f"({named(names)}); {_why_left(plan, first, left[0])}; "
        f"allow fallback, or name {spare[0].device!r} as a device",
        device=first,
        nodes=names,
    )


def _why_left(plan: Plan, device: str, node: int) -> str:
    verdict = plan.verdicts[device][plan.graph.atom_of[node]]
    if isinstance(verdict, Unsupported):
        return f"{device!r} refused the first because of {verdict}"
    return f"{device!r} takes the first, which its segment or a plan put elsewhere"


def warn_of_idle(analysis: Analysis, targets: Sequence[Target], options: Options) -> None:
    """Warn where the policy says so of a named device that took nothing, with the reason.

    Nothing fell back where devices before it took the nodes, or it would have taken those that went elsewhere.
    """
    plan = analysis.plan
    used = {step.device for step in plan.steps}
    if options.fallback != "warn":
        return
    for position, target in enumerate(targets):
        if target.name in HOSTS or target.name in used:
            continue
        if options.policy != "priority" and any(plan.verdicts[target.name]):
            continue  # it was weighed, and something else is cheaper
        left = _left_by(plan, target.name, {later.name for later in targets[position + 1 :]})
        if left:
            warnings.warn(
                f"device {target.name!r} took none of the {len(plan.graph.nodes)} nodes; the first was refused because "
                f"of {_refusal(plan, target.name, left[0])}; see the report for the others",
                FallbackWarning,
                stacklevel=2,
            )


def warn_of_last_resort(analysis: Analysis, targets: Sequence[Target], options: Options) -> None:
    """Warn where the policy says so of nodes that are left for the last resort: it is slow, and nobody named it."""
    spare = [target.name for target in targets if target.is_spare]
    plan = analysis.plan
    left = [node for step in plan.steps if step.device in spare for node in step.nodes]
    if left and options.fallback == "warn":
        names = named([plan.graph.nodes[node].name for node in left])
        warnings.warn(
            f"{len(left)} of {len(plan.graph.nodes)} nodes run on onnx's reference evaluator, which is slow ({names}); "
            f"the CPU refused the first because of {_refusal(plan, CPU, left[0])}",
            FallbackWarning,
            stacklevel=2,
        )


def _blamed(error: BaseException) -> Mapping[int, Unsupported]:
    return error.refused if isinstance(error, CompilationError) else {}


def _delegated(plan: Plan, left: Step) -> dict[Atoms, Unsupported]:
    """Every segment on another device than the host's, refused for what cutting it out left behind.

    ONNX Runtime loads whole models that contradict themselves, and not always the parts, of which more is known.
    """
    why = Unsupported(Reason.COMPILE_FAILED, f"ONNX Runtime does not load segment {left.segment}, which is left then")
    return {_atoms(plan, step): why for step in plan.steps if step.device not in HOSTS}


def _left_by(plan: Plan, device: str, later: Set[str]) -> list[int]:
    """Nodes that a device refused and that run on one of `later`."""
    elsewhere = (node for step in plan.steps if step.device in later for node in step.nodes)
    return [node for node in elsewhere if not plan.verdicts[device][plan.graph.atom_of[node]]]


def _close_unused(plan: Plan, programs: dict[Atoms, Built]) -> None:
    """Programs of segments that a later cut no longer has."""
    used = {_atoms(plan, step) for step in plan.steps}
    for key in [key for key in programs if key not in used]:
        close_all([programs.pop(key).program])


def slots_of(plan: Plan) -> dict[str, int]:
    """A number for every value that passes between steps, comes in or goes out."""
    names = dict.fromkeys((*plan.graph.inputs, *plan.graph.outputs))
    for step in plan.steps:
        names.update(dict.fromkeys((*step.inputs, *step.outputs)))
    return {name: slot for slot, name in enumerate(names)}


def named(nodes: Sequence[str]) -> str:
    """Some nodes, in words."""
    shown = ", ".join(map(repr, nodes[:3]))
    return f"{shown} and {len(nodes) - 3} more" if len(nodes) > 3 else shown


def _refusal(plan: Plan, device: str, node: int) -> str:
    return str(plan.verdicts[device][plan.graph.atom_of[node]])


def _expected(graph: Graph, outputs: Sequence[str]) -> OutputCheck:
    checks: list[tuple[tuple[int, ...], np.dtype[Any]] | None] = []
    for name in outputs:
        value = graph.value(name)
        shape = value.static_shape
        dtype = None if shape is None else _array_type(value.dtype)
        checks.append(None if shape is None or dtype is None else (shape, dtype))
    return checks


def _array_type(name: str | None) -> np.dtype[Any] | None:
    try:
        return None if name is None else np.dtype(name)
    except TypeError:  # a type that numpy does not know, so that nothing can be checked
        return None


def _atoms(plan: Plan, step: Step) -> Atoms:
    return step.device, tuple(sorted({plan.graph.atom_of[node] for node in step.nodes}))
