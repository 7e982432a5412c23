"""The second half of the way: an analyzed model -> compiled programs, bound to slots.

A device that said yes and fails to compile has broken its promise: its segment is taken from it, the graph is cut
again, and the fact is kept for the report. Programs that were compiled already are used again.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from nnadapter.drivers.border import FAILURES, OutputCheck, bind, checked_program, describe
from nnadapter.drivers.capability import Threading
from nnadapter.drivers.interface import Program
from nnadapter.drivers.registry import device_lock
from nnadapter.drivers.selection import CPU, HOSTS, REFERENCE
from nnadapter.errors import (
    CompilationError,
    DriverError,
    ExecutionError,
    FallbackWarning,
)
from nnadapter.offering.segments import Part
from nnadapter.options import Options
from nnadapter.planning.judged import Analysis, Atoms, Judged, Piece
from nnadapter.planning.targets import Target
from nnadapter.running.built import Built, Likeness, Programs, atoms_of, likeness_of
from nnadapter.running.executor import BoundStep, CompiledPlan, ExecutionPool, Substitute, called
from nnadapter.running.fallback import named, refuse_fallback, warn_of_idle, warn_of_last_resort
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
    bound_to: Mapping[int, int] = field(default_factory=dict)
    """Segment -> the one whose program it was bound to, with constants of its own; those that were compiled are left
    out."""
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
        programs = Programs()
        try:
            return self._compile(judged, programs)
        except BaseException:
            programs.close()
            raise

    def _compile(self, judged: Judged, programs: Programs) -> Compiled:
        notes: list[str] = []
        known: dict[Atoms, Piece] = {}
        analysis = judged.settle(known)
        warn_of_idle(analysis, self.targets, self.options)
        while True:
            refuse_fallback(analysis, self.targets, self.options)
            failed = self._compile_all(analysis, programs)
            if not failed:
                programs.keep_only(analysis.plan)
                warn_of_last_resort(analysis, self.targets, self.options)
                taken = {step.segment: programs[atoms_of(analysis.plan, step)].seconds for step in analysis.plan.steps}
                plan = self._bind(analysis, programs)
                return Compiled(analysis, plan, tuple(notes), taken, programs.twins(analysis.plan))
            for step, error in failed:
                blamed = _blamed(analysis, step, error)
                if not (blamed and step.device == CPU):
                    notes.append(self._compile_failed(analysis, step, error))
                if blamed:
                    judged = judged.blaming(step, blamed)
                    continue
                if step.device == CPU:
                    judged = judged.banning(_delegated(analysis.plan, step))
                    break
                why = Unsupported(Reason.COMPILE_FAILED, describe(error))
                judged = judged.banning({atoms_of(analysis.plan, step): why})
            analysis = judged.settle(known)

    def _compile_all(self, analysis: Analysis, programs: Programs) -> list[tuple[Step, BaseException]]:
        failed: list[tuple[Step, BaseException]] = []
        for step, piece in zip(analysis.plan.steps, analysis.pieces, strict=True):
            key = atoms_of(analysis.plan, step)
            if key in programs:
                continue
            if failed and step.device == CPU:
                continue  # the cut will change: what is left for the CPU is compiled when it is final
            try:
                programs.add(key, self._program(analysis, step, piece, programs))
            except FAILURES as error:  # a driver may raise anything; this is its border
                if step.device == CPU and not _blamed(analysis, step, error) and not _delegated(analysis.plan, step):
                    raise
                failed.append((step, error))
        return failed

    def _program(self, analysis: Analysis, step: Step, piece: Piece | None, programs: Programs) -> Built:
        alone = len(analysis.plan.steps) == 1
        if piece is not None and alone:
            return self._built(step.device, piece.part, alone=True)
        if piece is not None:
            likeness = likeness_of(step.device, piece.part)
            bound = self._bound(step.device, piece.part, likeness, programs)
            return bound or replace(self._built(step.device, piece.part), likeness=likeness)
        whole = analysis.parts.cpu_part(step)
        try:
            return self._built(step.device, whole, alone=alone)
        except CompilationError:
            # The model as it was may hold a node that ONNX Runtime does not take and that is known before the run.
            return self._built(step.device, analysis.parts.part(step))

    def _built(self, device: str, part: Part, *, alone: bool = False) -> Built:
        started = time.perf_counter()
        context = self._target(device).context
        program = checked_program((context.compile_whole if alone else context.compile)(part.model))
        return Built(program, part.inputs, time.perf_counter() - started)

    def _bound(self, device: str, part: Part, likeness: Likeness | None, programs: Programs) -> Built | None:
        """The part by a program of one that is like it; None where it has to be compiled."""
        started = time.perf_counter()
        for twin in programs.alike(likeness):
            bound = bind(self._target(device).context, programs[twin].program, part.model)
            if bound is not None:
                return Built(bound, part.inputs, time.perf_counter() - started, likeness, twin)
        return None

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

    def _bind(self, analysis: Analysis, programs: Programs) -> CompiledPlan:
        graph = analysis.plan.graph
        slots = slots_of(analysis.plan)
        constants = {
            slots[name]: analysis.specialized.constants[name]
            for name in graph.outputs
            if name in analysis.specialized.constants
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
            for step, built in ((step, programs[atoms_of(analysis.plan, step)]) for step in analysis.plan.steps)
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
        device, built = self._built_instead(device, analysis, message, step, error)
        fall_back(instead=f"it runs on {called(device)} instead")
        return Substitute(device, self._pool(device, built.program), tuple(slots[name] for name in built.inputs))

    def _built_instead(
        self, device: str, analysis: Analysis, message: str, step: Step, error: BaseException
    ) -> tuple[str, Built]:
        """A failed step compiled for `device`, or for the last resort."""
        part = analysis.parts.part(step)
        try:
            return device, self._built(device, part)
        except CompilationError as failure:
            if device != REFERENCE and not _blamed(analysis, step, failure):
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


def _blamed(analysis: Analysis, step: Step, error: BaseException) -> Mapping[int, Unsupported]:
    """The nodes (positions in `step`) that a device is to blame for not loading; what is no valid ONNX is not."""
    refused = error.refused if isinstance(error, CompilationError) else {}
    return {position: why for position, why in refused.items() if not _is_invalid(analysis, step.nodes[position])}


def _is_invalid(analysis: Analysis, node: int) -> bool:
    verdict = analysis.conversion.verdicts[node]
    return isinstance(verdict, Unsupported) and verdict.reason is Reason.INVALID_NODE


def _delegated(plan: Plan, left: Step) -> dict[Atoms, Unsupported]:
    """Every segment on another device than the host's, refused for what cutting it out left behind.

    ONNX Runtime loads whole models that contradict themselves, and not always the parts, of which more is known.
    """
    why = Unsupported(Reason.COMPILE_FAILED, f"ONNX Runtime does not load segment {left.segment}, which is left then")
    return {atoms_of(plan, step): why for step in plan.steps if step.device not in HOSTS}


def slots_of(plan: Plan) -> dict[str, int]:
    """A number for every value that passes between steps, comes in or goes out."""
    names = dict.fromkeys((*plan.graph.inputs, *plan.graph.outputs))
    for step in plan.steps:
        names.update(dict.fromkeys((*step.inputs, *step.outputs)))
    return {name: slot for slot, name in enumerate(names)}


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
