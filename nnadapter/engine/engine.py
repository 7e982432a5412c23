"""Engines of a session. `PlanEngine` checks feeds, looks up a compiled plan and runs it."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import numpy as np

from nnadapter.drivers.boundary import check_results, copied, read_only
from nnadapter.drivers.tensor_copies import TENSORS
from nnadapter.engine.bound_steps import BoundStep, own_value
from nnadapter.engine.execution_pool import ExecutionPool
from nnadapter.engine.executor import CompiledPlan
from nnadapter.engine.plan_source import BranchTest, InputShapes, PlanSource, RunResult
from nnadapter.engine.plan_store import Lease, PlanCache
from nnadapter.engine.provenance import Provenance, of_one, with_incidents
from nnadapter.errors import FAILURES, ClosedError
from nnadapter.onnx.signature import ModelMetadata, NodeArg, Shapes, Signature, node_arg
from nnadapter.process.resources import close_all, new_lock
from nnadapter.traces.trace import PLAN, RUN, SESSION

if TYPE_CHECKING:
    import onnxruntime

    from nnadapter.drivers.onnxruntime.sessions import SessionExecution
    from nnadapter.engine.bindings import Binding
    from nnadapter.engine.bound_steps import OutDevices
    from nnadapter.engine.compiled import Checks, RunnablePlan
    from nnadapter.engine.control import Deadlines, RunControl
    from nnadapter.engine.fallback import Incident
    from nnadapter.engine.host import HostEngine
    from nnadapter.engine.observed import KeptReport, Observed
    from nnadapter.engine.shape_sets import ShapeTest
    from nnadapter.traces.recorder import Recorder


class _Serving:
    """Plan source of an engine, with the state of its runs. A new source gets new state."""

    __slots__ = ("last_shapes", "latest", "source")

    def __init__(self, source: PlanSource[Any]) -> None:
        self.source = source
        self.latest: Repeat | None = None
        self.last_shapes: InputShapes | None = None


class _Request(NamedTuple):
    values: Mapping[str, Any]
    shapes: InputShapes
    output_names: Sequence[str]
    out_devices: OutDevices | None
    control: RunControl | None
    options: Any


class PlanEngine:
    """Engine that runs a model by compiled plans. Thread-safe."""

    def __init__(
        self,
        source: PlanSource[Any],
        deadline_s: float | None,
        session_options: onnxruntime.SessionOptions | None = None,
    ) -> None:
        self._serving = _Serving(source)
        self._session_options = session_options
        self._all_outputs = list(source.signature.output_names)
        self._deadlines: Deadlines | None = None
        if deadline_s is not None:
            from nnadapter.engine.control import Deadlines

            self._deadlines = Deadlines(deadline_s)
        self._recorder = cast("Recorder", source.trace) if source.trace.is_recording else None
        self._run_numbers = count(1)
        if self._recorder is not None:
            weakref.finalize(self, self._recorder.finish)
        self._has_read_entries = False
        self._retired: list[PlanSource[Any]] = []
        self._replacing, self._is_closed = new_lock(), False

    @property
    def source(self) -> PlanSource[Any]:
        return self._serving.source

    def run(
        self,
        names: Sequence[str] | None,
        feed: Mapping[str, Any],
        options: Any = None,
        control: RunControl | None = None,
        out_devices: OutDevices | None = None,
    ) -> RunResult:
        recorder = self._recorder
        if recorder is None:
            return self._run(names, feed, options, control, out_devices)
        if control is not None:
            control.trace = recorder
        with recorder.span(SESSION, RUN, "run", run=next(self._run_numbers)) as facts:
            results, provenance = self._run(names, feed, options, control, out_devices)
            facts["fell_back"] = provenance.fell_back
        return results, provenance

    def _run(
        self,
        names: Sequence[str] | None,
        feed: Mapping[str, Any],
        options: Any,
        control: RunControl | None,
        out_devices: OutDevices | None,
    ) -> RunResult:
        serving = self._serving
        try:
            result = self._run_by(serving, names, feed, options, control, out_devices)
        except serving.source.recoverable as error:
            serving = self._replace(serving, error)
            result = self._run_by(serving, names, feed, options, control, out_devices)
        serving.source.write_new_plans()
        return result

    def _run_by(
        self,
        serving: _Serving,
        names: Sequence[str] | None,
        feed: Mapping[str, Any],
        options: Any,
        control: RunControl | None,
        out_devices: OutDevices | None,
    ) -> RunResult:
        source = serving.source
        for count_check in source.count_checks:
            count_check.check(feed)
        checks = source.checks
        is_due = checks is not None and checks.is_due()
        latest = None if is_due else serving.latest
        if control is None and (options is not None or self._deadlines is not None):
            from nnadapter.engine.control import RunControl

            control = RunControl()
        if options is not None:
            feed = self._with_adapters(feed, options, control, is_bound=out_devices is not None)
            self._warn_of_unread_entries(options)
        if (
            latest is not None
            and control is None
            and out_devices is None
            and (names is None or (type(names) is list and names == self._all_outputs))
        ):
            result = latest.run(feed)
            if result is None:
                result = self._run_at_other_sizes(serving, latest, feed)
            if result is not None:
                if latest.is_broken:
                    source.note_contradiction(latest.lease)
                return result
        output_names = source.signature.check_outputs(names)
        values = source.signature.check_feed(feed)
        if source.defaults:
            values = {**source.defaults, **values}
        shapes = tuple([_shape_of(values[name]) for name in source.input_names])
        request = _Request(values, shapes, output_names, out_devices, control, options)
        background_run = source.background_run(shapes, values)
        if background_run is not None:
            with self._controlled(request):
                result = background_run(values, output_names, control, out_devices)
            if result is not None:
                return result
        return self._run_planned(serving, request, latest, is_due=is_due)

    def _run_planned(self, serving: _Serving, request: _Request, latest: Repeat | None, *, is_due: bool) -> RunResult:
        source, use = serving.source, object()
        values, shapes, output_names, out_devices, control, _ = request
        try:
            lease, compiled, sizes = source.take(use, shapes, values)
            plan: CompiledPlan = compiled.plan
            is_dynamic = compiled.has_dynamic_shapes
            if is_dynamic:
                serving.last_shapes = shapes
            if source.checks is not None and (is_due or not source.checks.is_checked(compiled)):
                return self._run_checked(source, source.checks, use, request)
            is_other = latest is None or latest.lease is not lease or is_dynamic or latest.is_of_choice
            # `Repeat` handles no device-resident outputs and no default inputs
            if out_devices is None and is_other and not source.defaults:
                serves, fits = source.serves(compiled, values), source.fits(values)
                serving.latest = Repeat(source.plans, lease, compiled, source.signature, values, sizes, serves, fits)
            if control is None:
                result = plan.run(values, output_names, None, out_devices, sizes)
                if compiled.watch is not None and compiled.watch.is_broken_by(result[1].seconds, time.perf_counter()):
                    source.note_contradiction(lease)
                return result
            with self._controlled(request):
                return plan.run(values, output_names, control, out_devices, sizes)
        finally:
            source.plans.users.pop(use, None)
            source.plans.close_unused()
            TENSORS.free_orphans()

    def _replace(self, failed: _Serving, error: Exception) -> _Serving:
        with self._replacing:
            if self._is_closed:
                raise ClosedError("the session is closed; make another one")
            if self._serving is failed:
                successor = failed.source.successor(error)
                self._retired.append(failed.source)
                self._serving = _Serving(successor)
            return self._serving

    def _with_adapters(
        self, feed: Mapping[str, Any], options: Any, control: RunControl | None, *, is_bound: bool
    ) -> Mapping[str, Any]:
        from nnadapter.drivers.onnxruntime.adapters import adapter_parameters, has_adapters, warn_of_adapters

        if not has_adapters(options):
            return feed
        if control is not None:
            control.copies_options = True
        if is_bound:
            warn_of_adapters(options)
            return feed
        return {**feed, **adapter_parameters(options, (*self.inputs(), *self.overridable()))}

    def _warn_of_unread_entries(self, options: Any) -> None:
        entries = getattr(options, "entries", None)
        if entries is None:
            if self._has_read_entries:
                return  # ONNX Runtime raises an exception for each missing entry, which is slow
            from nnadapter.drivers.onnxruntime.sessions import entries_of

            self._has_read_entries, entries = True, entries_of(options)
        if entries:
            from nnadapter.drivers.providers import warn_of_unread_entries

            warn_of_unread_entries(entries, self.source.devices)

    def _run_at_other_sizes(self, serving: _Serving, latest: Repeat, feed: Any) -> RunResult | None:
        """Run by the last run's plan; return None if it does not serve these shapes."""
        source = serving.source
        other = latest.at_other_sizes(feed, source.input_names)
        if other is None:
            return None
        repeat, shapes = other
        compiled = repeat.lease.plan
        if compiled is None or not source.may_serve(compiled, shapes):
            return None
        result = repeat.run_like(feed)
        if result is not None:
            serving.latest, serving.last_shapes = repeat, shapes
            source.note_served(compiled)
        return result

    @contextmanager
    def _controlled(self, request: _Request) -> Iterator[None]:
        control = request.control
        if control is None:
            yield
            return
        from nnadapter.drivers.onnxruntime.sessions import run_options

        previous = run_options.get()
        try:
            run_options.set(control.begin(request.options, self._deadlines))
            yield
        finally:
            control.end()
            run_options.set(previous)

    def _run_checked(self, source: PlanSource[Any], checks: Checks, use: object, request: _Request) -> RunResult:
        """Run a plan and compare every step with the CPU; after a wrong step, run another plan."""
        incidents: tuple[Incident, ...] = ()
        values, shapes, output_names, out_devices, *_ = request
        while True:
            _, compiled, sizes = source.take(use, shapes, values)
            with nullcontext() if checks.is_checked(compiled) else checks.first:
                with self._controlled(request):
                    results, provenance, slots = compiled.plan.run_held(
                        values, output_names, request.control, out_devices, sizes
                    )
                wrong = checks.check_run(compiled, provenance, slots)
            incidents += wrong
            if not wrong:
                return results, with_incidents(provenance, incidents)
            request = request._replace(control=None)

    def binding(self) -> Binding:
        from nnadapter.engine.bindings import PlannedBinding

        return PlannedBinding(self.run, self._all_outputs, self.source.devices)

    def prepare(self, shapes: Shapes) -> None:
        with nullcontext() if self._recorder is None else self._recorder.span(SESSION, PLAN, "prepare shapes"):
            serving = self._serving
            try:
                serving.source.prepare(shapes)
            except serving.source.recoverable as error:
                serving = self._replace(serving, error)
                serving.source.prepare(shapes)
            serving.source.write_new_plans()

    def observed(self) -> Observed | KeptReport:
        """Return the facts for a report on the last run's plan; before any run, on a plan for default shapes."""
        serving = self._serving
        return serving.source.observed(serving.last_shapes)

    def inputs(self) -> list[NodeArg]:
        return list(map(node_arg, self.source.signature.inputs))

    def outputs(self) -> list[NodeArg]:
        return list(map(node_arg, self.source.signature.outputs))

    def overridable(self) -> list[NodeArg]:
        """Return the optional inputs (overridable initializers in ONNX Runtime)."""
        return list(map(node_arg, self.source.signature.overridable))

    def metadata(self) -> ModelMetadata:
        return self.source.signature.metadata

    def session_options(self) -> onnxruntime.SessionOptions:
        if self._session_options is None:
            from nnadapter.drivers.onnxruntime.sessions import new_session_options

            self._session_options = new_session_options()
        return self._session_options

    def end_profiling(self) -> str:
        """Stop profiling and return the path of the profile, if any."""
        return "" if self._recorder is None else self._recorder.finish()

    def profiling_started(self) -> int:
        """Return the start time of profiling in nanoseconds; 0 if profiling is off."""
        return 0 if self._recorder is None else self._recorder.started

    def close(self) -> None:
        """Free all plans and devices; plans in use are freed after their run. Idempotent."""
        with self._replacing:
            self._is_closed = True
        try:
            self._serving.latest = None
            if self._deadlines is not None:
                self._deadlines.close()
            TENSORS.free_orphans()
            close_all((*self._retired, self.source))
        finally:
            if self._recorder is not None:
                self._recorder.finish()


