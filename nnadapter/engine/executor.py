"""Executor of a compiled plan: runs the steps in order, by numbered value slots, and replaces steps that fail.

A failed step runs on the CPU with the same inputs, unless the policy forbids fallback. The device first retries it once
after a `TransientError`, and after an `OutOfMemoryError` as long as idle plans can be closed. Inputs survive a failure:
Python drivers get read-only arrays; native drivers, and devices that recently failed, get copies.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from nnadapter import errors
from nnadapter.drivers.boundary import check_results, copied, read_only
from nnadapter.drivers.tensor_copies import Copies, Transfer, on_host
from nnadapter.engine.bound_steps import (
    ALL_ON_HOST,
    BoundStep,
    OtherShapeError,
    OutDevices,
    Substitute,
    output_of,
    own_value,
)
from nnadapter.engine.execution_pool import ExecutionPool
from nnadapter.engine.fallback import REPEATED, Incident
from nnadapter.engine.intermediate_buffers import IntermediateBuffers, Into, RunBuffers
from nnadapter.engine.plan_store import Holding
from nnadapter.engine.provenance import Provenance, StepRun
from nnadapter.ir.operand import Array
from nnadapter.process.resources import close_all, new_lock
from nnadapter.records import dataclass

if TYPE_CHECKING:
    from nnadapter.engine.control import RunControl
    from nnadapter.ir.structure import GuardedShapes


class RunState(NamedTuple):
    """State of one run, shared by its steps."""

    values: list[Any]
    transfers: list[Transfer] | None = None
    """Receives the transfers; None if all values are arrays."""
    out_devices: OutDevices = ALL_ON_HOST
    control: RunControl | None = None
    """None if the run cannot be stopped."""
    sizes: Sequence[Any] | None = None
    """Symbolic sizes; None if no program takes them."""
    buffers: RunBuffers | None = None
    """None if all intermediate values are newly allocated."""
    keeps_values: bool = False
    """True if values are not released after their last reader."""

    def stopped(self, bound: BoundStep, device: str) -> errors.CancelledError | None:
        control, segment = self.control, bound.step.segment
        if control is None or not control.is_over:
            return None
        return control.error(f"the run ended while segment {segment} ran on {device!r}", device=device, segment=segment)


_MOST_FAILURES = 5


def ask_before(control: RunControl, bound: BoundStep, *, shared: bool) -> None:
    """Wait for the next step's turn; raise CancelledError if the run must stop."""
    device, segment = bound.step.device, bound.step.segment
    control.before(device, shared=shared)
    if control.is_over:
        raise control.error(f"the run ended before segment {segment} ran on {device!r}", device=device, segment=segment)


def run_step(bound: BoundStep, run: RunState) -> StepRun:
    """Run one step and store its outputs."""
    started, health, values = time.perf_counter(), bound.health, run.values
    for index_check in bound.index_checks:
        index_check.check(values)
    if health.is_troubled and not health.may_try(bound.health_keys):
        return _run_paused(bound, run, started)
    try:
        for planned_check in bound.planned:
            planned_check.check(values)
        if run.transfers is None:
            results = _compute(bound, [values[slot] for slot in bound.inputs], run)
        else:
            results = _compute_resident(bound, run, run.transfers)
    except errors.FAILURES as error:
        return after_failure(bound, error, run, started)
    if health.is_troubled:
        health.succeeded(bound.health_keys)
    return _finish(bound, bound.step.device, results, values, started)


