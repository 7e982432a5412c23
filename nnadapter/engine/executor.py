"""Executor of a compiled plan: its steps in order, boundary steps, and substitutes for steps that fail.

Fresh memory for a large result costs more than many a segment computes: the system hands it out page by page, zeroed,
and in no cache. So values of known size lie in regions of one block, which is lent to one run at a time. A region holds
one value after another: the next is put there by a step that can only begin when the step that made the last one, and
all that read it, are done. That is told by what steps read from each other and not by their order in the plan, so that
independent steps may run in any order, or at once.

Not planned are the outputs of the model, which belong to the caller; small values, which memory of the process serves
as well; what stays in memory of its device; and what has no size before it is made: that comes from the driver, new. A
driver may give a view of its input instead of a value of its own: one that lies in the block is copied, since the block
is used again.

What all steps of one run have in common: the values that they work on, and what stands over it.

Runs whose steps follow one another hand this from call to call without it: to make it takes 0.2 us.

One step of a run: on its device, and where that fails, in its place.

A step that fails on its device runs again on the CPU with the same inputs, and the run's provenance says so; where the
policy forbids that, the failure is raised as a typed error that names device, segment and nodes. What a driver says may
go well the next time (`TransientError`) is repeated once before; where there was no room, as often as plans that nobody
uses can make some. A device that keeps failing rests (`plan_devices.py`).

The same inputs are the same bytes: numpy refuses to write to what a driver in Python gets, and devices whose own code
gets addresses, or that failed and did not go well since, work on copies.

Runs a compiled plan: the steps in order, every value in a numbered slot, nothing looked up by name on the way.

What a step does, and what happens where it fails, is in `executor.py`; what happens where nothing takes its place, in
`cpu_fallback.py`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial, reduce
from itertools import accumulate
from math import prod
from operator import or_
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from nnadapter import errors
from nnadapter.drivers.arenas import ALIGNMENT, Arenas
from nnadapter.drivers.boundary import OutputCheck, check_results, copied, read_only
from nnadapter.drivers.tensor_copies import Copies, Transfer, on_host
from nnadapter.engine.bound_steps import (
    NOTHING_KEPT,
    BoundStep,
    Kept,
    OtherShapeError,
    Substitute,
    expected_outputs,
    output_of,
    own_value,
)
from nnadapter.engine.execution_pool import ExecutionPool
from nnadapter.engine.fallback import REPEATED, Incident
from nnadapter.engine.plan_store import Holding
from nnadapter.engine.provenance import Provenance, StepRun
from nnadapter.ir.operand import Array
from nnadapter.process.resources import close_all, new_lock
from partition.plan import Plan

if TYPE_CHECKING:
    from nnadapter.engine.control import RunControl
    from nnadapter.engine.cpu_fallback import CpuFallback
    from nnadapter.ir.structure import GuardedShapes


LEAST_BYTES = 1 << 16
"""From this size on memory is planned for a value."""

Into = tuple[Array, ...]
"""Where a step writes its outputs; empty where it makes them itself."""


class Place(NamedTuple):
    """What an output is, and where it lies."""

    dimensions: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int | None
    """In the block; None for new memory, since the caller gets it."""

    def within(self, block: Array) -> Array | None:
        """The array in a block, None for new memory."""
        if self.offset is None:
            return None
        nbytes = prod(self.dimensions) * self.dtype.itemsize
        return block[self.offset : self.offset + nbytes].view(self.dtype).reshape(self.dimensions)


class RunBuffers(NamedTuple):
    """The block that one run has, and what lies where in it."""

    block: Array
    rows: Sequence[Sequence[tuple[Place, Array | None]]]
    """Per step its outputs, with their arrays in the block."""

    def of(self, position: int) -> Into:
        """Where the step at a position writes."""
        row = self.rows[position]
        return tuple(np.empty(place.dimensions, place.dtype) if array is None else array for place, array in row)

    def copy_if_aliased(self, results: Sequence[Any], into: Into = ()) -> Sequence[Any]:
        """What a step gave that was to write `into`, copied where it lies in the block without having been told to."""
        if results is into:
            return results
        told = set(map(id, into))
        return [result if id(result) in told else _apart(result, self.block) for result in results]


@dataclass(frozen=True, eq=False)
class IntermediateBuffers:
    """Where the values of one plan lie."""

    rows: Sequence[Sequence[Place]]
    """Per step its outputs; empty where it makes them itself."""
    nbytes: int
    """Of the block."""
    arenas: Arenas = field(repr=False)
    """Where blocks come from: those of one session, whatever the plan."""

    @contextmanager
    def acquire(self) -> Iterator[RunBuffers]:
        """A block, for one run."""
        with self.arenas.acquire(self.nbytes, self) as arena:
            given: RunBuffers | None = arena.bound.get(self)
            if given is None:
                rows = [[(place, place.within(arena.bytes)) for place in row] for row in self.rows]
                given = arena.bound[self] = RunBuffers(arena.bytes, rows)
            yield given


def plan_intermediate_buffers(
    plan: Plan, reads: Mapping[int, Sequence[str]], arenas: Arenas, staying: Collection[int] = ()
) -> IntermediateBuffers | None:
    """Plan the memory of a plan's values; None where there is nothing to plan.

    Args:
        plan: whose steps run.
        reads: per segment, what its program reads.
        arenas: where blocks come from.
        staying: segments that make what they make in memory of their device.
    """
    released = {name for step in plan.steps for name in step.released}
    known = [_places(expected_outputs(plan.graph, step.outputs)) for step in plan.steps]
    sizes = {
        name: prod(place.dimensions) * place.dtype.itemsize
        for step, places in zip(plan.steps, known, strict=True)
        if step.segment not in staying
        for name, place in zip(step.outputs, places, strict=bool(places))
        if name in released and name not in plan.graph.outputs
    }
    large = {name: nbytes for name, nbytes in sizes.items() if nbytes >= LEAST_BYTES}
    if not large:
        return None
    region_of, regions = share_regions(
        [({*step.inputs, *reads[step.segment]}, step.outputs) for step in plan.steps], large
    )
    starts = (0, *accumulate(regions))
    rows = [
        [
            place._replace(offset=starts[region_of[name]]) if name in region_of else place
            for name, place in zip(step.outputs, places, strict=True)
        ]
        if places and not region_of.keys().isdisjoint(step.outputs)
        else []
        for step, places in zip(plan.steps, known, strict=True)
    ]
    return IntermediateBuffers(rows, starts[-1], arenas)


def share_regions(
    steps: Sequence[tuple[Collection[str], Sequence[str]]], sizes: Mapping[str, int]
) -> tuple[dict[str, int], list[int]]:
    """Share regions of memory out among values.

    A value gets the smallest region that is free for it and large enough; else the largest that is free, which grows;
    else a new one.

    Args:
        steps: for each, in an order in which they can run, the values that it reads, and those that it makes.
        sizes: bytes of the values that are shared out.

    Returns:
        The region of every value, and the bytes of every region.
    """
    made_by = {name: position for position, (_, outputs) in enumerate(steps) for name in outputs}
    readers = Counter[str]()  # sets of steps are numbers with a bit for each
    for position, (inputs, _) in enumerate(steps):
        readers.update(dict.fromkeys(inputs, 1 << position))
    before: list[int] = []  # per step, those that are done when it begins
    region_of: dict[str, int] = {}
    regions: list[int] = []
    users: list[int] = []  # per region, the steps that make or read what lies there
    for position, (inputs, outputs) in enumerate(steps):
        sources = {made_by[name] for name in inputs if name in made_by}
        before.append(reduce(or_, (before[source] | 1 << source for source in sources), 0))
        for name in outputs:
            if name not in sizes:
                continue
            free = [region for region, used in enumerate(users) if not used & ~before[position]]
            region = _best(free, regions, sizes[name])
            if region == len(regions):
                regions.append(0)
                users.append(0)
            regions[region] = max(regions[region], -(-sizes[name] // ALIGNMENT) * ALIGNMENT)
            users[region] = 1 << position | readers[name]
            region_of[name] = region
    return region_of, regions


def _best(free: Sequence[int], regions: Sequence[int], nbytes: int) -> int:
    """The region that fits best; the next new one if none is free."""
    return min(free, key=lambda region: (regions[region] < nbytes, abs(regions[region] - nbytes)), default=len(regions))


def held_between(arenas: Arenas) -> Mapping[Hashable, int]:
    """What the plans of a session hold together for values between their steps, see `Holding.shared_bytes`."""
    return {("between steps", id(arenas)): arenas.used_bytes}


def _places(check: OutputCheck) -> list[Place]:
    """What the outputs of a step are; empty where that is not known of each, or where one is no piece of memory."""
    places = []
    for spec in check:
        sizes = () if spec is None else tuple(size for size in spec[0] if size)
        if spec is None or spec[1].hasobject or len(sizes) < len(spec[0]):
            return []
        places.append(Place(sizes, spec[1], None))
    return places


def _apart(result: Any, block: Array) -> Any:
    """A result that does not lie in the block; sequences hold arrays."""
    if isinstance(result, (list, tuple)):
        return type(result)(_apart(element, block) for element in result)
    shared = isinstance(result, np.ndarray) and result.base is not None and np.may_share_memory(result, block)
    return result.copy() if shared else result


class OneRun(NamedTuple):
    """One run of a plan that has several steps under way at once."""

    values: list[Any]
    """By slot: steps read and write here."""
    made: list[Transfer] | None
    """Takes the transfers of the run; None where all values are arrays."""
    kept: Kept
    """Outputs that stay on devices."""
    control: RunControl | None
    """Asked before every step; None where nobody may stop the run."""
    sizes: Sequence[Any] | None
    """Every number of the plan's class of sizes now; None where no program is told them."""
    given: RunBuffers | None
    """Memory for values that pass between steps; None where all of them are new."""
    holds: bool = False
    """No value is let go before the end of the run."""


