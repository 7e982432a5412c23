"""Binds the compiled segments of one plan: to slots of values, to memory between steps, to what takes their place."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from nnadapter.drivers.interface import Program
from nnadapter.errors import NNAdapterError
from nnadapter.memory.arenas import Arenas
from nnadapter.planning.overlap import overlap_of
from nnadapter.planning.setting import Setting
from nnadapter.planning.settling import Partitioning
from nnadapter.planning.size_class import SizeClass
from nnadapter.running.borders import borders_of
from nnadapter.running.bound_step import BoundStep, Substitute
from nnadapter.running.built import Built, about_step
from nnadapter.running.executor import CompiledPlan
from nnadapter.running.flights import Flights
from nnadapter.running.pool import ExecutionPool
from nnadapter.running.residence import residences
from nnadapter.running.slots import expected_outputs, planned_values, slots_of
from nnadapter.running.traced_programs import pool_of, transfers_of
from nnadapter.running.whole import Whole
from partition.plan import Step

RunFailed = Callable[[Partitioning, Mapping[str, int], Step, BaseException], Substitute]


class Binder:
    """Makes the steps of a plan as they run.

    Args:
        setting: the devices.
        arenas: memory for values between steps.
        partitioning: the plan.
        reads: per segment, what its program reads.
        run_failed: makes what runs a step that failed, or raises.
        whole: makes what runs the model as it was, or raises.
    """

    def __init__(
        self,
        setting: Setting,
        arenas: Arenas,
        partitioning: Partitioning,
        reads: Mapping[int, tuple[str, ...]],
        run_failed: RunFailed,
        whole: Callable[[Partitioning, NNAdapterError], Whole],
    ) -> None:
        self._setting, self._partitioning, self._plan = setting, partitioning, partitioning.plan
        self._slots = slots_of(self._plan)
        graph = self._plan.graph
        self._stay = residences(self._plan, setting.owning, self._slots, reads, partial(expected_outputs, graph))
        self._borders = borders_of(self._plan, reads, arenas)
        self._overlap = overlap_of(partitioning, reads)
        self._on_failure = partial(run_failed, partitioning, self._slots)
        self._whole = partial(whole, partitioning)
        self._outputs = {name: self._slots[name] for name in graph.outputs}
        known = partitioning.model.specialized.constants
        self._constants = {slot: known[name] for name, slot in self._outputs.items() if name in known}

    def step(self, position: int, built: Built) -> BoundStep:
        """The step at a position of the plan, with its program."""
        step, graph, slots = self._plan.steps[position], self._plan.graph, self._slots
        accelerates = step.device in self._setting.accelerators
        return BoundStep(
            step=step,
            position=position,
            pool=pool_on(self._setting, step.device, built.program, *about_step(self._partitioning, step)),
            inputs=tuple(slots[name] for name in built.inputs),
            outputs=tuple(slots[name] for name in step.outputs),
            released=tuple(slots[name] for name in step.released),
            expected=expected_outputs(graph, step.outputs) if accelerates else (),
            names=built.inputs,
            residence=self._stay.get(step.segment),
            guarded=accelerates,
            planned=tuple(planned_values(graph, slots, built.inputs)),
            is_told_sizes=built.is_told_sizes,
            on_failure=self._on_failure,
        )

    def plan(self, steps: Sequence[BoundStep], sizes: SizeClass | None = None) -> CompiledPlan:
        """The plan of all its steps; for many sizes where its programs are told them."""
        whole = None if len(steps) == 1 and not steps[0].guarded else self._whole
        trace = self._setting.trace
        return CompiledPlan(
            steps,
            self._slots,
            self._outputs,
            self._constants,
            whole,
            transfers_of(trace),
            sizes,
            self._borders,
            Flights(steps, self._overlap, trace) if not self._overlap.is_serial else None,
        )


def pool_on(setting: Setting, device: str, program: Program, *about: Any) -> ExecutionPool:
    """Return executions of a program of a device, as its threading says."""
    return pool_of(setting.trace, program, setting.by_name[device].capability.threading, device, *about)
