"""Accuracy checks of a session, for `Options.verify` and `Options.shadow`; see docs/accuracy.md."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import cached_property
from hashlib import sha256
from itertools import count
from math import log
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet, proxy

from nnadapter.accuracy import tolerances
from nnadapter.accuracy.localization import ErrorCause, ErrorLocation, locate, save_stretch
from nnadapter.drivers import Reason, SegmentModel, Unsupported
from nnadapter.drivers.selection import DeviceRequest
from nnadapter.drivers.tensor_copies import on_host
from nnadapter.engine.bound_steps import BoundStep, Substitute
from nnadapter.engine.compiled import Compiled, RunnablePlan
from nnadapter.engine.fallback import Incident, fall_back, named
from nnadapter.engine.model_source import ModelPlanSource
from nnadapter.engine.provenance import Provenance
from nnadapter.errors import FAILURES, AccuracyError, describe
from nnadapter.options import Options
from nnadapter.planning.judgment import model_of
from nnadapter.planning.planner import ALL
from nnadapter.planning.setting import SessionDevice
from nnadapter.planning.settling import Partitioning
from nnadapter.process.resources import Cache, new_lock
from nnadapter.records import dataclass, replace

if TYPE_CHECKING:
    import onnx


RIGHT, WRONG = 1e-3, 0.2
"""Assumed probability that one check is beyond tolerance: first for a correct step, then for a drifting step."""
BETWEEN_FALSE_ALARMS = 1e6
"""Minimum mean number of checks between false alarms."""
_BEYOND, _WITHIN = log(WRONG / RIGHT), log((1 - WRONG) / (1 - RIGHT))
_ALARM = log(BETWEEN_FALSE_ALARMS)


class Drift:
    """CUSUM test on how often one step's results are beyond tolerance.

    Each check adds its log-likelihood ratio of `WRONG` against `RIGHT` to a sum that stays at least 0. The alarm
    threshold log(`BETWEEN_FALSE_ALARMS`) limits false alarms (Lorden).

    Source: E. S. Page, Continuous inspection schemes, Biometrika 41, 1954; G. Lorden, Procedures for reacting to a
    change in distribution, Annals of Mathematical Statistics 42, 1971.
    """

    __slots__ = ("checks", "total")

    def __init__(self) -> None:
        self.total = 0.0
        self.checks = 0

    def add(self, *, is_beyond: bool) -> bool:
        self.checks += 1
        self.total = max(0.0, self.total + (_BEYOND if is_beyond else _WITHIN))
        return self.total >= _ALARM


@dataclass(frozen=True, eq=False, slots=True)
class StepCheck:
    """Comparison of a step's results with the CPU's."""

    bound: BoundStep
    deviations: Mapping[str, tolerances.Deviation]

    @property
    def largest(self) -> tolerances.Deviation:
        return tolerances.largest([*self.deviations.values()] or [tolerances.Deviation(value="")])

    @property
    def is_beyond(self) -> bool:
        return self.largest.tolerances > 1


def check_step(bound: BoundStep, values: Sequence[Any], allowed: tolerances.ValueTolerances) -> StepCheck:
    """Compare a step's results with the CPU's. `values` are indexed by slot. Raises NNAdapterError."""
    expected = _expected(bound, values)
    return _compared(bound, [on_host(values[slot]) for slot in bound.outputs], expected, allowed)


def is_random(bound: BoundStep, values: Sequence[Any], allowed: tolerances.ValueTolerances) -> bool:
    """Return True if two runs of the step on the CPU differ, which makes comparison impossible."""
    return _compared(bound, _expected(bound, values), _expected(bound, values), allowed).is_beyond


def forget_reference(bound: BoundStep) -> None:
    """Free a step's reference program on the CPU."""
    with bound.lock:
        reference, bound.reference = bound.reference, None
    if reference is not None:
        reference.pool.close()


def _expected(bound: BoundStep, values: Sequence[Any]) -> Sequence[Any]:
    reference = _reference(bound)
    return reference.pool.compute([on_host(values[slot]) for slot in reference.inputs])


def _reference(bound: BoundStep) -> Substitute:
    with bound.lock:
        if bound.reference is None:
            bound.reference = bound.make_substitute(None)
        return bound.reference


def _compared(
    bound: BoundStep, got: Sequence[Any], expected: Sequence[Any], allowed: tolerances.ValueTolerances
) -> StepCheck:
    every = zip(bound.step.outputs, got, expected, strict=True)
    return StepCheck(
        bound, {name: tolerances.deviation(name, value, other, allowed.of(name)) for name, value, other in every}
    )


_MOST_STEPS = 1024
_MOST_NOTES = 16
_MARGIN = 2.0
"""Factor by which a deviation that was accepted earlier may grow."""