_MOST_FAILURES = 5


def _stopped(control: RunControl, bound: BoundStep, device: str, how: str) -> errors.CancelledError:
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
    given: RunBuffers | None,
) -> StepRun:
    """Run one step, and note what it made; where values may stay on devices, `made` gets the transfers."""
    started, health = time.perf_counter(), bound.health
    for index_check in bound.index_checks:
        index_check.check(values)
    if health.is_troubled and not health.may_try(bound.health_keys):
        return _without_trying(bound, values, control, given, started)
    try:
        for planned_check in bound.planned:
            planned_check.check(values)
        if made is None:
            results = _computed(bound, [values[slot] for slot in bound.inputs], control, sizes, given)
        else:
            results = _staying(bound, values, made, kept, control, sizes, given)
    except errors.FAILURES as error:
        return after_failure(bound, error, values, control, sizes, given, started)
    if health.is_troubled:
        health.succeeded(bound.health_keys)
    return _noted(bound, bound.step.device, results, values, started)


def after_failure(
    bound: BoundStep,
    error: BaseException,
    values: list[Any],
    control: RunControl | None,
    sizes: Sequence[Any] | None,
    given: RunBuffers | None,
    started: float,
) -> StepRun:
    """Run a step that failed on its device once more, or elsewhere, and note what it made; or raise."""
    device = bound.step.device
    if control is not None and control.is_over:
        raise _stopped(control, bound, device, "was under way") from error
    if not bound.guarded or isinstance(error, (OtherShapeError, errors.DonatedValueError, errors.InputValueError)):
        # The host's own errors are typed. No other device has what is gone, or computes with a value out of range.
        raise error
    while isinstance(error, errors.TransientError) or (
        isinstance(error, errors.OutOfMemoryError) and bound.make_room()
    ):
        try:
            results = _computed(bound, _on_host(bound, values), control, sizes, given)
        except errors.FAILURES as second:
            if control is not None and control.is_over:
                raise _stopped(control, bound, device, "was under way") from second
            is_over = isinstance(error, errors.TransientError) or isinstance(second, errors.DonatedValueError)
            if not isinstance(second, errors.DonatedValueError):  # that a failed run gave it up follows from the first
                error = second
            if is_over:
                break
        else:
            said = () if isinstance(error, errors.OutOfMemoryError) else (bound.say(bound.step, error, REPEATED),)
            return _noted(bound, device, results, values, started, "", said)
    bound.health.failed(bound.health_keys, error)
    failure = errors.describe(error)
    substitute = _substitute(bound, error)
    with bound.lock:
        if failure not in bound.failures and len(bound.failures) < _MOST_FAILURES:
            bound.failures = (*bound.failures, failure)
    try:
        results = _results_of(substitute, bound, failure, values, control, given)
    except errors.DonatedValueError as gone:  # to the run that failed
        text = f"segment {bound.step.segment} failed on {device!r} ({failure}), and cannot be repeated: {gone}"
        raise errors.ExecutionError(text, device=device, segment=bound.step.segment, phase="run") from error
    incident = bound.say(bound.step, error, f"it runs on {substitute.display_name} instead")
    return _noted(bound, substitute.device, results, values, started, failure, (incident,))


