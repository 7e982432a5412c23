"""Binding of a plan to its programs, for plans of models and of compiled files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from nnadapter.drivers.arenas import Arenas
from nnadapter.drivers.boundary import OutputCheck
from nnadapter.drivers.failures import NamedCalls
from nnadapter.drivers.interface import Program
from nnadapter.engine.bound_steps import (
    BoundStep,
    Substitute,
    bound_checks,
    expected_outputs,
    planned_values,
    residences,
    slots_of,
)
from nnadapter.engine.execution_pool import ExecutionPool
from nnadapter.engine.executor import CompiledPlan, held_between, plan_intermediate_buffers
from nnadapter.engine.fallback import Incident
from nnadapter.engine.plan_devices import WELL, PlanDevices, transfers_of
from nnadapter.errors import NNAdapterError
from nnadapter.ir.index_ranges import IndexCheck
from nnadapter.ir.operand import Array
from nnadapter.planning.overlap import Overlap
from nnadapter.process.resources import new_lock
from partition.plan import Plan, Step

if TYPE_CHECKING:
    from nnadapter.engine.cpu_fallback import CpuFallback
    from nnadapter.ir.structure import GuardedShapes


class Bindable(NamedTuple):
    """Plan to bind, and functions for its failures."""

    plan: Plan
    reads: Mapping[int, tuple[str, ...]]
    overlap: Overlap
    constants: Mapping[str, Array]
    nodes_of: Callable[[Step], Sequence[str]]
    run_failed: Callable[[Mapping[str, int], Step, BaseException], Substitute]
    """Makes the substitute of a failed step, or raises."""
    say: Callable[[Step, BaseException, str], Incident]
    """Records a failure, by the fallback policy."""
    reference: Callable[[Mapping[str, int], Step], Substitute]
    """Makes the substitute for comparison with a step, or raises."""
    checks: Mapping[int, Sequence[IndexCheck]] = {}
    make_cpu_fallback: Callable[[NNAdapterError], CpuFallback] | None = None
    """None if the original model is not available."""


class Binder:
    """Binder of the steps of a plan."""

    def __init__(self, site: PlanDevices, arenas: Arenas, bindable: Bindable) -> None:
        self._site, self._bindable, self._plan = site, bindable, bindable.plan
        self._slots = slots_of(self._plan)
        graph = self._plan.graph
        self._stay = residences(self._plan, site.owning, self._slots, bindable.reads, partial(expected_outputs, graph))
        staying = {segment for segment, residence in self._stay.items() if residence.saves}
        self._borders = plan_intermediate_buffers(self._plan, bindable.reads, arenas, staying)
        self.held_between = partial(held_between, arenas)
        self._on_failure = partial(bindable.run_failed, self._slots)
        self._on_check = partial(bindable.reference, self._slots)
        self._outputs = {name: self._slots[name] for name in graph.outputs}
        self._checked = {name for checks in bindable.checks.values() for check in checks for name in check.sizes}
        """Names of values whose sizes index checks read; they are released only at the end of the run."""
        self._same: dict[int, Mapping[str, Any]] = {}
        constants, produced = bindable.constants, self._plan.produced_values
        self._constants = {
            slot: constants[name] for name, slot in self._outputs.items() if name in constants and name not in produced
        }

    @property
    def steps(self) -> Sequence[Step]:
        return self._plan.steps

    def step(
        self,
        position: int,
        program: Program,
        inputs: Sequence[str],
        *,
        is_told_sizes: bool = False,
        expected: OutputCheck | None = None,
    ) -> BoundStep:
        """Bind a program to a step; `expected` overrides the output types in the plan."""
        step, names = self._plan.steps[position], tuple(inputs)
        same = self._same.get(position)
        if same is None or same["names"] != names:
            same = self._same[position] = self._same_of(position, step, names)
        if expected is None:
            expected = expected_outputs(self._plan.graph, step.outputs) if same["guarded"] else ()
        pool = self._pools[position](program)
        return BoundStep(pool=pool, expected=expected, takes_sizes=is_told_sizes, **same)

    @cached_property
    def _pools(self) -> list[Callable[[Program], ExecutionPool]]:
        nodes_of = self._bindable.nodes_of
        calls = [NamedCalls(step.device, step.segment, nodes_of(step)) for step in self._plan.steps]
        return list(map(self._site.pools, calls))

    def _same_of(self, position: int, step: Step, names: tuple[str, ...]) -> Mapping[str, Any]:
        slots = self._slots
        return {
            "step": step,
            "position": position,
            "inputs": tuple(slots[name] for name in names),
            "outputs": tuple(slots[name] for name in step.outputs),
            "released": tuple(slots[name] for name in step.released if name not in self._checked),
            "index_checks": bound_checks(self._bindable.checks.get(step.segment, ()), slots),
            "names": names,
            "residence": self._stay.get(step.segment),
            "guarded": step.device in self._site.accelerators,
            "planned": tuple(planned_values(self._plan.graph, slots, names)),
            "on_failure": self._on_failure,
            "say": self._bindable.say,
            "make_room": self._site.make_room,
            "health": self._site.health(step.device) if step.device in self._site.accelerators else WELL,
            "health_keys": (*step.outputs, *self._bindable.nodes_of(step)),
            "copies_inputs": step.device in self._site.raw,
            "on_check": self._on_check,
            "lock": new_lock(),
        }

    def plan(self, steps: Sequence[BoundStep], sizes: GuardedShapes | None = None) -> CompiledPlan:
        """Return the compiled plan; `sizes` are its guarded shapes if programs take symbolic sizes."""
        overlap, trace = self._bindable.overlap, self._site.trace
        flights = None
        if not overlap.is_serial:
            from nnadapter.engine.concurrent_steps import Flights

            flights = Flights(steps, overlap, trace)
        return CompiledPlan(
            steps,
            self._slots,
            self._outputs,
            self._constants,
            None if len(steps) == 1 and not steps[0].guarded else self._bindable.make_cpu_fallback,
            transfers_of(trace),
            sizes,
            self._borders,
            flights,
            self.held_between,
        )