def after_failure(bound: BoundStep, error: BaseException, run: RunState, started: float) -> StepRun:
    """Retry a failed step or run its substitute, and store the outputs; or raise."""
    device, values = bound.step.device, run.values
    if stopped := run.stopped(bound, device):
        raise stopped from error
    if not bound.is_checked or isinstance(error, (OtherShapeError, errors.DonatedValueError, errors.InputValueError)):
        # The host has no substitute. A donated value is lost, and a value out of range is wrong on every device.
        raise error
    while isinstance(error, errors.TransientError) or (
        isinstance(error, errors.OutOfMemoryError) and bound.make_room()
    ):
        try:
            results = _compute(bound, _on_host(bound, values), run)
        except errors.FAILURES as second:
            if stopped := run.stopped(bound, device):
                raise stopped from second
            is_over = isinstance(error, errors.TransientError) or isinstance(second, errors.DonatedValueError)
            # The first try donated the value, so its error is the cause.
            if not isinstance(second, errors.DonatedValueError):
                error = second
            if is_over:
                break
        else:
            incidents = () if isinstance(error, errors.OutOfMemoryError) else (bound.report_failure(error, REPEATED),)
            return _finish(bound, device, results, values, started, "", incidents)
    bound.health.failed(bound.health_keys, error)
    failure = errors.describe(error)
    substitute = _substitute_of(bound, error)
    with bound.lock:
        if failure not in bound.failures and len(bound.failures) < _MOST_FAILURES:
            bound.failures = (*bound.failures, failure)
    try:
        results = _compute_on_substitute(substitute, bound, failure, run)
    except errors.DonatedValueError as gone:
        text = f"segment {bound.step.segment} failed on {device!r} ({failure}), and cannot be repeated: {gone}"
        raise errors.ExecutionError(text, device=device, segment=bound.step.segment, phase="run") from error
    incident = bound.report_failure(error, f"it runs on {substitute.display_name} instead")
    return _finish(bound, substitute.device, results, values, started, failure, (incident,))


def _run_paused(bound: BoundStep, run: RunState, started: float) -> StepRun:
    failure = bound.health.text(bound.health_keys) or f"device {bound.step.device!r} was paused"
    substitute = _substitute_of(bound, errors.ExecutionError(failure, device=bound.step.device, phase="run"))
    results = _compute_on_substitute(substitute, bound, failure, run)
    return _finish(bound, substitute.device, results, run.values, started, failure)


def _finish(
    bound: BoundStep,
    device: str,
    results: Sequence[Any],
    values: list[Any],
    started: float,
    failure: str = "",
    incidents: tuple[Incident, ...] = (),
) -> StepRun:
    for slot, result in zip(bound.outputs, results, strict=True):
        values[slot] = result
    bound.seconds = time.perf_counter() - started
    return StepRun(bound.step.segment, device, bound.seconds, failure, incidents)


def _compute_resident(bound: BoundStep, run: RunState, transfers: list[Transfer]) -> Sequence[Any]:
    if bound.residence is not None:
        compute = partial(bound.pool.compute_on_device, control=run.control, sizes=_sizes_for(bound, run))
        results = bound.residence.compute(compute, run.values, transfers, run.out_devices)
        if results is not None:
            return results
    return _compute(bound, _on_host(bound, run.values, transfers), run)


def _sizes_for(bound: BoundStep, run: RunState) -> Sequence[Any] | None:
    return run.sizes if bound.takes_sizes else None


def _on_host(bound: BoundStep, values: Sequence[Any], transfers: list[Transfer] | None = None) -> list[Any]:
    transfers = [] if transfers is None else transfers
    return [on_host(values[slot], name, transfers) for slot, name in zip(bound.inputs, bound.names, strict=True)]


def _compute(bound: BoundStep, inputs: Sequence[Any], run: RunState) -> Sequence[Any]:
    is_host, buffers = not bound.is_checked, run.buffers
    # A run that can be stopped uses another driver call, which allocates its results.
    into = () if buffers is None or not (is_host or run.control is None) else buffers.of(bound.step.segment)
    if is_host:
        results = _compute_on_host(bound, inputs, run.control, into)
    else:
        hand = copied if bound.copies_inputs or bound.health.is_troubled else read_only
        handed = [hand(array) for array in inputs]
        if into:
            results = bound.pool.compute_into(handed, into)
        else:
            results = bound.pool.compute(handed, run.control, _sizes_for(bound, run))
        results = check_results(results, bound.step.outputs, bound.expected)
    return results if buffers is None else buffers.copy_if_aliased(results, into)


