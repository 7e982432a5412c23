"""Programs of one operation, kept: per device, operation, attributes and input types.

The one used longest ago is closed when there are too many. Contexts are opened once per device, and again when kernels
were registered or taken away, since a context has those that were there when it was opened.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from threading import Lock

from nnadapter.drivers.kernel import Kernel
from nnadapter.eager.resident import RESIDENTS
from nnadapter.errors import ClosedError, InvalidModelError, NNAdapterError
from nnadapter.ir.builder import ModelBuilder
from nnadapter.ir.model import Model
from nnadapter.ir.operand import Array, DataType, OperandType
from nnadapter.ir.operations.custom import CUSTOM, CustomCall
from nnadapter.ir.schema import AttributeValue
from nnadapter.kernels.choosing import Choice, KernelTable, Request, warn_of_infer
from nnadapter.kernels.context import KernelContext
from nnadapter.kernels.registered import registered_kernels
from nnadapter.process.closing import close_all
from nnadapter.process.forking import new_lock, new_re_lock
from nnadapter.runtime.compilation import Compilation
from nnadapter.runtime.context import Context
from nnadapter.runtime.device import Device
from nnadapter.runtime.execution import Execution

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
                except ClosedError:
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
                entry = self._kept[key] = _made(context, call)
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


def _made(context: Context, call: OperationCall) -> _CacheEntry:
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
    except NNAdapterError as error:
        return str(error)


def _model(call: OperationCall) -> Model | str:
    """The operation as a model, or why it is none."""
    builder = ModelBuilder()
    try:
        inputs = [builder.add_input(f"input {at}", type_) for at, type_ in enumerate(call.types)]
        return builder.finish(builder.add_operation(call.type, inputs, call.attributes))
    except InvalidModelError as error:
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