class _StepHistory:
    __slots__ = ("drift", "usual", "why_not")

    def __init__(self) -> None:
        self.drift = Drift()
        self.usual: dict[str, float] = {}
        self.why_not = ""

    def is_beyond(self, check: StepCheck) -> bool:
        every = check.deviations.items()
        return any(off.tolerances > max(1.0, _MARGIN * self.usual.get(name, 0.0)) for name, off in every)

    def accept(self, check: StepCheck) -> None:
        for name, off in check.deviations.items():
            if off.tolerances > 1:
                self.usual[name] = max(off.tolerances, self.usual.get(name, 0.0))


class SessionChecks:
    """Accuracy checks of one session; implements `nnadapter.engine.compiled.Checks`."""

    def __init__(self, source: ModelPlanSource, *, verify: bool, shadow: int | None) -> None:
        self._source: ModelPlanSource = proxy(source)  # weak, because the source owns this object
        self._verify, self._shadow = verify, shadow or 0
        self._runs = count(1)
        self._checked: WeakSet[RunnablePlan] = WeakSet()
        self.count = 0
        self._taken: set[tuple[str, ...]] = set()
        self._past: Cache[tuple[str, ...], _StepHistory] = Cache("steps that were compared", _MOST_STEPS)
        self._quantized: WeakKeyDictionary[Partitioning, frozenset[str]] = WeakKeyDictionary()
        self._notes: dict[str, None] = {}
        self._comparing = new_lock()
        self.first = new_lock()

    def is_due(self) -> bool:
        return self._shadow > 0 and next(self._runs) % self._shadow == 0

    def is_checked(self, plan: RunnablePlan) -> bool:
        return not self._verify or plan in self._checked

    @property
    def notes(self) -> Sequence[str]:
        return tuple(self._notes)

    def check_run(self, plan: RunnablePlan, provenance: Provenance, values: Sequence[Any]) -> tuple[Incident, ...]:
        every = list(zip(plan.plan.steps, provenance.steps, strict=False)) if values else []
        checked_runs = [(bound, run.device) for bound, run in every if bound.is_checked]
        steps = [bound for bound, device in checked_runs if device == bound.step.device]
        with self._comparing:
            check = self._shadowed if self.is_checked(plan) else self._verified
            found = (check(PlannedStep(self._source, plan, bound, values)) for bound in steps)
            incidents = tuple(incident for incident in found if incident is not None)
            if not incidents and len(steps) == len(checked_runs) and (values or plan.plan.note):
                self.count += plan not in self._checked
                self._checked.add(plan)
        if not self._shadow:
            for bound in steps:
                forget_reference(bound)
        return incidents

    def _verified(self, step: PlannedStep) -> Incident | None:
        located = step.cached_result()
        if located is None:
            check = self._compared(step)
            if check is None:
                return None
            located = step.locate() if check.is_beyond else ErrorLocation(ErrorCause.NOTHING)
            if check.is_beyond and located.blame is ErrorCause.NOTHING:
                self._accept(step, check)
            if located.blame is not ErrorCause.PROGRAM:
                located = step.keep(located)
        return None if located.blame is ErrorCause.NOTHING else self._withdraw_wrong_nodes(step, located)

    def _shadowed(self, step: PlannedStep) -> Incident | None:
        past = self._past_of(step)
        check = None if past.why_not else self._compared(step)
        if check is None:
            return None
        is_beyond = past.is_beyond(check)
        if is_beyond and not past.drift.checks:
            located = step.locate()
            if located.blame in (ErrorCause.NODES, ErrorCause.TOGETHER):
                return self._withdraw_wrong_nodes(step, located)
            if located.blame is ErrorCause.NOTHING:
                self._accept(step, check)
                is_beyond = False
        if not past.drift.add(is_beyond=is_beyond):
            return None
        if step.locate().blame is ErrorCause.NOTHING:
            self._accept(step, check)
            past.drift = Drift()
            return None
        return self._withdraw_device(step, check.largest, past.drift.checks)

    def _compared(self, step: PlannedStep) -> StepCheck | None:
        past, bound, values, partitioning = self._past_of(step), step.bound, step.values, step.partitioning
        if partitioning not in self._quantized:
            self._quantized[partitioning] = tolerances.quantized_values(partitioning.plan.graph)
        allowed = step.allowed(self._quantized[partitioning])
        try:
            check = check_step(bound, values, allowed)
            if check.is_beyond and past.is_beyond(check) and is_random(bound, values, allowed):
                past.why_not = "its results on the CPU differ from run to run"
        except FAILURES as error:
            past.why_not = f"the CPU cannot run it: {describe(error)}"
        if not past.why_not:
            return check
        self._note(f"segment {bound.step.segment} on {bound.step.device!r} cannot be compared: {past.why_not}")
        return None

    def _past_of(self, step: PlannedStep) -> _StepHistory:
        return self._past.get_or_make(step.history_key, _StepHistory)

    def _accept(self, step: PlannedStep, check: StepCheck) -> None:
        self._past_of(step).accept(check)
        plan_step = step.bound.step
        self._note(
            f"segment {plan_step.segment} on {plan_step.device!r} differs from the CPU, although each "
            f"of its nodes agrees when it runs alone: {_off(check.largest)}"
        )

    def _withdraw_wrong_nodes(self, step: PlannedStep, located: ErrorLocation) -> Incident:
        device = step.bound.step.device
        nodes = located.nodes or step.nodes
        off = "" if located.deviation is None else f": {_off(located.deviation)}"
        problem = f"device {device!r} computes {_WRONGLY[located.blame].format(named(nodes))}{off}"
        shown = f"; reproducer: {located.reproducer}" if located.reproducer else ""
        instead = f"they move to the next device{shown}"
        incident = self._report_incident(step, nodes, problem, instead, located.deviation)
        removal = (device, *nodes)
        # otherwise replanning would never end
        step.withdraw_nodes(() if removal in self._taken else nodes, problem)
        self._taken.add(removal)
        return incident

    def _withdraw_device(self, step: PlannedStep, off: tolerances.Deviation, checks: int) -> Incident:
        device, segment = step.bound.step.device, step.bound.step.segment
        problem = (
            f"device {device!r} drifts: after {checks} checks, segment {segment} ({named(step.nodes)}) is wrong: "
            f"{_off(off)}"
        )
        instead = (
            f"all nodes move to the next device; `nnadapter compare MODEL -d {device} --layers` "
            "searches for the wrong one"
        )
        incident = self._report_incident(step, step.nodes, problem, instead, off)
        step.withdraw_nodes((), problem)
        return incident

    def _report_incident(
        self, step: PlannedStep, nodes: Sequence[str], problem: str, instead: str, off: tolerances.Deviation | None
    ) -> Incident:
        plan_step, times = step.bound.step, math.inf if off is None else off.tolerances
        error = AccuracyError(problem, device=plan_step.device, segment=plan_step.segment, nodes=nodes, deviation=times)
        return fall_back("accuracy", plan_step, nodes, problem, instead, error, self._source.incidents)

    def _note(self, text: str) -> None:
        if len(self._notes) < _MOST_NOTES:
            self._notes[text] = None


