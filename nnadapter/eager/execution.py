"""Execution of single operations: cached programs, device-resident results, and the host as fallback.

What tensors hold, in their device's own memory, for devices that have one.

A tensor's array is read-only, and so it and its copy on the device stay equal. The copy is made when the first
operation needs it; a result is made there, and its array is filled from it. When the array is gone it is freed by
the next operation.

Programs of one operation, kept: per device, operation, attributes and input types.

The one used longest ago is closed when there are too many. Contexts are opened once per device, and again when kernels
were registered or taken away, since a context has those that were there when it was opened.
"""

from __future__ import annotations

import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import numpy as np

from nnadapter import errors
from nnadapter.drivers.boundary import use_memory
from nnadapter.drivers.interface import Device as DriverDevice
from nnadapter.drivers.interface import DeviceTensor, Memory
from nnadapter.drivers.kernel import Kernel, registered_kernels
from nnadapter.drivers.registry import open_device
from nnadapter.drivers.tensor_copies import OwnerBoundMemory
from nnadapter.eager.place import Dtype, Place
from nnadapter.ir.builder import ModelBuilder
from nnadapter.ir.model import Model
from nnadapter.ir.operand import PACKED, Array, DataType, OperandType, freeze
from nnadapter.ir.operations.custom import CUSTOM, CustomCall
from nnadapter.ir.schema import AttributeValue
from nnadapter.kernels.context import KernelContext
from nnadapter.kernels.registry import Choice, KernelTable, Request, warn_of_infer
from nnadapter.options import FALLBACKS
from nnadapter.process.forking import new_lock, new_re_lock
from nnadapter.process.resources import close_all
from nnadapter.runtime.compilation import Compilation, Execution
from nnadapter.runtime.device import Context, Device

_rule = ["warn"]
_OURS = ("nnadapter", "numpy")


def set_eager_fallback(rule: str) -> str:
    """Say what happens to operations on tensors that their device does not take, and return what was said before.

    Args:
        rule: `warn`, numpy computes it with a FallbackWarning; `allow`, without; `forbid`, it is a NotDelegatedError.

    Raises:
        InvalidOptionError: it is none of these.
    """
    if rule not in FALLBACKS:
        raise errors.InvalidOptionError(f"the fallback of tensors is one of {', '.join(FALLBACKS)}, got {rule!r}")
    previous_rule, _rule[0] = _rule[0], rule
    return previous_rule


def fall_back(device: str, operation: str, reason: str) -> None:
    """Say that the host does something in the place of a device, as the rule wants it said.

    Raises:
        NotDelegatedError: the rule forbids it.
    """
    message = f"device {device!r} does not do {operation}: {reason}"
    if _rule[0] == "forbid":
        raise errors.NotDelegatedError(
            f"{message}; fallback is forbidden, so cast the tensors, register a kernel, or move them with .to('cpu')",
            device=device,
        )
    if _rule[0] == "warn":
        warnings.warn(f"{message}; numpy does it on the host instead", errors.FallbackWarning, stacklevel=_levels() + 1)


def _levels() -> int:
    """How far away the person's own line is, by which warnings are told apart."""
    frame, level = sys._getframe(1), 0
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _OURS:
        frame, level = frame.f_back, level + 1  # type: ignore[assignment]
    return level