def _without_trying(
    bound: BoundStep, values: list[Any], control: RunControl | None, given: RunBuffers | None, started: float
) -> StepRun:
    """Run a step elsewhere whose device rests, and note what it made."""
    failure = bound.health.text(bound.health_keys) or f"device {bound.step.device!r} rested"
    substitute = _substitute(bound, errors.ExecutionError(failure, device=bound.step.device, phase="run"))
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
    given: RunBuffers | None,
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
    given: RunBuffers | None,
) -> Sequence[Any]:
    """What a step makes of arrays, in the memory that is given for it, if any is."""
    host = not bound.guarded
    # Drivers are told of what may stop a run by another call, which makes its results new.
    into = () if given is None or not (host or control is None) else given.of(bound.position)
    results = _of_host(bound, inputs, control, into) if host else _guarded(bound, inputs, control, sizes, into)
    return results if given is None else given.copy_if_aliased(results, into)


def _of_host(bound: BoundStep, inputs: Sequence[Any], control: RunControl | None, into: Into) -> Sequence[Any]:
    if not into:
        return bound.pool.compute(inputs, control)
    try:
        return bound.pool.compute_into(inputs, into)
    except errors.CancelledError:
        raise
    except errors.NNAdapterError:  # what was inferred of the model may not be what its nodes make
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
    given: RunBuffers | None,
) -> Sequence[Any]:
    """What a substitute makes of the inputs of a step."""
    handed = [on_host(values[slot]) for slot in substitute.inputs]
    try:
        results = substitute.pool.compute(handed, control)
    except errors.NNAdapterError as second:
        if control is not None and control.is_over:
            raise _stopped(control, bound, substitute.device, "was under way") from second
        segment = bound.step.segment
        also = substitute.display_name
        message = f"segment {segment} failed on {bound.step.device!r} ({failure}) and on {also} as well: {second}"
        if isinstance(second, errors.InvalidInputError):
            raise errors.InvalidInputError(message) from second
        raise errors.ExecutionError(message, device=substitute.device, segment=segment, phase="run") from second
    return results if given is None else given.copy_if_aliased(results)


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


