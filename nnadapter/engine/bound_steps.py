"""Bound steps of a compiled plan, with index checks, substitutes, and device-resident values.

A step uses device memory only if that saves a copy or the caller requested device-resident values. If the driver cannot
do this or runs out of memory, the step uses arrays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from threading import Lock
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

import numpy as np

from nnadapter.drivers.boundary import OutputCheck, check_tensors
from nnadapter.drivers.interface import DeviceTensor
from nnadapter.drivers.tensor_copies import TENSORS, Copies, Transfer, bind_to_owner, can_lie_on_devices, on_host
from nnadapter.engine.execution_pool import ExecutionPool
from nnadapter.engine.fallback import Incident
from nnadapter.engine.plan_devices import WELL, Health
from nnadapter.errors import ExecutionError, InputValueError, OutOfMemoryError
from nnadapter.ir.index_ranges import Bound, IndexCheck, Size
from nnadapter.ir.operand import Array
from nnadapter.planning.overlap import saving_steps
from nnadapter.records import dataclass, field, replace
from partition import Graph, Plan, Step

Compute = Callable[[Sequence[DeviceTensor]], Sequence[DeviceTensor] | None]


@dataclass(eq=False, slots=True)
class Residence:
    """State of a step that can run entirely in device memory."""

    device: str
    saves: bool
    """True if device memory avoids a copy even if the caller binds only host arrays."""
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    slots: tuple[int, ...]
    expected: OutputCheck
    last: frozenset[int] = frozenset()
    """Slots of model inputs that may be donated, since only this step reads them."""
    is_supported: bool = field(default=True)
    """False after the driver refused to run the step in device memory."""
    can_enqueue: bool = field(default=True)
    """False after the driver refused to enqueue the step on a stream."""

    def compute(
        self,
        compute: Compute,
        values: list[Any],
        transfers: list[Transfer],
        stays: Mapping[str, str],
        *,
        is_work_of_stream: bool = False,
    ) -> Sequence[Copies] | None:
        """Run a step in device memory by `compute`; return None if that saves no copy or the driver cannot.

        Device copies of inputs are stored in `values`. `stays` maps device-resident inputs and outputs to devices. With
        `is_work_of_stream`, `compute` enqueues the step.
        """
        inputs = [values[slot] for slot in self.slots]
        if not self.is_supported or not (
            self.saves
            or any(type(value) is Copies and value.is_on(self.device) for value in inputs)
            or any(stays.get(name) == self.device for name in (*self.inputs, *self.outputs))
        ):
            return None
        if not all(map(can_lie_on_devices, inputs)):
            return None
        TENSORS.free_orphans()
        try:
            tensors = [
                self._tensor(_copies(values, slot), name, slot, transfers)
                for slot, name in zip(self.slots, self.inputs, strict=True)
            ]
            computed = compute(tensors)
        except OutOfMemoryError:
            return None
        if computed is None:
            self.is_supported, self.can_enqueue = (
                self.is_supported and is_work_of_stream,
                self.can_enqueue and not is_work_of_stream,
            )
            return None
        results = [bind_to_owner(tensor) if isinstance(tensor, DeviceTensor) else tensor for tensor in computed]
        return [
            Copies(None, {self.device: result})
            for result in check_tensors(results, self.outputs, self.expected, tensors)
        ]

    def _tensor(self, copies: Copies, name: str, slot: int, transfers: list[Transfer]) -> DeviceTensor:
        tensor = copies.on(self.device, name, transfers)
        if not copies.is_donated or slot not in self.last or self.slots.count(slot) > 1:
            return tensor
        return replace(tensor, is_donated=True)


def _copies(values: list[Any], slot: int) -> Copies:
    value = values[slot]
    if type(value) is not Copies:
        value = values[slot] = Copies(value)
    return value


def deliver(copies: Copies, name: str, device: str, transfers: list[Transfer]) -> Copies:
    """Add a copy on `device` to `copies` of an output if the device has memory of its own; return `copies`."""
    if device and not copies.is_on(device) and has_memory(device) and can_lie_on_devices(copies):
        copies.on(device, name, transfers)
    return copies


def has_memory(device: str) -> bool:
    """Return True if a device has memory of its own."""
    from nnadapter.drivers.boundary import has_of
    from nnadapter.drivers.registry import open_device

    return has_of(device, open_device(device), "has_memory")


def residences(
    plan: Plan,
    owning: Set[str],
    slots: Mapping[str, int],
    reads: Mapping[int, tuple[str, ...]],
    expected: Callable[[Sequence[str]], OutputCheck],
) -> dict[int, Residence]:
    """Return the `Residence` of each segment on the devices `owning`, which have memory of their own.

    `reads` maps segments to the inputs of their programs; `expected` returns the types of named outputs.
    """
    saving = saving_steps(plan, owning)
    readers = Counter(name for step in plan.steps for name in step.inputs)
    donatable = {name for name in plan.graph.inputs if readers[name] == 1} - set(plan.graph.outputs)
    return {
        step.segment: Residence(
            device=step.device,
            saves=step.segment in saving,
            inputs=reads[step.segment],
            outputs=step.outputs,
            slots=tuple(slots[name] for name in reads[step.segment]),
            expected=expected(step.outputs),
            last=frozenset(slots[name] for name in step.inputs if name in donatable),
        )
        for step in plan.steps
        if step.device in owning
    }


OutDevices = Mapping[str, str]
"""Target device of each device-resident input and output, by name; with an empty string, the value is not moved."""
ALL_ON_HOST: OutDevices = MappingProxyType({})


def output_of(
    value: Any, name: str, feeds: Mapping[str, Any], out_devices: OutDevices | None, transfers: list[Transfer]
) -> Any:
    """Return an output for the caller: device-resident if `out_devices` names it, otherwise an unshared array."""
    fed = name in feeds
    if out_devices is not None and name in out_devices and isinstance(value, (np.ndarray, Copies)):
        copies = value if isinstance(value, Copies) else Copies(value)
        is_callers = isinstance(feeds.get(name), np.ndarray)
        copies.is_shared |= fed
        return deliver(copies.without_array() if is_callers else copies, name, out_devices[name], transfers)
    if type(value) is Copies:
        return own_value(value.host(name, transfers), fed)
    return own_value(value, fed)


def own_value(value: Any, fed: bool) -> Any:
    """Return a value that only the caller uses: constants and fed inputs are copied."""
    if isinstance(value, np.ndarray) and (fed or not value.flags.writeable):
        return value.copy()
    return value


class Planned(NamedTuple):
    """Intermediate value with the shape that the plan assumes."""

    name: str
    slot: int
    shape: tuple[int, ...]

    def check(self, values: Sequence[Any]) -> None:
        value = values[self.slot]
        if value.shape != self.shape:
            raise OtherShapeError(
                f"value {self.name!r} is {value.dtype}{list(value.shape)}, but the plan expects "
                f"{value.dtype}{list(self.shape)}"
            )


class OtherShapeError(ExecutionError):
    """A value has another shape than its plan assumes. Internal to this package."""


def slots_of(plan: Plan) -> dict[str, int]:
    """Assign a slot to every input, output and intermediate value."""
    names = dict.fromkeys((*plan.graph.inputs, *plan.graph.outputs))
    for step in plan.steps:
        names.update(dict.fromkeys((*step.inputs, *step.outputs)))
    return {name: slot for slot, name in enumerate(names)}


def planned_values(graph: Graph, slots: Mapping[str, int], inputs: Sequence[str]) -> Iterator[Planned]:
    """Yield the planned static shape of each input that another step computes."""
    for name in inputs:
        shape = graph.value(name).static_shape
        if shape is not None and name in graph.producer and _array_type(graph.value(name).dtype) is not None:
            yield Planned(name, slots[name], shape)


def expected_outputs(graph: Graph, outputs: Sequence[str]) -> OutputCheck:
    """Return shape and dtype of each output, with None for unknown ones."""
    checks: list[tuple[tuple[int | None, ...], np.dtype[Any]] | None] = []
    for name in outputs:
        value = graph.value(name)
        shape = None if value.shape is None else tuple(size if isinstance(size, int) else None for size in value.shape)
        dtype = None if shape is None else _array_type(value.dtype)
        checks.append(None if shape is None or dtype is None else (shape, dtype))
    return checks


def _array_type(name: str | None) -> np.dtype[Any] | None:
    try:
        return None if name is None else np.dtype(name)
    except TypeError:
        return None


_WIDTH_BYTES = 8192
_FEW_ROWS = 16
"""Rows per block in the second pass of `_over_rows`, since numpy reduces short rows slowly."""
_Limit = Callable[[Sequence[Any]], int] | int | None


class BoundCheck(NamedTuple):
    """Index check of a plan, resolved to value slots."""

    slot: int
    bounds: tuple[tuple[_Limit, _Limit, int | None], ...]
    check_of: IndexCheck
    interval: tuple[_Limit, ...] = ()

    def check(self, values: Sequence[Any]) -> None:
        if self.interval:
            for low, high, exception in self.bounds:
                ends = _limit_at(self.interval[0], values), _limit_at(self.interval[1], values)
                self._compare(*ends, _limit_at(low, values), _limit_at(high, values), exception, None)
            return
        array = values[self.slot]
        if type(array) is not np.ndarray:
            array = on_host(array)
        if not array.size:
            return
        if len(self.bounds) == 1:
            low, high, exception = self.bounds[0]
            self._compare(array.min(), array.max(), _limit_at(low, values), _limit_at(high, values), exception, array)
            return
        least, most = _extremes_of_columns(array, len(self.bounds))
        for column, (low, high, exception) in enumerate(self.bounds):
            limits = _limit_at(low, values), _limit_at(high, values)
            self._compare(least[column], most[column], *limits, exception, array[..., column])

    def _compare(
        self, least: Any, most: Any, low: int | None, high: int | None, exception: int | None, array: Array | None
    ) -> None:
        if array is not None and array.dtype.kind == "f":  # floats are truncated later; NaN is outside every range
            is_within = (low is None or least > low - 1) and (high is None or most < high + 1) and least <= most
        else:
            is_within = (low is None or least >= low) and (high is None or most <= high)
        if is_within:
            return
        if exception is not None and array is not None:
            remaining = array[array != exception]
            if remaining.size < array.size:
                if remaining.size:
                    self._compare(remaining.min(), remaining.max(), low, high, None, remaining)
                return
        self._fail(most if low is None or (high is not None and most > high) else least, low, high)

    def _fail(self, value: Any, low: int | None, high: int | None) -> NoReturn:
        check = self.check_of
        range_ = (
            f"from {low} to {high}"
            if low is not None and high is not None
            else (f"at most {high}" if low is None else f"at least {low}")
        )
        name = check.source or check.value
        subject = f"{'input' if check.source else 'computed value'} {name!r} holds {value}"
        raise InputValueError(
            f"{subject}, which {check.reader} uses as an index, length or coordinate; expected values {range_}",
            name=check.source or None,
        )


def bound_checks(checks: Sequence[IndexCheck], slots: Mapping[str, int]) -> tuple[BoundCheck, ...]:
    """Return index checks with value names resolved to slots."""

    def limit(bound: Bound | None) -> _Limit:
        if not isinstance(bound, Size):
            return bound
        sign = 1 if bound.axis >= 0 else -1
        places = [(slots[name], axis if axis >= 0 else -1 - axis) for name, axis in bound.terms]
        offset = bound.offset
        return lambda values: sign * sum(int(values[slot].shape[axis]) for slot, axis in places) + offset

    return tuple(
        BoundCheck(
            slots.get(check.value, -1),
            tuple((limit(low), limit(high), exception) for low, high, exception in check.bounds),
            check,
            tuple(map(limit, check.interval or ())),
        )
        for check in checks
    )


def _limit_at(limit: _Limit, values: Sequence[Any]) -> int | None:
    return limit(values) if callable(limit) else limit


def _extremes_of_columns(array: Array, count: int) -> tuple[Array, Array]:
    flat = array.reshape(-1)
    return _over_rows(np.minimum, flat, count), _over_rows(np.maximum, flat, count)


def _over_rows(extreme: np.ufunc, flat: Array, count: int) -> Array:
    for rows in (max(1, _WIDTH_BYTES // (count * flat.itemsize)), _FEW_ROWS, 1):
        width = rows * count
        full_length = flat.size // width * width
        if full_length > width or rows == 1:
            parts = extreme.reduce(flat[:full_length].reshape(-1, width), 0), flat[full_length:]
            flat = np.concatenate(parts) if parts[1].size else parts[0]
    return flat


class Substitute(NamedTuple):
    """Program on another device that can replace the program of a step."""

    device: str
    display_name: str
    pool: ExecutionPool
    inputs: tuple[int, ...]


@dataclass(eq=False, slots=True, kw_only=True)
class BoundStep:
    """Step of a plan with its program and value slots."""

    step: Step
    pool: ExecutionPool
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    released: tuple[int, ...]
    expected: OutputCheck
    is_checked: bool
    """True if inputs are read-only and contiguous, and outputs are checked, as for all devices except the CPU."""
    planned: tuple[Planned, ...]
    make_substitute: Callable[[BaseException | None], Substitute]
    """Returns the program to run instead after an error. Called with None, returns the program to compare results with.
    Raises if there is none.
    """
    report_failure: Callable[[BaseException, str], Incident]
    """Records an error and the reaction to it. Raises if the policy forbids fallback."""
    make_room: Callable[[], bool]
    names: tuple[str, ...]
    lock: Lock
    """Guards `substitute`, `reference` and `failures`; shared by all bindings of a step."""
    health: Health = WELL
    health_keys: tuple[str, ...] = ()
    """Names of outputs and nodes. Steps of other plans with the same names share their health."""
    copies_inputs: bool = False
    """True if native code could write to inputs, so they are copied."""
    index_checks: tuple[BoundCheck, ...] = ()
    takes_sizes: bool = False
    residence: Residence | None = None
    seconds: float = 0.0
    failures: tuple[str, ...] = ()
    substitute: Substitute | None = None
    reference: Substitute | None = None

    @property
    def pools(self) -> list[ExecutionPool]:
        pools = (alternative.pool for alternative in (self.substitute, self.reference) if alternative is not None)
        return [self.pool, *pools]