def _compute_on_host(bound: BoundStep, inputs: Sequence[Any], control: RunControl | None, into: Into) -> Sequence[Any]:
    if into:
        try:
            return bound.pool.compute_into(inputs, into)
        except errors.CancelledError:
            raise
        except errors.NNAdapterError:
            pass
    return bound.pool.compute(inputs, control)


def _substitute_of(bound: BoundStep, error: BaseException) -> Substitute:
    with bound.lock:
        if bound.substitute is None:
            bound.substitute = bound.make_substitute(error)
        return bound.substitute


def _compute_on_substitute(substitute: Substitute, bound: BoundStep, failure: str, run: RunState) -> Sequence[Any]:
    handed = [on_host(run.values[slot]) for slot in substitute.inputs]
    try:
        results = substitute.pool.compute(handed, run.control)
    except errors.NNAdapterError as second:
        if stopped := run.stopped(bound, substitute.device):
            raise stopped from second
        segment = bound.step.segment
        also = substitute.display_name
        message = f"segment {segment} failed on {bound.step.device!r} ({failure}) and on {also} as well: {second}"
        if isinstance(second, errors.InvalidInputError):
            raise errors.InvalidInputError(message) from second
        raise errors.ExecutionError(message, device=substitute.device, segment=segment, phase="run") from second
    return results if run.buffers is None else run.buffers.copy_if_aliased(results)


@dataclass(frozen=True, slots=True)
class CpuFallback:
    """CPU fallback for the entire model, if a plan cannot continue or is not compiled yet."""

    device: str
    pool: ExecutionPool
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    say: Callable[[errors.NNAdapterError], Incident] | None = None

    def run(
        self,
        feeds: Mapping[str, Any],
        names: Sequence[str],
        failure: str,
        out_devices: OutDevices | None,
        control: RunControl | None,
    ) -> tuple[list[Any], Provenance]:
        started, transfers = time.perf_counter(), list[Transfer]()
        arrays = [on_host(feeds[name], name, transfers) for name in self.inputs]
        try:
            computed = self.pool.compute(arrays, control)
        except errors.FAILURES as error:
            if control is None or not control.is_over:
                raise
            raise control.error(
                f"the run ended while the original model ran on {self.device!r}", device=self.device
            ) from error
        results = dict(zip(self.outputs, computed, strict=True))
        run = StepRun(0, self.device, time.perf_counter() - started, failure)
        outputs = [output_of(results[name], name, feeds, out_devices, transfers) for name in names]
        return outputs, Provenance((run,), tuple(transfers))

    @property
    def holding(self) -> Holding:
        return self.pool.holding

    def close(self) -> None:
        self.pool.close()


class StepRunner(Protocol):
    """Runner of a plan's steps, which may overlap; implemented by `Flights`."""

    def run(self, steps: Sequence[BoundStep], run: RunState) -> list[StepRun]:
        pass

    def close(self) -> None:
        pass


_FINAL_ERRORS = (errors.CancelledError, errors.DonatedValueError, errors.InputValueError)
"""Errors that the CPU fallback cannot avoid, or must not hide."""


