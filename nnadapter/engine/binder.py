"""Binder of a plan: connects its steps with compiled programs, value slots and memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from nnadapter.drivers.arenas import Arenas
from nnadapter.drivers.boundary import OutputCheck
from nnadapter.drivers.failures import NamedCalls
from nnadapter.drivers.interface import Program
from nnadapter.engine import bound_steps
from nnadapter.engine.execution_pool import ExecutionPool
from nnadapter.engine.executor import CompiledPlan, CpuFallback
from nnadapter.engine.fallback import Incidents, report_run_failure
from nnadapter.engine.intermediate_buffers import held_between, plan_intermediate_buffers
from nnadapter.engine.plan_devices import WELL, PlanDevices, transfers_of
from nnadapter.errors import NNAdapterError
from nnadapter.ir.index_ranges import IndexCheck
from nnadapter.ir.operand import Array
from nnadapter.planning.overlap import Overlap
from nnadapter.process.resources import new_lock
from partition.plan import Plan, Step

if TYPE_CHECKING:
    from nnadapter.ir.structure import GuardedShapes


class Bindable(NamedTuple):
    """Plan to bind, with the information that differs between a model and a compiled file.

    `reads` has the inputs of each segment's program.
    """

    plan: Plan
    reads: Mapping[int, tuple[str, ...]]
    overlap: Overlap
    constants: Mapping[str, Array]
    nodes_of: Callable[[Step], Sequence[str]]
    incidents: Incidents
    make_substitute: Callable[[Mapping[str, int], Step, BaseException | None], bound_steps.Substitute]
    """Function that makes a program to run a step on another device. It gets the slot of every value, the step, and the
    error of the step (None to compare results only).

    Raises an error if no other device can run the step.
    """
    checks: Mapping[int, Sequence[IndexCheck]] = {}
    make_cpu_fallback: Callable[[NNAdapterError], CpuFallback] | None = None
    """None if the original model is not available."""


class Binder:
    """Binder that connects the steps of one plan with programs, slots and memory."""

    def __init__(self, devices: PlanDevices, arenas: Arenas, bindable: Bindable) -> None:
        self._devices, self._bindable, self._plan = devices, bindable, bindable.plan
        self._slots = bound_steps.slots_of(self._plan)
        graph = self._plan.graph
        self._stay = bound_steps.residences(
            self._plan, devices.owning, self._slots, bindable.reads, partial(bound_steps.expected_outputs, graph)
        )
        staying = {segment for segment, residence in self._stay.items() if residence.saves}
        self._buffers = plan_intermediate_buffers(self._plan, bindable.reads, arenas, staying)
        self.held_between = partial(held_between, arenas)
        self._outputs = {name: self._slots[name] for name in graph.outputs}
        self._checked = {name for checks in bindable.checks.values() for check in checks for name in check.sizes}
        """Values that are released only at the end of the run, since index checks read their sizes."""
        self._fields: dict[int, Mapping[str, Any]] = {}
        constants, produced = bindable.constants, self._plan.produced_values
        self._constants = {
            slot: constants[name] for name, slot in self._outputs.items() if name in constants and name not in produced
        }

    @property
    def steps(self) -> Sequence[Step]:
        return self._plan.steps

    def step(
        self,
        segment: int,
        program: Program,
        inputs: Sequence[str],
        *,
        takes_sizes: bool = False,
        expected: OutputCheck | None = None,
    ) -> bound_steps.BoundStep:
        """Return the step of a segment, bound to a program that reads `inputs`.

        With `takes_sizes`, runs pass the symbolic sizes to the program. `expected` overrides the output types in the
        plan.
        """
        step, names = self._plan.steps[segment], tuple(inputs)
        fields = self._fields.get(segment)
        if fields is None or fields["names"] != names:
            fields = self._fields[segment] = self._fields_of(step, names)
        if expected is None:
            expected = bound_steps.expected_outputs(self._plan.graph, step.outputs) if fields["is_checked"] else ()
        return bound_steps.BoundStep(
            pool=self._pools[segment](program), expected=expected, takes_sizes=takes_sizes, **fields
        )

    @cached_property
    def _pools(self) -> list[Callable[[Program], ExecutionPool]]:
        nodes_of = self._bindable.nodes_of
        calls = [NamedCalls(step.device, step.segment, nodes_of(step)) for step in self._plan.steps]
        return list(map(self._devices.pools, calls))

    def _fields_of(self, step: Step, names: tuple[str, ...]) -> Mapping[str, Any]:
        slots, bindable, is_checked = self._slots, self._bindable, step.device in self._devices.accelerators
        nodes = bindable.nodes_of(step)
        return {
            "step": step,
            "inputs": tuple(slots[name] for name in names),
            "outputs": tuple(slots[name] for name in step.outputs),
            "released": tuple(slots[name] for name in step.released if name not in self._checked),
            "index_checks": bound_steps.bound_checks(bindable.checks.get(step.segment, ()), slots),
            "names": names,
            "residence": self._stay.get(step.segment),
            "is_checked": is_checked,
            "planned": tuple(bound_steps.planned_values(self._plan.graph, slots, names)),
            "make_substitute": partial(_make_substitute, bindable, slots, step),
            "report_failure": partial(report_run_failure, step, nodes, bindable.incidents),
            "make_room": self._devices.make_room,
            "health": self._devices.health(step.device) if is_checked else WELL,
            "health_keys": (*step.outputs, *nodes),
            "copies_inputs": step.device in self._devices.raw,
            "lock": new_lock(),
        }

    def plan(self, steps: Sequence[bound_steps.BoundStep], sizes: GuardedShapes | None = None) -> CompiledPlan:
        overlap, trace = self._bindable.overlap, self._devices.trace
        flights = None
        if not overlap.is_serial:
            from nnadapter.engine.concurrent_steps import Flights

            flights = Flights(steps, overlap, trace)
        return CompiledPlan(
            steps,
            self._slots,
            self._outputs,
            self._constants,
            None if len(steps) == 1 and not steps[0].is_checked else self._bindable.make_cpu_fallback,
            transfers_of(trace),
            sizes,
            self._buffers,
            flights,
            self.held_between,
        )


def _make_substitute(
    bindable: Bindable, slots: Mapping[str, int], step: Step, error: BaseException | None
) -> bound_steps.Substitute:
    if error is not None and bindable.incidents.policy("run") == "forbid":
        report_run_failure(step, bindable.nodes_of(step), bindable.incidents, error, "")
    return bindable.make_substitute(slots, step, error)
