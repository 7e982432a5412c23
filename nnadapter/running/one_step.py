"""One step of a run: on its device, and where that fails, in its place.

A step that fails on its device runs again on the CPU with the same inputs, and the run's provenance says so; where the
policy forbids that, the failure is raised as a typed error that names device, segment and nodes. What a driver says may
go well the next time (`TransientError`) is repeated once before; where there was no room, as often as plans that nobody
uses can make some. A device that keeps failing rests (`resting.py`).

The same inputs are the same bytes: numpy refuses to write to what a driver in Python gets, and devices whose own code
gets addresses, or that failed and did not go well since, work on copies.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from nnadapter.drivers.border import check_results, copied, read_only
from nnadapter.drivers.copies import Transfer, on_host
from nnadapter.errors import (
    FAILURES,
    CancelledError,
    ExecutionError,
    GivenUpError,
    InputValueError,
    InvalidInputError,
    NNAdapterError,
    OutOfMemoryError,
    TransientError,
    describe,
)
from nnadapter.ir.operand import Array
from nnadapter.running.borders import Given, Into
from nnadapter.running.bound_step import BoundStep, Substitute
from nnadapter.running.failing import REPEATED
from nnadapter.running.incidents import Incident
from nnadapter.running.outputs import Kept
from nnadapter.running.provenance import StepRun
from nnadapter.running.slots import OtherShapeError

if TYPE_CHECKING:
    from nnadapter.running.control import RunControl

_MOST_FAILURES = 5


def _stopped(control: RunControl, bound: BoundStep, device: str, how: str) -> CancelledError:
    segment = bound.step.segment
    return control.error(f"segment {segment} on {device!r} {how}", device=device, segment=segment)


def ask_before(control: RunControl, bound: BoundStep, *, shared: bool) -> None:
    """Wait for the turn of a step that is next; raise CancelledError where the run is to stop.

    Args:
        control: of the run.
        bound: the step.
        shared: the plan has several devices.
    """
    control.before(bound.step.device, shared=shared)
    if control.is_over:
        raise _stopped(control, bound, bound.step.device, "was next")


def run_step(
    bound: BoundStep,
    values: list[Any],
    made: list[Transfer] | None,
    kept: Kept,
    control: RunControl | None,
    sizes: Sequence[Any] | None,
    given: Given | None,
) -> StepRun:
    """Run one step, and note what it made; where values may stay on devices, `made` gets the transfers."""
    started, health = time.perf_counter(), bound.health
    for index_check in bound.index_checks:
        index_check.check(values)
    if health.is_troubled and not health.may_try(bound.known_as):
        return _without_trying(bound, values, control, given, started)
    try:
        for planned_check in bound.planned:
            planned_check.check(values)
        if made is None:
            results = _computed(bound, [values[slot] for slot in bound.inputs], control, sizes, given)
        else:
            results = _staying(bound, values, made, kept, control, sizes, given)
    except FAILURES as error:
        return after_failure(bound, error, values, control, sizes, given, started)
    if health.is_troubled:
        health.succeeded(bound.known_as)
    return _noted(bound, bound.step.device, results, values, started)


def after_failure(
    bound: BoundStep,
    error: BaseException,
    values: list[Any],
    control: RunControl | None,
    sizes: Sequence[Any] | None,
    given: Given | None,
    started: float,
) -> StepRun:
    """Run a step that failed on its device once more, or elsewhere, and note what it made; or raise."""
    device = bound.step.device
    if control is not None and control.is_over:
        raise _stopped(control, bound, device, "was under way") from error
    if not bound.guarded or isinstance(error, (OtherShapeError, GivenUpError, InputValueError)):
        # The host's own errors are typed. No other device has what is gone, or computes with a value out of range.
        raise error
    while isinstance(error, TransientError) or (isinstance(error, OutOfMemoryError) and bound.make_room()):
        try:
            results = _computed(bound, _on_host(bound, values), control, sizes, given)
        except FAILURES as second:
            if control is not None and control.is_over:
                raise _stopped(control, bound, device, "was under way") from second
            is_over = isinstance(error, TransientError) or isinstance(second, GivenUpError)
            if not isinstance(second, GivenUpError):  # that a failed run gave it up follows from the first
                error = second
            if is_over:
                break
        else:
            said = () if isinstance(error, OutOfMemoryError) else (bound.say(bound.step, error, REPEATED),)
            return _noted(bound, device, results, values, started, "", said)
    bound.health.failed(bound.known_as, error)
    failure = describe(error)
    substitute = _substitute(bound, error)
    with bound.lock:
        if failure not in bound.failures and len(bound.failures) < _MOST_FAILURES:
            bound.failures = (*bound.failures, failure)
    try:
        results = _results_of(substitute, bound, failure, values, control, given)
    except GivenUpError as gone:  # to the run that failed
        text = f"segment {bound.step.segment} failed on {device!r} ({failure}), and cannot be repeated: {gone}"
        raise ExecutionError(text, device=device, segment=bound.step.segment, phase="run") from error
    incident = bound.say(bound.step, error, f"it runs on {substitute.display_name} instead")
    return _noted(bound, substitute.device, results, values, started, failure, (incident,))


def _without_trying(
    bound: BoundStep, values: list[Any], control: RunControl | None, given: Given | None, started: float
) -> StepRun:
    """Run a step elsewhere whose device rests, and note what it made."""
    failure = bound.health.text(bound.known_as) or f"device {bound.step.device!r} rested"
    substitute = _substitute(bound, ExecutionError(failure, device=bound.step.device, phase="run"))
    results = _results_of(substitute, bound, failure, values, control, given)
    return _noted(bound, substitute.device, results, values, started, failure)


def _noted(
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


def _staying(
    bound: BoundStep,
    values: list[Any],
    made: list[Transfer],
    kept: Kept,
    control: RunControl | None,
    sizes: Sequence[Any] | None,
    given: Given | None,
) -> Sequence[Any]:
    """What a step makes of values that may lie on devices: there, or from arrays."""
    if bound.residence is not None:
        compute = partial(bound.pool.compute_on_device, control=control, sizes=sizes)
        stayed = bound.residence.compute(compute, values, made, kept)
        if stayed is not None:
            return stayed
    return _computed(bound, _on_host(bound, values, made), control, sizes, given)


def _on_host(bound: BoundStep, values: Sequence[Any], made: list[Transfer] | None = None) -> list[Any]:
    made = [] if made is None else made
    return [on_host(values[slot], name, made) for slot, name in zip(bound.inputs, bound.names, strict=True)]


def _computed(
    bound: BoundStep,
    inputs: Sequence[Any],
    control: RunControl | None,
    sizes: Sequence[Any] | None,
    given: Given | None,
) -> Sequence[Any]:
    """What a step makes of arrays, in the memory that is given for it, if any is."""
    host = not bound.guarded
    # Drivers are told of what may stop a run by another call, which makes its results new.
    into = () if given is None or not (host or control is None) else given.of(bound.position)
    results = _of_host(bound, inputs, control, into) if host else _guarded(bound, inputs, control, sizes, into)
    return results if given is None else given.kept_apart(results, into)


def _of_host(bound: BoundStep, inputs: Sequence[Any], control: RunControl | None, into: Into) -> Sequence[Any]:
    if not into:
        return bound.pool.compute(inputs, control)
    try:
        return bound.pool.compute_into(inputs, into)
    except CancelledError:
        raise
    except NNAdapterError:  # what was inferred of the model may not be what its nodes make
        return bound.pool.compute(inputs, control)


def _substitute(bound: BoundStep, error: BaseException) -> Substitute:
    """What takes the place of a device that failed; made once. Raises where nothing may, or can."""
    with bound.lock:
        if bound.substitute is None:
            bound.substitute = bound.on_failure(bound.step, error)
        return bound.substitute


def _results_of(
    substitute: Substitute,
    bound: BoundStep,
    failure: str,
    values: Sequence[Any],
    control: RunControl | None,
    given: Given | None,
) -> Sequence[Any]:
    """What a substitute makes of the inputs of a step."""
    handed = [on_host(values[slot]) for slot in substitute.inputs]
    try:
        results = substitute.pool.compute(handed, control)
    except NNAdapterError as second:
        if control is not None and control.is_over:
            raise _stopped(control, bound, substitute.device, "was under way") from second
        segment = bound.step.segment
        also = substitute.display_name
        message = f"segment {segment} failed on {bound.step.device!r} ({failure}) and on {also} as well: {second}"
        if isinstance(second, InvalidInputError):
            raise InvalidInputError(message) from second
        raise ExecutionError(message, device=substitute.device, segment=segment, phase="run") from second
    return results if given is None else given.kept_apart(results)


def _guarded(
    bound: BoundStep,
    inputs: Sequence[Array],
    control: RunControl | None,
    sizes: Sequence[Any] | None,
    into: Into,
) -> Sequence[Array]:
    hand = copied if bound.copies_inputs or bound.health.is_troubled else read_only
    handed = [hand(array) for array in inputs]
    results = bound.pool.compute_into(handed, into) if into else bound.pool.compute(handed, control, sizes)
    return check_results(results, bound.step.outputs, bound.expected)
