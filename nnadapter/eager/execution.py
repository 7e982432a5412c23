"""Execution of single operations on devices: cached programs, device-resident arrays, fallback to numpy.

An array is read-only, and is copied to the device by the first operation that reads it. Later operations free the
copies of arrays that no longer exist.
"""

from __future__ import annotations

import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Self

import numpy as np

from nnadapter import errors
from nnadapter.drivers.boundary import use_memory
from nnadapter.drivers.interface import DeviceTensor, Memory
from nnadapter.drivers.kernel import Kernel, registered_kernels
from nnadapter.drivers.registry import open_device
from nnadapter.drivers.selection import CPU, canonical
from nnadapter.drivers.tensor_copies import OwnerBoundMemory, copied_to_device
from nnadapter.ir import Array, AttributeValue, DataType, Model, ModelBuilder, OperandType
from nnadapter.ir.operand import PACKED, freeze
from nnadapter.ir.operations.custom import CUSTOM, CustomCall
from nnadapter.kernels.context import KernelContext
from nnadapter.kernels.registry import Choice, Request, warn_of_infer
from nnadapter.options import FALLBACKS, default_devices
from nnadapter.process.resources import close_all, new_lock, new_re_lock
from nnadapter.records import dataclass, field
from nnadapter.session.compilation import Compilation, Execution
from nnadapter.session.device import Context, Device

_rule = ["warn"]
RESIDENTS = OwnerBoundMemory()


def set_eager_fallback(rule: str) -> str:
    """Set the rule for operations that a device does not support; return the previous one.

    `warn` computes with numpy and issues a FallbackWarning, `allow` computes with numpy silently, and `forbid` raises
    NotDelegatedError. Other rules raise InvalidOptionError.
    """
    if rule not in FALLBACKS:
        raise errors.InvalidOptionError(f"set_eager_fallback got {rule!r}, expected one of {', '.join(FALLBACKS)}")
    previous_rule, _rule[0] = _rule[0], rule
    return previous_rule


def fall_back(device: str, operation: str, reason: str) -> None:
    """Warn that numpy computes an operation, or raise NotDelegatedError, as the rule requires."""
    message = f"device {device!r} does not support {operation}: {reason}"
    if _rule[0] == "forbid":
        raise errors.NotDelegatedError(
            f"{message}; fallback is forbidden, so cast the tensors, register a kernel, or move them with .to('cpu')",
            device=device,
        )
    if _rule[0] == "warn":
        frame, level = sys._getframe(1), 2  # the caller's line
        while frame.f_back and frame.f_globals.get("__name__", "").partition(".")[0] in ("nnadapter", "numpy"):
            frame, level = frame.f_back, level + 1
        warnings.warn(f"{message}; numpy computes it on the host instead", errors.FallbackWarning, stacklevel=level)


@dataclass(frozen=True, slots=True)
class Place:
    """Place of a tensor: the name of a device, such as `fake_npu` or `fake_npu:1`. Source: Paddle's Place."""

    device: str

    @property
    def is_host(self) -> bool:
        return self.device == CPU

    def __repr__(self) -> str:
        return f"Place({self.device if ':' in self.device else f'{self.device}:0'})"


def place_of(device: str | Place | None) -> Place:
    """Return the place of a device, by default `nnadapter.set_device`'s; raise an error if it cannot be used."""
    name = device.device if isinstance(device, Place) else canonical(default_devices()[0] if device is None else device)
    if name != CPU:
        open_device(name)
    return Place(name)


class OnDevice:
    """Read-only array and its place; base class of tensors."""

    __slots__ = ("_array", "_place")

    def __init__(self, array: Array, place: Place) -> None:
        self._array = array
        self._place = place

    place = property(attrgetter("_place"))
    array = property(attrgetter("_array"))

    def with_array(self, array: Array) -> Self:
        return type(self)(array, self._place)


def common_place(operands: Iterable[object]) -> OnDevice | None:
    """Return the first operand that is on a device, or None; raise InvalidInputError if devices differ."""
    placed = [operand for operand in operands if isinstance(operand, OnDevice)]
    names = list(dict.fromkeys(operand.place.device for operand in placed))
    if len(names) > 1:
        raise errors.InvalidInputError(
            f"one tensor is on {names[0]!r}, another on {names[1]!r}; an operation computes on one device, so move "
            f"one with .to({names[0]!r})"
        )
    return placed[0] if placed else None


def _compute_resident(device: str, execution: Execution, inputs: Sequence[Array]) -> tuple[Array, ...] | None:
    RESIDENTS.free_orphans()
    types = [operand.type for operand in (*execution.inputs, *execution.outputs)]
    if not open_device(device).has_memory or any(type_.dtype in PACKED or not type_.size for type_ in types):
        return None
    computed = execution.compute_on_device(
        [DeviceTensor(_resident(device, array), array.dtype, array.shape) for array in inputs]
    )
    if computed is None:
        return None
    memories = [tensor.memory for tensor in computed]
    try:
        arrays = [np.empty(tensor.shape, tensor.dtype) for tensor in computed]
        for memory, array in zip(memories, arrays, strict=True):
            use_memory(device, "copy_out", memory.copy_out, array)
        results = tuple(map(freeze, arrays))
        while memories:
            result = results[len(memories) - 1]
            RESIDENTS.add((device, id(result)), result, memories.pop())
        return results
    finally:
        for memory in memories:
            memory.free()


def _resident(device: str, array: Array) -> Memory:
    key = device, id(array)
    memory = RESIDENTS.find(key, array)
    if memory is None:
        memory = RESIDENTS.add(key, array, copied_to_device(device, np.ascontiguousarray(array)))
    return memory