_WRONGLY = {
    ErrorCause.NODES: "{} wrongly",
    ErrorCause.TOGETHER: "{} wrongly when it fuses them",
    ErrorCause.PROGRAM: "{} wrongly in its current program, but correctly in a new one",
}


def _off(off: tolerances.Deviation) -> str:
    times = "infinitely many" if off.tolerances == math.inf else f"{off.tolerances:.3g}"
    return f"{off.value!r} is off by {off.largest_absolute:.3g}, {times} times the tolerance"


REPRODUCERS = "reproducers"
_DIGITS = 16


@dataclass(frozen=True, eq=False)
class PlannedStep:
    """Step of a run, with its plan and the run's values by slot."""

    source: ModelPlanSource
    plan: RunnablePlan
    bound: BoundStep
    values: Sequence[Any]

    @property
    def device(self) -> SessionDevice:
        return self.source.setting.by_name[self.bound.step.device]

    @cached_property
    def partitioning(self) -> Partitioning:
        assert isinstance(self.plan, Compiled), "the engine plans"
        return self.plan.run_partitioning

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        graph = self.partitioning.plan.graph
        return tuple(graph.nodes[node].name for node in self.bound.step.nodes)

    @property
    def history_key(self) -> tuple[str, ...]:
        return self.bound.step.device, *self.nodes

    @property
    def model(self) -> SegmentModel | None:
        """The step's model; None if it differs per input shape."""
        piece = self.partitioning.pieces[self.bound.step.segment]
        return None if piece is None else piece.part.model

    def allowed(self, quantized: frozenset[str]) -> tolerances.ValueTolerances:
        graph = self.partitioning.plan.graph
        dtypes = {name: graph.value(name).dtype or "" for name in self.bound.step.outputs}
        precision = tolerances.precision_of(self.device.options)
        return tolerances.ByPrecision(precision=precision, dtypes=dtypes, quantized=quantized)

    def locate(self) -> ErrorLocation:
        try:
            part = self.partitioning.model.parts.part(self.bound.step)
            model: onnx.ModelProto = part.model
            for proto, name in zip(model.graph.node, self.nodes, strict=True):
                proto.name = name
            inputs = {name: on_host(self.values[self.plan.plan.slots[name]]) for name in part.inputs}
            precision = tolerances.precision_of(self.device.options)
            located = locate(self.source.setting, model, self.bound.step.device, inputs, precision)
            return replace(located, nodes=tuple(_outer(located.nodes, self.nodes)))
        except FAILURES:  # not necessarily a node's error
            return ErrorLocation(ErrorCause.PROGRAM)

    def cached_result(self) -> ErrorLocation | None:
        cache, model = self.device.cache, self.model
        record = None if cache is None or model is None else cache.checked(model)
        with suppress(ValueError, TypeError, KeyError, IndexError):  # damaged record
            return None if record is None else _read(json.loads(record), self.nodes)
        return None

    def keep(self, located: ErrorLocation) -> ErrorLocation:
        """Save a reproducer, and return `located` with the reproducer's folder.

        Ban the wrong nodes. If there are none, or some cannot be banned, cache `located` for later sessions.
        """
        device, model = self.device, self.model
        if device.cache is None or model is None:
            return located
        shown = replace(located, reproducer=_reproduced(device, device.cache.path, located))
        if located.blame is ErrorCause.NODES and self._ban(shown):
            return shown  # the next session has another segment
        device.cache.keep_checked(model, json.dumps(_written(shown, self.nodes)).encode())
        return shown

    def _ban(self, located: ErrorLocation) -> bool:
        device, partitioning, off = self.device, self.partitioning, located.deviation
        if device.bans is None or off is None:
            return False
        graph = partitioning.plan.graph
        reason = f"its results are wrong: {off.value!r} is off by {off.largest_absolute:.3g}"
        wrong = {graph.atom_of[node] for node in self.bound.step.nodes if graph.nodes[node].name in located.nodes}
        bans = []
        for atom in sorted(wrong):
            names = [graph.nodes[node].name for node in graph.atoms[atom]]
            model = model_of(partitioning.model, device, (atom,))
            bans.append(device.bans.add(model, names, reason, "accuracy", reproducer=located.reproducer))
        return all(ban is not None for ban in bans)

    def withdraw_nodes(self, nodes: Sequence[str], reason: str) -> None:
        """Withdraw `nodes`, or all if it is empty, from the step's device for the rest of the session."""
        refused = Unsupported(Reason.WRONG_RESULT, reason)
        self.source.withdraw_nodes(self.bound.step.device, dict.fromkeys(nodes or [ALL], refused))