class Residents:
    """Memory by device and array; safe to use from many threads."""

    def __init__(self) -> None:
        self._kept = OwnerBoundMemory()

    def __len__(self) -> int:
        """How many arrays have a copy on a device."""
        return len(self._kept)

    def compute(self, device: str, execution: Execution, inputs: Sequence[Array]) -> tuple[Array, ...] | None:
        """Run a program from memory of the device into memory of it; None, if it has none or its driver cannot.

        Raises:
            OutOfMemoryError: the device has no room.
            ExecutionError: it failed.
        """
        opened = open_device(device)
        self.free_orphans()
        types = [operand.type for operand in (*execution.inputs, *execution.outputs)]
        if not opened.has_memory or any(type_.dtype in PACKED or not type_.size for type_ in types):
            return None
        computed = execution.compute_on_device(
            [DeviceTensor(self._of(device, opened, array), array.dtype, array.shape) for array in inputs]
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
                self._keep(device, results[len(memories) - 1], memories.pop())
            return results
        finally:
            for memory in memories:
                memory.free()

    def free_orphans(self) -> None:
        """Free the copies of arrays that are gone."""
        self._kept.free_orphans()

    def _of(self, device: str, opened: DriverDevice, array: Array) -> Memory:
        cached_memory = self._kept.find((device, id(array)), array)
        if cached_memory is not None:
            return cached_memory
        memory: Memory = use_memory(device, "allocate", opened.allocate, array.nbytes)
        try:
            use_memory(device, "copy_in", memory.copy_in, np.ascontiguousarray(array))
        except BaseException:
            memory.free()
            raise
        return self._keep(device, array, memory)

    def _keep(self, device: str, array: Array, memory: Memory) -> Memory:
        return self._kept.add((device, id(array)), array, memory)


RESIDENTS = Residents()
"""Those of the process."""


MOST_PROGRAMS = 256
"""Programs of all devices together."""


@dataclass(frozen=True, slots=True, eq=False)
class OperationCall:
    """One operation on arrays."""

    type: str
    """A row of the schema table; `CUSTOM` for what only a kernel computes."""
    inputs: tuple[Array, ...]
    attributes: Mapping[str, AttributeValue] = field(default_factory=dict)
    op_type: str = ""
    """The ONNX op of the same inputs that a custom kernel may be registered for; empty where there is none."""

    @property
    def types(self) -> tuple[OperandType, ...]:
        """Of the inputs."""
        return tuple(OperandType(DataType(array.dtype.name), array.shape) for array in self.inputs)

    def __str__(self) -> str:
        """In words, for messages."""
        operation_name = str(self.attributes["op_type"]) if self.type == CUSTOM else self.type
        return f"{operation_name} of {', '.join(map(str, self.types))}"


@dataclass(eq=False)
class _CacheEntry:
    """A program, or why there is none."""

    execution: Execution | None = None
    refusal: str = ""
    lock: Lock = field(default_factory=new_lock)

    def close(self) -> None:
        with self.lock:
            if self.execution is not None:
                self.execution.close()


_Key = tuple[object, ...]


class ProgramCache:
    """The kept programs; safe to use from many threads."""

    def __init__(self, most: int = MOST_PROGRAMS) -> None:
        self._most = most
        self._kept: OrderedDict[_Key, _CacheEntry] = OrderedDict()
        self._contexts: dict[str, tuple[tuple[Kernel, ...], Context]] = {}
        self._lock = new_re_lock()

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._kept)

    def compute(self, device: str, call: OperationCall) -> tuple[Array, ...] | str:
        """Return what an operation makes on a device, or why it does not take it.

        Raises:
            ExecutionError: the device took it and failed.
            DeviceNotFoundError, DeviceUnavailableError: there is no such device, or it cannot be used.
        """
        while True:
            entry = self._take(device, call)
            if entry.execution is None:
                return entry.refusal
            with entry.lock:
                try:
                    on_device = RESIDENTS.compute(device, entry.execution, call.inputs)
                    if on_device is not None:
                        return on_device
                    entry.execution.set_inputs(list(call.inputs))
                    return entry.execution.compute()
                except errors.ClosedError:
                    continue  # another thread's operation took its place meanwhile

    def clear(self) -> None:
        """Close every program and context."""
        with self._lock:
            close_all([*self._kept.values(), *(context for _, context in self._contexts.values())])
            self._kept.clear()
            self._contexts.clear()

    def _take(self, device: str, call: OperationCall) -> _CacheEntry:
        key: _Key = (device, call.type, call.op_type, tuple(call.attributes.items()), call.types)
        with self._lock:
            context = self._context(device)
            entry = self._kept.get(key)
            if entry is None:
                entry = self._kept[key] = _compile_operation(context, call)
            self._kept.move_to_end(key)
            dropped = [self._kept.popitem(last=False)[1] for _ in range(len(self._kept) - self._most)]
        close_all(dropped)
        return entry

    def _context(self, device: str) -> Context:
        registered = registered_kernels()
        cache_entry = self._contexts.get(device)
        if cache_entry is not None and cache_entry[0] == registered:
            return cache_entry[1]
        if cache_entry is not None:
            stale = [key for key in self._kept if key[0] == device]
            close_all([*(self._kept.pop(key) for key in stale), cache_entry[1]])
            del self._contexts[device]
        context = Context(Device.acquire(device))
        self._contexts[device] = registered, context
        return context