Engine: TypeAlias = "PlanEngine | HostEngine"
"""Model that is ready to run. `HostEngine` has the methods of `PlanEngine`. Thread-safe."""


def _shape_of(value: Any) -> tuple[int, ...] | None:
    shape = getattr(value, "shape", None)
    return shape if type(shape) is tuple else None


class SingleStep:
    """Fast path for a plan with one step. `CompiledPlan.run` takes over after failures and for abandoned plans.

    `order` maps each of `outputs` to its index among the step's results.
    """

    __slots__ = ("_bound", "_hand", "_health", "_names", "_order", "_outputs", "_plan")

    def __init__(
        self, plan: CompiledPlan, outputs: Sequence[str], bound: BoundStep, names: Sequence[str], order: Sequence[int]
    ) -> None:
        self._plan, self._outputs, self._bound = plan, outputs, bound
        self._names, self._order = names, order
        self._health, self._hand = bound.health, copied if bound.copies_inputs else read_only

    def run(self, feed: Mapping[str, Any]) -> tuple[list[Any], Provenance]:
        if self._plan.note or self._health.is_troubled:
            return self._plan.run(feed, self._outputs)
        bound, hand, started = self._bound, self._hand, time.perf_counter()
        step = bound.step
        if bound.index_checks:
            self._plan.check_indices(bound, feed)
        try:
            computed = bound.pool.compute([hand(feed[name]) for name in self._names])
            results = check_results(computed, step.outputs, bound.expected)
        except FAILURES as error:
            return self._plan.run(feed, self._outputs, failed=error)
        seconds = bound.seconds = time.perf_counter() - started
        self._plan.transfers = None
        outputs = [own_value(results[index], fed=False) for index in self._order]
        return outputs, of_one(step.segment, step.device, seconds)