class CompiledPlan:
    """Bound steps of a plan with their compiled programs, run in order."""

    def __init__(
        self,
        steps: Sequence[BoundStep],
        slots: Mapping[str, int],
        outputs: Mapping[str, int],
        constants: Mapping[int, Array],
        make_cpu_fallback: Callable[[errors.NNAdapterError], CpuFallback] | None = None,
        new_transfers: Callable[[], list[Transfer]] = list,
        guarded_shapes: GuardedShapes | None = None,
        buffers: IntermediateBuffers | None = None,
        step_runner: StepRunner | None = None,
        held_between: Callable[[], Mapping[Hashable, int]] = dict,
    ) -> None:
        """Bind the steps to slots.

        `make_cpu_fallback` is None if the plan is the CPU fallback itself. `guarded_shapes` is for programs with
        symbolic sizes. `buffers` is None if steps allocate all intermediate values. `held_between` returns bytes of
        intermediate memory that plans share, by the memory's identity.
        """
        self._held_between = held_between
        self._buffers = buffers
        self._step_runner = step_runner
        self._guarded_shapes = guarded_shapes
        self.steps = tuple(steps)
        self.note = ""
        """Reason why the plan was abandoned."""
        self.transfers: tuple[Transfer, ...] | None = None
        """Transfers of the last run; None if no value could be device-resident."""
        self._stays = any(bound.residence is not None and bound.residence.saves for bound in self.steps)
        self._make_cpu_fallback = make_cpu_fallback
        self._new_transfers = new_transfers
        self._cpu_fallback: CpuFallback | None = None
        self._lock = new_lock()
        self.slots = slots
        self._outputs = outputs
        self._shares = len({bound.step.device for bound in self.steps}) > 1
        self._blank: list[Any] = [None] * len(slots)
        for slot, array in constants.items():
            self._blank[slot] = array

    def sole_step(self, outputs: Sequence[str]) -> tuple[BoundStep, tuple[str, ...], tuple[int, ...]] | None:
        """Return the only step, its input names, and the index of each output in its results.

        None if the plan needs several program calls.
        """
        if len(self.steps) != 1 or not set(outputs) <= set(self.steps[0].step.outputs):
            return None
        (bound,) = self.steps
        if any(self._blank[slot] is not None for slot in bound.inputs):
            return None
        more = self._buffers or self._step_runner or self._guarded_shapes or self._stays or bound.planned
        if bound.is_checked and more:
            return None
        names = {slot: name for name, slot in self.slots.items()}
        order = tuple(bound.step.outputs.index(name) for name in outputs)
        return bound, tuple(names[slot] for slot in bound.inputs), order

    def check_indices(self, bound: BoundStep, feeds: Mapping[str, Any]) -> None:
        """Raise InputValueError if an index or length that a step reads from feeds is out of range."""
        values = self._values_of(feeds)
        for index_check in bound.index_checks:
            index_check.check(values)

    def run(
        self,
        feeds: Mapping[str, Any],
        names: Sequence[str],
        control: RunControl | None = None,
        out_devices: OutDevices | None = None,
        sizes: Sequence[Any] | None = None,
        failed: BaseException | None = None,
    ) -> tuple[list[Any], Provenance]:
        """Run every step, and return the outputs `names`.

        `feeds` are checked arrays or `Copies`. `out_devices` maps each output that is returned as `Copies` to its
        device; None if no outputs or feeds are `Copies`. `failed` is the only step's error if it was already tried.
        """
        if self.note and self._cpu_fallback is not None:
            return self._cpu_fallback.run(feeds, names, self.note, out_devices, control)
        try:
            # a stopped run leaves steps in flight, which would write to the released block
            may_leave_work = control is not None and self._step_runner is not None
            if self._buffers is None or may_leave_work or sizes is not None:
                return self._run_steps(feeds, names, control, out_devices, sizes, failed=failed)[:2]
            with self._buffers.acquire() as buffers:
                return self._run_steps(feeds, names, control, out_devices, sizes, buffers)[:2]
        except errors.NNAdapterError as error:
            return self._run_fallback(error, feeds, names, out_devices, control)

    def run_held(
        self,
        feeds: Mapping[str, Any],
        names: Sequence[str],
        control: RunControl | None = None,
        out_devices: OutDevices | None = None,
        sizes: Sequence[Any] | None = None,
    ) -> tuple[list[Any], Provenance, list[Any]]:
        """Run as `run` does; also return the values of all steps by slot (empty after a CPU fallback)."""
        feeds = {name: value.donate(False) if type(value) is Copies else value for name, value in feeds.items()}
        if self.note and self._cpu_fallback is not None:
            return *self.run(feeds, names, control, out_devices, sizes), []
        try:
            return self._run_steps(feeds, names, control, out_devices, sizes, keeps_values=True)
        except errors.NNAdapterError as error:
            return *self._run_fallback(error, feeds, names, out_devices, control), []

    def _run_fallback(
        self,
        error: errors.NNAdapterError,
        feeds: Mapping[str, Any],
        names: Sequence[str],
        out_devices: OutDevices | None,
        control: RunControl | None,
    ) -> tuple[list[Any], Provenance]:
        """Run the entire model on the CPU, or raise `error`; after an OtherShapeError, later runs skip the plan."""
        if isinstance(error, _FINAL_ERRORS) or self._make_cpu_fallback is None:
            raise error
        with self._lock:
            cpu_fallback = self._cpu_fallback = self._cpu_fallback or self._make_cpu_fallback(error)
        assert cpu_fallback.say is not None, "failures are reported"
        try:
            outputs, provenance = cpu_fallback.run(feeds, names, errors.describe(error), out_devices, control)
        except errors.CancelledError:
            raise
        except errors.NNAdapterError:
            raise error from None
        self.transfers = provenance.transfers or None
        run = provenance.steps[0]._replace(incidents=(cpu_fallback.say(error),))
        if isinstance(error, OtherShapeError):
            self.note = errors.describe(error)
        return outputs, provenance._replace(steps=(run,))

    def _values_of(self, feeds: Mapping[str, Any]) -> list[Any]:
        values = self._blank.copy()
        for name, array in feeds.items():
            slot = self.slots.get(name)
            if slot is not None:
                values[slot] = array
        return values

    def _run_steps(
        self,
        feeds: Mapping[str, Any],
        names: Sequence[str],
        control: RunControl | None,
        out_devices: OutDevices | None,
        sizes: Sequence[Any] | None,
        buffers: RunBuffers | None = None,
        failed: BaseException | None = None,
        *,
        keeps_values: bool = False,
    ) -> tuple[list[Any], Provenance, list[Any]]:
        """Run the steps; return outputs, provenance, and the values that were not released, by slot."""
        if self._guarded_shapes is not None and sizes is not None:
            feeds = {**feeds, **self._guarded_shapes.shape_derived_values_at(sizes)}
        values = self._values_of(feeds)
        transfers = self._new_transfers() if self._stays or out_devices is not None else None
        run = RunState(values, transfers, out_devices or ALL_ON_HOST, control, sizes, buffers, keeps_values)
        if self._step_runner is not None:
            runs = self._step_runner.run(self.steps, run)
        else:
            runs = []
            for bound in self.steps:
                if control is not None:
                    ask_before(control, bound, shared=self._shares)
                runs.append(
                    run_step(bound, run) if failed is None else after_failure(bound, failed, run, time.perf_counter())
                )
                for slot in () if keeps_values else bound.released:
                    values[slot] = None
        if transfers is None:
            self.transfers = None
            outputs = [own_value(values[self._outputs[name]], name in feeds) for name in names]
            return outputs, Provenance(tuple(runs)), values
        outputs = [output_of(values[self._outputs[name]], name, feeds, out_devices, transfers) for name in names]
        self.transfers = tuple(transfers)
        return outputs, Provenance(tuple(runs), self.transfers), values

    @property
    def holding(self) -> Holding:
        holdings = [pool.holding for pool in self._pools()]
        shared = {key: nbytes for holding in holdings for key, nbytes in holding.shared_bytes.items()}
        shared.update(self._held_between())
        return Holding(sum(holding.own_bytes for holding in holdings), shared)

    def close(self) -> None:
        close_all([*self._runners(), *self._pools()])

    def close_fallback(self) -> None:
        """Free the overlap runner and the CPU fallback, but not the programs, which plans share."""
        close_all([*self._runners(), *self._fallback_pools()])

    def _runners(self) -> list[StepRunner]:
        return [] if self._step_runner is None else [self._step_runner]

    def _fallback_pools(self) -> list[ExecutionPool]:
        return [] if self._cpu_fallback is None else [self._cpu_fallback.pool]

    def _pools(self) -> list[ExecutionPool]:
        return [*(pool for bound in self.steps for pool in bound.pools), *self._fallback_pools()]