@dataclass(frozen=True, slots=True, eq=False)
class OperationCall:
    """Call of one operation of the adapter IR on arrays."""

    type: str
    inputs: tuple[Array, ...]
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    op_type: str = ""

    @property
    def types(self) -> tuple[OperandType, ...]:
        return tuple(OperandType(DataType(array.dtype.name), array.shape) for array in self.inputs)

    def __str__(self) -> str:
        return f"{self.type} of {', '.join(map(str, self.types))}"


class _CacheEntry:
    def __init__(self, outcome: Execution | str) -> None:
        self.outcome, self.lock = outcome, new_lock()

    def close(self) -> None:
        with self.lock:
            if isinstance(self.outcome, Execution):
                self.outcome.close()


class ProgramCache:
    """LRU cache of compiled operations, by device and types. Thread-safe."""

    def __init__(self, most: int = 256) -> None:
        self._most = most
        self._kept: OrderedDict[tuple[object, ...], _CacheEntry] = OrderedDict()
        self._contexts: dict[str, Context] = {}
        self._kernels: tuple[Kernel, ...] = ()
        self._lock = new_re_lock()

    def __len__(self) -> int:
        return len(self._kept)

    def compute(self, device: str, call: OperationCall) -> tuple[Array, ...] | str:
        while True:
            entry = self._take(device, call)
            if isinstance(entry.outcome, str):
                return entry.outcome
            with entry.lock:
                try:
                    on_device = _compute_resident(device, entry.outcome, call.inputs)
                    if on_device is not None:
                        return on_device
                    entry.outcome.set_inputs(list(call.inputs))
                    return entry.outcome.compute()
                except errors.ClosedError:
                    continue  # evicted by another thread

    def clear(self) -> None:
        with self._lock:
            close_all([*self._kept.values(), *self._contexts.values()])
            self._kept.clear()
            self._contexts.clear()

    def _take(self, device: str, call: OperationCall) -> _CacheEntry:
        key = (device, call.type, call.op_type, tuple(call.attributes.items()), call.types)
        with self._lock:
            registered = registered_kernels()
            if registered != self._kernels:  # contexts keep the kernels registered when they open
                self.clear()
                self._kernels = registered
            if device not in self._contexts:
                self._contexts[device] = Context(Device.acquire(device))
            entry = self._kept.get(key)
            if entry is None:
                entry = self._kept[key] = _compile_operation(self._contexts[device], call)
            self._kept.move_to_end(key)
            dropped = [self._kept.popitem(last=False)[1] for _ in range(len(self._kept) - self._most)]
        close_all(dropped)
        return entry


def _compile_operation(context: Context, call: OperationCall) -> _CacheEntry:
    plain = _model(call)
    if isinstance(plain, str):
        return _CacheEntry(plain)
    reasons = []
    for model in _candidates(context, call, plain):
        compilation = Compilation(context, model)
        verdict = compilation.admission.verdict
        try:
            if verdict:
                return _CacheEntry(Execution(compilation))
            reasons.append(str(verdict))
        except errors.NNAdapterError as error:
            reasons.append(str(error))
    return _CacheEntry(reasons[0])


def _model(call: OperationCall) -> Model | str:
    builder = ModelBuilder()
    try:
        inputs = [builder.add_input(f"input {at}", type_) for at, type_ in enumerate(call.types)]
        return builder.finish(builder.add_operation(call.type, inputs, call.attributes))
    except errors.InvalidModelError as error:
        return str(error)


def _candidates(context: Context, call: OperationCall, plain: Model) -> list[Model]:
    driver_context = context.driver_context
    if not isinstance(driver_context, KernelContext) or ("", call.op_type) not in driver_context.table.by_op:
        return [plain]
    from nnadapter.onnx.schemas import newest_since_version

    outputs = tuple(plain.operands[index].type for index in plain.outputs)
    version = newest_since_version("", call.op_type) or 1
    choice = driver_context.table.choose(
        Request(domain="", op_type=call.op_type, version=version, attributes={}, inputs=call.types, outputs=outputs)
    )
    if not isinstance(choice, Choice):
        warn_of_infer([choice.detail])
        return [plain]
    present = tuple(range(len(call.inputs)))
    custom = CustomCall(domain="", op_type=call.op_type, since_version=version, present=present, outputs=outputs)
    model = _model(OperationCall(CUSTOM, call.inputs, custom.to_attributes()))
    if isinstance(model, str):
        return [plain]
    return [model, plain] if choice.kernel.overrides else [plain, model]


PROGRAMS = ProgramCache()


def apply(
    place: Place,
    type_: str,
    inputs: Sequence[Array],
    on_host: Callable[..., Any],
    attributes: Mapping[str, AttributeValue],
    op_type: str = "",
) -> Array:
    """Compute an operation on `place`; call `on_host` if that is the host, or if the device refuses or fails.

    Raises NotDelegatedError if such a fallback is forbidden. `op_type` is the equivalent ONNX op, for custom kernels.
    """
    if not place.is_host:
        call = OperationCall(type_, tuple(map(freeze, inputs)), attributes, op_type)
        try:
            outcome = PROGRAMS.compute(place.device, call)
        except (errors.ExecutionError, errors.OutOfMemoryError) as error:
            outcome = errors.describe(error)
        if not isinstance(outcome, str):
            return freeze(outcome[0])
        fall_back(place.device, str(call), outcome)
    # division by zero and overflow are ordinary results on devices
    with np.errstate(all="ignore"):
        return freeze(np.asarray(on_host(*inputs)))