def _outer(names: Sequence[str], every: Sequence[str]) -> Sequence[str]:
    plan_names = set(every)
    outer = (
        next((enclosing_name for enclosing_name in _enclosing(name) if enclosing_name in plan_names), "")
        for name in names
    )
    return list(dict.fromkeys(filter(None, outer)))


def _enclosing(name: str) -> Sequence[str]:
    parts = name.split("/")
    return ["/".join(parts[:length]) for length in range(len(parts), 0, -1)]


def _written(located: ErrorLocation, nodes: Sequence[str]) -> Mapping[str, Any]:
    return {
        "blame": located.blame.value,
        "nodes": [position for position, name in enumerate(nodes) if name in located.nodes],
        "reproducer": located.reproducer,
        "off": None if located.deviation is None else asdict(located.deviation),
    }


def _read(record: Mapping[str, Any], nodes: Sequence[str]) -> ErrorLocation:
    names = tuple(nodes[int(position)] for position in record["nodes"])
    off = None if record["off"] is None else tolerances.Deviation(**record["off"])
    return ErrorLocation(ErrorCause(record["blame"]), names, off, reproducer=str(record["reproducer"]))


def _reproduced(device: SessionDevice, folder: Path, located: ErrorLocation) -> str:
    if not located.stretches:
        return ""
    stretch = located.stretches[0]
    digest = sha256(stretch.excerpt.model.SerializeToString(deterministic=True)).hexdigest()[:_DIGITS]
    band = tolerances.BANDS[tolerances.precision_of(device.options)]
    with suppress(OSError, ValueError):  # a sequence of different shapes is not an array
        path = folder / REPRODUCERS / f"{device.name.replace(':', '_')}-{digest}"
        return save_stretch(path, stretch, [_request(device)], band.relative, band.absolute).folder
    return ""


def _request(device: SessionDevice) -> DeviceRequest:
    usual = {option.name: option.default for option in device.capability.options}
    return device.name, {name: value for name, value in device.options.items() if value != usual.get(name)}


def with_checks(make: Callable[..., ModelPlanSource], options: Options) -> Callable[..., ModelPlanSource]:
    """Return `make` with the accuracy checks of `options` in each plan source."""

    def make_checked(*arguments: Any, **keyword_arguments: Any) -> ModelPlanSource:
        source = make(*arguments, **keyword_arguments)
        verify, shadow = options.verify is not None, options.shadow
        source.checks = SessionChecks(source, verify=verify, shadow=shadow)
        return source

    return make_checked