def _compile_operation(context: Context, call: OperationCall) -> _CacheEntry:
    driver_context = context.driver_context
    table = driver_context.table if isinstance(driver_context, KernelContext) else KernelTable()
    plain = _model(call)
    by_kernel = None if isinstance(plain, str) else _kernel_call(call, plain, table)
    overriding = by_kernel is not None and by_kernel[1].overrides
    models = [plain] if by_kernel is None else [by_kernel[0], plain] if overriding else [plain, by_kernel[0]]
    refusals = []
    for model in models:
        outcome = model if isinstance(model, str) else _executed(context, model)
        if isinstance(outcome, Execution):
            return _CacheEntry(outcome)
        refusals.append(outcome)
    return _CacheEntry(refusal=refusals[0])


def _executed(context: Context, model: Model) -> Execution | str:
    compilation = Compilation(context, model)
    refused = next((str(verdict) for verdict in compilation.verdicts if not verdict), "")
    if not refused and not compilation.admission.verdict:
        refused = str(compilation.admission.verdict)
    if refused:
        return refused
    try:
        return Execution(compilation)
    except errors.NNAdapterError as error:
        return str(error)


def _model(call: OperationCall) -> Model | str:
    """The operation as a model, or why it is none."""
    builder = ModelBuilder()
    try:
        inputs = [builder.add_input(f"input {at}", type_) for at, type_ in enumerate(call.types)]
        return builder.finish(builder.add_operation(call.type, inputs, call.attributes))
    except errors.InvalidModelError as error:
        return str(error)


def _kernel_call(call: OperationCall, plain: Model, table: KernelTable) -> tuple[Model, Kernel] | None:
    """The same by a custom kernel, if there is one."""
    if ("", call.op_type) not in table.by_op:
        return None
    outputs = tuple(plain.operands[index].type for index in plain.outputs)
    version = newest_version(call.op_type)
    request = Request(
        domain="", op_type=call.op_type, version=version, attributes={}, inputs=call.types, outputs=outputs
    )
    choice = table.choose(request)
    if not isinstance(choice, Choice):
        warn_of_infer([choice.detail])
        return None
    custom = CustomCall(
        domain="",
        op_type=call.op_type,
        since_version=version,
        present=tuple(range(len(call.inputs))),
        outputs=outputs,
    )
    model = _model(OperationCall(CUSTOM, call.inputs, custom.to_attributes()))
    return None if isinstance(model, str) else (model, choice.kernel)


def newest_version(op_type: str, domain: str = "") -> int:
    """The newest version of an op's schema that the installed onnx has; 1 for an op without one."""
    from nnadapter.onnx.schemas import newest_since_version

    return newest_since_version(domain, op_type) or 1


PROGRAMS = ProgramCache()
"""Those of the process."""


OnHost = Callable[..., Any]
"""Numpy's own function for an operation, of the same arrays."""


def apply(
    place: Place,
    type_: str,
    inputs: Sequence[Array],
    on_host: OnHost,
    attributes: dict[str, AttributeValue] | None = None,
    op_type: str = "",
) -> Array:
    """Return the one result of an operation, read-only.

    Args:
        place: where it is computed.
        type_: a row of the schema table.
        inputs: of the data types that the operation takes.
        on_host: what numpy computes in its place, from the same arrays.
        attributes: of the operation.
        op_type: the ONNX op that custom kernels for it are registered for.

    Raises:
        NotDelegatedError: the device does not take it, and fallback is forbidden.
    """
    if place.is_host:
        return _host(on_host, inputs)
    call = OperationCall(type_, tuple(map(freeze, inputs)), attributes or {}, op_type)
    try:
        outcome = PROGRAMS.compute(place.device, call)
    except (errors.ExecutionError, errors.OutOfMemoryError) as error:
        outcome = errors.describe(error)
    if not isinstance(outcome, str):
        return freeze(outcome[0])
    fall_back(place.device, str(call), outcome)
    return _host(on_host, inputs)


def _host(on_host: OnHost, inputs: Sequence[Array]) -> Array:
    # What numpy warns of (division by zero, overflow) are results like any other on a device.
    with np.errstate(all="ignore"):
        return freeze(np.asarray(on_host(*inputs)))


def cast(place: Place, array: Array, dtype: Dtype) -> Array:
    """Return an array in another data type, cast where it lives."""
    if array.dtype == dtype:
        return array
    return apply(place, "CAST", [array], lambda operand: operand.astype(dtype), {"to": dtype.name}, "")