_Run = Callable[[Sequence[str], Mapping[str, Any]], list[Any]]

_ARRAYS = {np.ndarray}


class Repeat:
    """Fast path for repeated runs: a feed with the dtypes and shapes of the previous one needs no lookup.

    A plan with one step on the CPU runs without a lease of its programs (`_run_directly`), with one step on a device by
    `SingleStep`, and other plans by `CompiledPlan.run`.

    Args:
        sizes: symbolic sizes for the plan, if it takes any.
        serves: test if the plan serves other shapes; None if only the plan source knows.
        fits: test if a feed selects the same branches; None if feeds select none.
    """

    __slots__ = (
        "_direct", "_expected", "_fits", "_outputs", "_plan", "_plans", "_run_plan", "_serves", "_sole_step",
        "_watch", "is_broken", "lease",
    )  # fmt: skip

    def __init__(
        self,
        plans: PlanCache[Any],
        lease: Lease[Any],
        compiled: RunnablePlan,
        signature: Signature,
        feed: Mapping[str, Any],
        sizes: Sequence[Any] | None = None,
        serves: ShapeTest | None = None,
        fits: BranchTest | None = None,
    ) -> None:
        self.lease, self._plans, self._plan = lease, plans, compiled.plan
        self._serves = serves
        self._watch, self._fits = compiled.watch, fits
        self.is_broken = False
        self._outputs = signature.output_names
        sole_step = compiled.plan.sole_step(self._outputs)
        self._sole_step = sole_step if sole_step is not None and not sole_step[0].is_checked else None
        self._run_plan: Callable[[Mapping[str, Any]], RunResult] = (
            SingleStep(compiled.plan, self._outputs, *sole_step).run
            if sole_step is not None and sizes is None
            else partial(compiled.plan.run, names=self._outputs, sizes=sizes)
        )
        dtypes = signature.dtypes
        expected = tuple(
            [
                (name, dtypes[name], value.shape)
                for name, value in feed.items()
                if type(value) is np.ndarray and name in dtypes
            ]
        )
        self._expected = expected if len(expected) == len(feed) else ()
        self._direct: tuple[BoundStep, _Run] | None = None
        """The plan's only step, and ONNX Runtime's run method; set by a run if the step's session has the model's
        input and output names.
        """

    @property
    def is_of_choice(self) -> bool:
        return self._fits is not None

    def run(self, feed: Any) -> RunResult | None:
        """Run the plan; return None if the feed is invalid or needs another plan."""
        if type(feed) is not dict or len(feed) != len(self._expected):
            return None
        for name, dtype, shape in self._expected:
            array = feed.get(name)
            if type(array) is not np.ndarray or array.shape != shape:
                return None
            if array.dtype is not dtype and array.dtype != dtype:
                return None
        if self._fits is not None and not self._fits(feed):
            return None
        return self.run_like(feed)

    def run_like(self, feed: Mapping[str, Any]) -> RunResult | None:
        """Run the plan with a checked feed; return None if the plan was dropped."""
        direct = self._direct
        if direct is not None:
            return self._run_directly(direct[0], direct[1], feed)
        if self._sole_step is not None:
            return self._run_alone(*self._sole_step, feed)
        use = object()
        try:
            if not self._plans.take_again(use, self.lease):
                return None
            result = self._run_plan(feed)
            if self._watch is not None:
                self.is_broken = self._watch.is_broken_by(result[1].seconds, time.perf_counter())
            return result
        finally:
            self._plans.users.pop(use, None)
            self._plans.close_unused()
            TENSORS.free_orphans()

    def at_other_sizes(self, feed: Any, names: Sequence[str]) -> tuple[Repeat, tuple[tuple[int, ...], ...]] | None:
        """Return a copy for this feed's shapes, and these shapes; None if the feed needs another plan."""
        expected = self._expected
        if self._serves is None or type(feed) is not dict or not len(feed) == len(expected) == len(names):
            return None
        fed, dtypes, _ = zip(*expected, strict=True)
        arrays: list[Any] = list(map(feed.get, fed))
        if {*map(type, arrays)} != _ARRAYS or [array.dtype for array in arrays] != list(dtypes):
            return None
        by_name = dict(zip(fed, [array.shape for array in arrays], strict=True))
        is_served, sizes = self._serves(by_name)
        if not is_served or (self._fits is not None and not self._fits(feed)):
            return None
        other = Repeat.__new__(Repeat)
        other.lease, other._plans, other._plan = self.lease, self._plans, self._plan
        other._watch, other.is_broken, other._outputs = self._watch, False, self._outputs
        other._fits, other._serves = self._fits, self._serves
        other._expected = tuple(zip(fed, dtypes, by_name.values(), strict=True))
        other._sole_step = other._direct = None
        if sizes is None:
            other._sole_step, other._direct, other._run_plan = self._sole_step, self._direct, self._run_plan
        else:
            other._run_plan = partial(self._plan.run, names=self._outputs, sizes=sizes)
        return other, tuple(map(by_name.__getitem__, names))

    def _run_alone(
        self, bound: BoundStep, input_names: Sequence[str], order: Sequence[int], feed: Mapping[str, Any]
    ) -> RunResult | None:
        from nnadapter.drivers.onnxruntime.sessions import SessionExecution

        execution = bound.pool.shared
        if isinstance(execution, SessionExecution) and self._named_alike(execution, input_names, order):
            self._direct = (bound, execution.run)
            return self._run_directly(*self._direct, feed)
        return self._run_directly(bound, partial(_by_position, bound.pool, input_names, order), feed)

    def _run_directly(self, bound: BoundStep, run: _Run, feed: Mapping[str, Any]) -> RunResult | None:
        # closing the plan during the run is harmless: a session lives as long as it is referenced
        lease = self.lease
        if lease.dropped:
            return None
        lease.reuse_count += 1
        started = time.perf_counter()
        results = run(self._outputs, feed)
        ended = time.perf_counter()
        seconds = bound.seconds = ended - started
        if self._watch is not None:
            self.is_broken = self._watch.is_broken_by(seconds, ended)
        return results, of_one(bound.step.segment, bound.step.device, seconds)

    def _named_alike(self, execution: SessionExecution, input_names: Sequence[str], order: Sequence[int]) -> bool:
        fed = {name for name, _, _ in self._expected}
        outputs = tuple(execution.output_names[index] for index in order)
        return (
            execution.input_names == tuple(input_names) and fed == set(input_names) and outputs == tuple(self._outputs)
        )


def _by_position(
    pool: ExecutionPool, input_names: Sequence[str], order: Sequence[int], names: Sequence[str], feed: Mapping[str, Any]
) -> list[Any]:
    results = pool.compute([feed[name] for name in input_names])
    return [results[index] for index in order]