class Ahead(Protocol):
    """Runs the steps of a plan some of which are begun before others are done."""

    def run(self, steps: Sequence[BoundStep], run: OneRun) -> list[StepRun]:
        """Run every step; all of them are done on return. See `run_step`."""

    def close(self) -> None:
        """Wait for what is under way, and free what runs need."""


class CompiledPlan:
    """A plan whose segments are compiled."""

    def __init__(
        self,
        steps: Sequence[BoundStep],
        slots: Mapping[str, int],
        outputs: Mapping[str, int],
        constants: Mapping[int, Array],
        whole: Callable[[errors.NNAdapterError], CpuFallback] | None = None,
        new_transfers: Callable[[], list[Transfer]] = list,
        size_class: GuardedShapes | None = None,
        borders: IntermediateBuffers | None = None,
        ahead: Ahead | None = None,
        held_between: Callable[[], Mapping[Hashable, int]] = dict,
    ) -> None:
        """Take what was compiled.

        Args:
            steps: in their order.
            slots: of every value, by name.
            outputs: slots of the model's outputs.
            constants: contents of slots that no step fills.
            whole: makes what runs the model as it was, where steps failed and nothing took their place, or raises; None
                where the plan is that already.
            new_transfers: makes what takes the transfers of a run.
            size_class: the sizes for which the plan holds, if its programs are told them; None for any other plan.
            borders: where values between steps lie; None where the steps make all of them new.
            ahead: runs the steps where some are begun before others are done; None where each waits for the last.
            held_between: tells what all plans of the session hold for values between steps, see `Holding.shared_bytes`:
                each tells it, whether it needs some or not, since dropping none frees it.
        """
        self._held_between = held_between
        self._borders = borders
        self._ahead = ahead
        self._size_class = size_class
        self.steps = tuple(steps)
        self.note = ""
        """Why all of the plan has been given up; empty where it was not."""
        self.transfers: tuple[Transfer, ...] | None = None
        """Those of the last run; None where no value could stay on a device in it, and where there was none."""
        self._stays = any(bound.residence is not None and bound.residence.saves for bound in self.steps)
        self._make_whole = whole
        self._new_transfers = new_transfers
        self._whole: CpuFallback | None = None
        self._lock = new_lock()
        self._slots = slots
        self._outputs = outputs
        self._shares = len({bound.step.device for bound in self.steps}) > 1
        """Runs that follow each other take turns on its devices."""
        self._blank: list[Any] = [None] * len(slots)
        for slot, array in constants.items():
            self._blank[slot] = array

    def alone(self, outputs: Sequence[str]) -> tuple[BoundStep, tuple[str, ...], tuple[int, ...]] | None:
        """The step that is all of the plan, if that reads inputs alone, as arrays, and makes all `outputs`.

        Returns:
            The step, the names of the inputs that it reads, and where among its results the outputs are; or None.
        """
        if len(self.steps) != 1 or not set(outputs) <= set(self.steps[0].step.outputs):
            return None
        (bound,) = self.steps
        if any(self._blank[slot] is not None for slot in bound.inputs):
            return None
        more = self._borders or self._ahead or self._size_class or self._stays or bound.planned
        if bound.guarded and more:
            return None
        names = {slot: name for name, slot in self._slots.items()}
        order = tuple(bound.step.outputs.index(name) for name in outputs)
        return bound, tuple(names[slot] for slot in bound.inputs), order

    def check_indices(self, bound: BoundStep, feeds: Mapping[str, Any]) -> None:
        """Check the indices and lengths that a step reads from feeds.

        Raises:
            InputValueError: one is out of its range.
        """
        values = self._blank.copy()
        for name, array in feeds.items():
            slot = self._slots.get(name)
            if slot is not None:
                values[slot] = array
        for index_check in bound.index_checks:
            index_check.check(values)

    def run(
        self,
        feeds: Mapping[str, Any],
        wanted: Sequence[str],
        control: RunControl | None = None,
        kept: Kept | None = None,
        sizes: Sequence[Any] | None = None,
        failed: BaseException | None = None,
    ) -> tuple[list[Any], Provenance]:
        """Run every step.

        Args:
            feeds: checked arrays, or `Copies`, by input name.
            wanted: names of model outputs.
            control: asked before every step; None where nobody may stop the run.
            kept: outputs that stay, with the devices where they shall lie (empty for where they do): they come as
                `Copies`. None where none stay and no feed is `Copies`.
            sizes: every number of its class of sizes now, if its programs are told them.
            failed: why the only step did not deliver, if that was tried already.

        Raises:
            CancelledError: `control` said so.
            ExecutionError, NotDelegatedError: a step failed and nothing may take its place.
        """
        if self.note and self._whole is not None:
            return self._whole.run(feeds, wanted, self.note, kept, control)
        try:
            # What is under way when somebody stops the run would go on in memory that is given back.
            may_leave_work = control is not None and self._ahead is not None
            if self._borders is None or may_leave_work or sizes is not None:
                return self._run_steps(feeds, wanted, control, kept, sizes, failed=failed)
            with self._borders.acquire() as given:
                return self._run_steps(feeds, wanted, control, kept, sizes, given)
        except errors.NNAdapterError as error:
            if (
                isinstance(error, (errors.CancelledError, errors.DonatedValueError, errors.InputValueError))
                or self._make_whole is None
            ):
                raise
            return self._run_fallback(error, feeds, wanted, kept, control)

    def run_held(
        self,
        feeds: Mapping[str, Any],
        wanted: Sequence[str],
        control: RunControl | None = None,
        kept: Kept | None = None,
        sizes: Sequence[Any] | None = None,
    ) -> tuple[list[Any], Provenance, list[Any]]:
        """As `run`, and hold what every step reads and makes.

        Returns:
            Also the values by slot, arrays or `Copies`; none where the model ran as it was.
        """
        held: list[Any] = []
        feeds = {name: value.donate(False) if type(value) is Copies else value for name, value in feeds.items()}
        try:
            if self.note and self._whole is not None:
                return *self.run(feeds, wanted, control, kept, sizes), []
            return *self._run_steps(feeds, wanted, control, kept, sizes, held=held), held
        except errors.NNAdapterError as error:
            if isinstance(error, (errors.CancelledError, errors.DonatedValueError)) or self._make_whole is None:
                raise
            return *self._run_fallback(error, feeds, wanted, kept, control), []

    def _run_fallback(
        self,
        error: errors.NNAdapterError,
        feeds: Mapping[str, Any],
        wanted: Sequence[str],
        kept: Kept | None,
        control: RunControl | None,
    ) -> tuple[list[Any], Provenance]:
        """The model as it was, where steps of the plan failed and nothing took their place; `error` if that fails too.

        Where the plan itself is wrong, the next run does not try it again.
        """
        with self._lock:
            if self._whole is None:
                self._whole = self._make_whole(error) if self._make_whole else None
        assert self._whole is not None and self._whole.say is not None, "somebody made it, or raised"
        try:
            outputs, provenance = self._whole.run(feeds, wanted, errors.describe(error), kept, control)
        except errors.CancelledError:
            raise
        except errors.NNAdapterError:
            raise error from None
        self.transfers = provenance.transfers or None
        run = provenance.steps[0]._replace(incidents=(self._whole.say(error),))
        if isinstance(error, OtherShapeError):
            self.note = errors.describe(error)
        return outputs, provenance._replace(steps=(run,))

    def _run_steps(
        self,
        feeds: Mapping[str, Any],
        wanted: Sequence[str],
        control: RunControl | None,
        kept: Kept | None,
        sizes: Sequence[Any] | None,
        given: RunBuffers | None = None,
        failed: BaseException | None = None,
        held: list[Any] | None = None,
    ) -> tuple[list[Any], Provenance]:
        values = self._blank.copy() if held is None else held
        if held is not None:
            held.extend(self._blank)
        if self._size_class is not None and sizes is not None:
            feeds = {**feeds, **self._size_class.shape_derived_values_at(sizes)}
        for name, array in feeds.items():
            slot = self._slots.get(name)
            if slot is not None:
                values[slot] = array
        made = self._new_transfers() if self._stays or kept is not None else None
        if self._ahead is not None:
            one = OneRun(values, made, kept or NOTHING_KEPT, control, sizes, given, held is not None)
            runs = self._ahead.run(self.steps, one)
        else:
            runs = []
            for bound in self.steps:
                if control is not None:
                    ask_before(control, bound, shared=self._shares)
                told = sizes if bound.takes_sizes else None
                runs.append(
                    run_step(bound, values, made, kept or NOTHING_KEPT, control, told, given)
                    if failed is None
                    else after_failure(bound, failed, values, control, told, given, time.perf_counter())
                )
                for slot in () if held is not None else bound.released:
                    values[slot] = None
        if made is None:
            self.transfers = None
            return [own_value(values[self._outputs[name]], name in feeds) for name in wanted], Provenance(tuple(runs))
        outputs = [output_of(values[self._outputs[name]], name, feeds, kept, made) for name in wanted]
        self.transfers = tuple(made)
        return outputs, Provenance(tuple(runs), self.transfers)

    @property
    def slots(self) -> Mapping[str, int]:
        """Of every value, by name."""
        return self._slots

    @property
    def holding(self) -> Holding:
        """The memory of the programs and their executions, as far as the drivers say so, and between the steps."""
        holdings = [pool.holding for pool in self._pools()]
        shared = {key: nbytes for holding in holdings for key, nbytes in holding.shared_bytes.items()}
        shared.update(self._held_between())
        return Holding(sum(holding.own_bytes for holding in holdings), shared)

    def close(self) -> None:
        """Free every program, when nothing is under way any more."""
        close_all([*([self._ahead] if self._ahead is not None else []), *self._pools()])

    def close_fallback(self) -> None:
        """Free what the steps do not hold, where others have those still."""
        ahead = [self._ahead] if self._ahead is not None else []
        close_all([*ahead, *([self._whole.pool] if self._whole is not None else [])])

    def _pools(self) -> list[ExecutionPool]:
        whole = [self._whole.pool] if self._whole is not None else []
        return [*(pool for bound in self.steps for pool in bound.pools), *whole]
