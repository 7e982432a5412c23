"""Programs, executions, memory and streams of C drivers."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from nnadapter import errors
from nnadapter.drivers.capability import MemoryStatistics
from nnadapter.drivers.envelope import ADVICE, PREFIX_BYTES, Envelope
from nnadapter.drivers.interface import UNLIMITED, Control, DeviceTensor, Event, Execution, Memory, Program, Stream
from nnadapter.drivers.native.c_interface import CLASSES, DATA_TYPES, SIGNATURES, Functions, Holder, make
from nnadapter.drivers.native.models import OPEN, NumberedSizes, StructTemplate, aligned, contents
from nnadapter.ir.deferred_arrays import pack, unpack
from nnadapter.ir.model import Model
from nnadapter.ir.operand import PACKED, Array, DataType, Layout, OperandType
from nnadapter.process.resources import Cache, ObjectPool, memoize, new_lock
from nnadapter.records import dataclass


class NativeEvent(Event):
    """Event of a C driver. Older drivers do not support `is_done` and `synchronize`."""

    def __init__(self, functions: Functions, device: int) -> None:
        self._functions = functions
        self.handle: int | None = functions.create_handle("create_event", device)

    @property
    def is_done(self) -> bool:
        return bool(self._functions.plain("query_event", self.handle))

    def synchronize(self) -> None:
        self._functions.call(
            "synchronize_event", self.handle, failure=errors.ExecutionError, misuse=errors.ExecutionError
        )

    def close(self) -> None:
        handle, self.handle = self.handle, None
        if handle is not None:
            self._functions.plain("destroy_event", handle)


class NativeStream(Stream):
    """Stream of a C driver."""

    def __init__(self, functions: Functions, device: int) -> None:
        self._functions = functions
        self.handle: int | None = functions.create_handle("create_stream", device)

    def record(self, event: Event) -> None:
        assert isinstance(event, NativeEvent), "events of a device are its own"
        self._functions.call("record_event", event.handle, self.handle)

    def wait(self, event: Event) -> None:
        assert isinstance(event, NativeEvent), "events of a device are its own"
        self._functions.call("wait_event", self.handle, event.handle)

    def synchronize(self) -> None:
        self._functions.call(
            "synchronize_stream", self.handle, failure=errors.ExecutionError, misuse=errors.ExecutionError
        )

    def close(self) -> None:
        handle, self.handle = self.handle, None
        if handle is not None:
            self._functions.plain("destroy_stream", handle)


def wait_out(stream: NativeStream | None) -> None:
    """Wait for a stream, despite interrupts and failures, before buffers that it uses are freed."""
    while stream is not None:
        try:
            with suppress(*errors.FAILURES):
                stream.synchronize()
            return
        except KeyboardInterrupt:
            continue


class DeviceMemory(Memory):
    """Memory of a C driver's device; a context manager."""

    def __init__(self, functions: Functions, device: int, nbytes: int) -> None:
        self._functions = functions
        self.nbytes = nbytes
        self.handle: int | None = functions.create_handle("allocate", device, nbytes)

    def copy_in(self, array: Array, offset: int = 0, stream: NativeStream | None = None) -> None:
        """Copy a contiguous array to the device. With a stream, keep the array unchanged until `synchronize`."""
        self._check("copied in", array, offset)
        self._copy("copy_in", array, offset, stream)

    def copy_out(self, array: Array, offset: int = 0, stream: NativeStream | None = None) -> None:
        """Copy into a contiguous, writable array. With a stream, the array is valid after `synchronize`."""
        if not array.flags.writeable:
            raise errors.InvalidInputError("the array to copy to is read-only; pass a writable one")
        self._check("copied out", array, offset)
        self._copy("copy_out", array, offset, stream)

    def copy_from(self, source: DeviceMemory, nbytes: int | None = None, stream: NativeStream | None = None) -> None:
        count = source.nbytes if nbytes is None else nbytes
        if not 0 <= count <= min(self.nbytes, source.nbytes):
            raise errors.InvalidInputError(
                f"cannot copy {count} bytes from device memory of {source.nbytes} bytes to one of {self.nbytes} bytes"
            )
        self._functions.call(
            "copy_between", self._open(), 0, source._open(), 0, count, None if stream is None else stream.handle
        )

    def free(self) -> None:
        handle, self.handle = self.handle, None
        if handle is not None:
            self._functions.plain("free_memory", handle)

    def __enter__(self) -> DeviceMemory:
        return self

    def __exit__(self, *_: object) -> None:
        self.free()

    def _open(self) -> int:
        if self.handle is None:
            raise errors.DriverError("the device memory was freed; allocate it again")
        return self.handle

    def _check(self, action: str, array: Array, offset: int) -> None:
        if not array.flags.c_contiguous:
            raise errors.InvalidInputError(f"the array to be {action} is not contiguous; use numpy.ascontiguousarray")
        if offset < 0 or offset + array.nbytes > self.nbytes:
            raise errors.InvalidInputError(
                f"an array of {array.nbytes} bytes cannot be {action} at offset {offset}, because the device memory "
                f"has {self.nbytes} bytes"
            )

    def _copy(self, name: str, array: Array, offset: int, stream: NativeStream | None) -> None:
        address = array.__array_interface__["data"][0] if array.nbytes else None
        handle = None if stream is None else stream.handle
        self._functions.call(name, self._open(), offset, address, array.nbytes, handle)


def statistics_of(functions: Functions, device: int) -> MemoryStatistics:
    """Return the memory usage of a device."""
    statistics = make("MemoryStatistics")
    functions.call("statistics", device, ctypes.addressof(statistics))
    return MemoryStatistics(
        total_bytes=statistics.total_bytes, used_bytes=statistics.used_bytes, peak_bytes=statistics.peak_bytes
    )


_ENVELOPE = Envelope(magic=b"NNACDRIV", version=1)


class NativeSignature(NamedTuple):
    """Types of a program's inputs and outputs."""

    inputs: tuple[OperandType, ...]
    outputs: tuple[OperandType, ...]


def seal(driver: str, types: NativeSignature, parts: Sequence[bytes]) -> bytes:
    """Return a serialized program: a header with driver name and signature, and the driver's own bytes."""
    header = {
        "driver": driver,
        "inputs": [_plain(type_) for type_ in types.inputs],
        "outputs": [_plain(type_) for type_ in types.outputs],
    }
    return _ENVELOPE.close(json.dumps(header).encode(), parts)


def unseal(driver: str, blob: bytes | memoryview, *, is_checked: bool = False) -> tuple[NativeSignature, memoryview]:
    """Return the signature and the driver's own bytes.

    Raises:
        IncompatibleProgramError: damaged, or of another kind, version or driver.
    """
    header, contents = _ENVELOPE.open(blob, is_checked=is_checked)
    try:
        read = json.loads(header)
        types = NativeSignature(*(tuple(_type(entry) for entry in read[name]) for name in ("inputs", "outputs")))
        writer = read["driver"]
    except (ValueError, KeyError, TypeError) as error:
        raise errors.IncompatibleProgramError(f"the program's header cannot be read: {error}; {ADVICE}") from error
    if writer != driver:
        raise errors.IncompatibleProgramError(f"the program was compiled by {writer!r}, expected {driver!r}; {ADVICE}")
    return types, contents


def written_by(driver: str, blob: memoryview) -> memoryview | None:
    """Return the driver's own bytes; None if another driver wrote them. Their checksum is not verified."""
    header = _ENVELOPE.header_of(blob)
    if header is None:
        return None
    try:
        writer = json.loads(header)["driver"]
    except (ValueError, KeyError, TypeError):
        return None
    return blob[PREFIX_BYTES + len(header) :] if writer == driver else None


def _plain(type_: OperandType) -> list[object]:
    return [type_.dtype.value, [int(size) for size in type_.dimensions], type_.layout.value]


def _type(plain: list[object]) -> OperandType:
    dtype, dimensions, layout = plain
    if not isinstance(dimensions, list) or not all(isinstance(size, int) and size >= 0 for size in dimensions):
        raise ValueError(f"got dimensions {dimensions!r}, expected a list of integers of at least 0")
    return OperandType(DataType(str(dtype)), tuple(dimensions), Layout(str(layout)))


_UNLIMITED = make("Control", deadline_seconds=UNLIMITED.deadline_seconds)


def build_control(control: Control, holder: Holder) -> int:
    """Return the address of an NNAdapterControl."""
    if control is UNLIMITED:
        return ctypes.addressof(_UNLIMITED)
    cancelled, progress = control.cancelled, control.progress
    callbacks = {
        "cancelled": None if cancelled is None else SIGNATURES["cancelled"](lambda _: int(cancelled())),
        "progress": None if progress is None else SIGNATURES["progress"](lambda _, fraction: progress(fraction)),
    }
    addresses = {
        name: None if callback is None else ctypes.cast(holder.keep(callback), ctypes.c_void_p).value
        for name, callback in callbacks.items()
    }
    return holder.make("Control", deadline_seconds=control.deadline_seconds, **addresses)


class Request:
    """Template of the NNAdapterComputeRequests with one signature."""

    def __init__(self, types: NativeSignature) -> None:
        all_types = (*types.inputs, *types.outputs)
        pattern = _pattern(*(tuple([(type_.dtype, type_.rank) for type_ in side]) for side in types))
        self.sizes = [type_.nbytes for type_ in types.inputs]
        self.output_sizes = [type_.nbytes for type_ in types.outputs]
        self.types = types
        self.output_forms = [(type_.dimensions, type_.dtype.array_type) for type_ in types.outputs]
        self.is_packed = any(type_.dtype in PACKED for type_ in all_types)
        self.may_lie_on_device = not self.is_packed and all(type_.size for type_ in all_types)
        sizes = [size for type_ in all_types for size in type_.dimensions]
        self.block = pattern.block.with_words(pattern.sizes, [*sizes, *self.sizes, *self.output_sizes])
        self.data, self.memory = pattern.data, pattern.memory


class NativeCall:
    """NNAdapterComputeRequest; it serves one computation at a time."""

    def __init__(self, request: Request, stream: int | None, control: Control, sizes: Any = None) -> None:
        self._request, self._holder = request, Holder()
        words, self.request = request.block.copied()
        self._words = words.view(np.uint64)
        compute_request = CLASSES["ComputeRequest"].from_address(self.request)
        compute_request.stream, compute_request.control = stream, build_control(control, self._holder)
        if sizes is not None:
            compute_request.size_count, compute_request.sizes = len(sizes), ctypes.addressof(self._holder.keep(sizes))
        self._input_arrays: Sequence[Array] = ()
        self._output_arrays: Sequence[Array] = ()

    def take(self, inputs: Sequence[Array], outputs: Sequence[Array] = ()) -> None:
        request = self._request
        if request.is_packed:
            self._input_arrays, self._output_arrays = _packed(request.types, inputs)
        else:
            self._input_arrays = list(map(aligned, inputs))
            self._output_arrays = (
                outputs
                if self._fit(outputs)
                else [np.empty(dimensions, dtype) for dimensions, dtype in request.output_forms]
            )
        if [array.nbytes for array in self._input_arrays] != request.sizes:
            raise self._other_sizes(self._input_arrays)
        self._words[request.data] = [contents(array) or 0 for array in (*self._input_arrays, *self._output_arrays)]
        self._words[request.memory] = 0

    def _fit(self, outputs: Sequence[Array]) -> bool:
        is_plain = all(array.flags.c_contiguous and array.flags.aligned for array in outputs)
        return is_plain and [array.nbytes for array in outputs] == self._request.output_sizes

    def place(self, inputs: Sequence[DeviceMemory], outputs: Sequence[DeviceMemory]) -> None:
        request = self._request
        if any(memory.nbytes < size for memory, size in zip(inputs, request.sizes, strict=True)):
            raise self._other_sizes(inputs)
        self._words[request.data] = 0
        self._words[request.memory] = [memory.handle or 0 for memory in (*inputs, *outputs)]

    def _other_sizes(self, inputs: Sequence[Array | DeviceMemory]) -> errors.ExecutionError:
        input_sizes = [buffer.nbytes for buffer in inputs]
        return errors.ExecutionError(
            f"inputs have {input_sizes} bytes, but the program was compiled for {self._request.sizes}"
        )

    def results(self) -> Sequence[Array]:
        output_arrays, self._input_arrays, self._output_arrays = self._output_arrays, (), ()
        if not self._request.is_packed:
            return output_arrays
        return [
            unpack(array, type_.dtype, type_.dimensions) if type_.dtype in PACKED else array
            for type_, array in zip(self._request.types.outputs, output_arrays, strict=True)
        ]


def _packed(types: NativeSignature, inputs: Sequence[Array]) -> tuple[list[Array], list[Array]]:
    pairs = zip(types.inputs, inputs, strict=True)
    packed_inputs = [pack(array) if type_.dtype in PACKED else aligned(array) for type_, array in pairs]
    return packed_inputs, [_allocate(type_) for type_ in types.outputs]


class CallSignature:
    """Types and sizes of a run, with cached requests."""

    def __init__(self, types: NativeSignature, sizes: Any = None) -> None:
        self.types, self.c_sizes = types, sizes
        self.calls: dict[object, NativeCall] = {}

    @cached_property
    def request(self) -> Request:
        return Request(self.types)


class ExecutionSlot:
    """Slot for one computation at a time, with a stream of its own if the device has streams."""

    def __init__(self, stream: NativeStream | None) -> None:
        self.stream = stream

    def close(self) -> None:
        if self.stream is not None:
            self.stream.close()


_Kind = tuple[DataType, int]


@dataclass(frozen=True, slots=True, eq=False)
class _Pattern:
    """Request template for some data types and ranks."""

    block: StructTemplate
    sizes: Array
    data: Array
    memory: Array


@memoize(512)
def _pattern(inputs: tuple[_Kind, ...], outputs: tuple[_Kind, ...]) -> _Pattern:
    holder = Holder()
    tensors = [_tensor(holder, *kind) for kind in (*inputs, *outputs)]
    addresses = list(map(ctypes.addressof, tensors))
    request = holder.make(
        "ComputeRequest",
        input_count=len(inputs),
        output_count=len(outputs),
        inputs=holder.pointers(addresses[: len(inputs)]),
        outputs=holder.pointers(addresses[len(inputs) :]),
    )
    block = StructTemplate(holder, request)
    places = [
        block.word_of(tensor.dimensions) + axis
        for tensor, (_, rank) in zip(tensors, (*inputs, *outputs), strict=True)
        for axis in range(rank)
    ]

    def members(name: str) -> Array:
        return np.array([block.word_of(address, name, "Tensor") for address in addresses], np.intp)

    sizes = np.concatenate([np.array(places, np.intp), members("bytes")])
    return _Pattern(block, sizes, members("data"), members("memory"))


def _tensor(holder: Holder, dtype: DataType, rank: int) -> Any:
    dimensions = holder.values("i64", [0] * rank)
    return holder.keep(make("Tensor", data_type=DATA_TYPES[dtype], rank=rank, dimensions=dimensions))


def _allocate(type_: OperandType) -> Array:
    if type_.dtype in PACKED:
        return np.empty(type_.nbytes, np.uint8)
    return np.empty(type_.dimensions, type_.dtype.array_type)


_Type = tuple[Any, ...]
"""Fields of an `OperandType`. A dynamic dimension is (size index, OPEN), a static one (OPEN, size)."""


class _DynamicSignature:
    def __init__(self, inputs: Sequence[_Type], outputs: Sequence[_Type]) -> None:
        self._types = inputs, outputs
        self._specializations: Cache[tuple[int, ...], CallSignature] = Cache("drivers.native.open_borders", 8)

    def at(self, sizes: NumberedSizes, numbers: Sequence[int]) -> CallSignature:
        return self._specializations.get_or_make(
            tuple(numbers), lambda: CallSignature(self._specialize(numbers), sizes.c_array(numbers))
        )

    def _specialize(self, numbers: Sequence[int]) -> NativeSignature:
        inputs, outputs = (tuple([_type_at(operand_type, numbers) for operand_type in types]) for types in self._types)
        return NativeSignature(inputs, outputs)


class RunSignature(NamedTuple):
    """Signature of a program that gets concrete sizes for each run."""

    sizes: NumberedSizes
    signature: _DynamicSignature

    def at(self, numbers: Sequence[int]) -> CallSignature:
        return self.signature.at(self.sizes, numbers)


class DynamicSignatures:
    """Cache of the dynamic signatures of a context."""

    def __init__(self) -> None:
        self._signatures: Cache[tuple[Any, ...], _DynamicSignature] = Cache("drivers.native.open_borders", 256)

    def of(self, model: Model, sizes: NumberedSizes) -> RunSignature:
        inputs, outputs = (
            tuple([_type_of(model.type_at(operand), sizes) for operand in operands])
            for operands in (model.inputs, model.outputs)
        )
        return RunSignature(
            sizes, self._signatures.get_or_make((inputs, outputs), lambda: _DynamicSignature(inputs, outputs))
        )


def _type_of(type_: OperandType, sizes: NumberedSizes) -> _Type:
    dimensions = tuple(zip(sizes.positions_of(type_.dimensions), type_.dimensions, strict=True))
    placed = tuple([(place, OPEN if place != OPEN else size) for place, size in dimensions])
    return type_.dtype, placed, type_.layout, type_.quantization


def _type_at(type_: _Type, numbers: Sequence[int]) -> OperandType:
    dtype, placed, *type_fields = type_
    return OperandType(
        dtype, tuple([numbers[place] if place != OPEN else size for place, size in placed]), *type_fields
    )


class NativeExecution(Execution):
    """Execution of a C driver. Reads the caller's arrays directly.

    Executions of a context share `slots`, in order to limit the number of streams.
    """

    def __init__(self, program: NativeProgram, handle: int) -> None:
        self._program, self._handle = program, handle
        self._functions, self._signature, self._slots = program.functions, program.signature, program.slots
        self._calls: dict[object, tuple[CallSignature | None, NativeCall]] = {}
        """Last request of each stream, because the driver may still read the request. Runs with the same signature
        reuse the request; a signature of None prevents reuse.
        """
        self._last: tuple[Sequence[int], NativeExecution] | None = None

    def compute(self, inputs: Sequence[Array]) -> Sequence[Array]:
        return self._run(inputs)

    def compute_within(self, inputs: Sequence[Array], control: Control) -> Sequence[Array]:
        return self._run(inputs, control)

    def compute_into(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Sequence[Array]:
        return self._run(inputs, outputs=outputs)

    def compute_on_device(
        self, inputs: Sequence[DeviceTensor], control: Control = UNLIMITED
    ) -> Sequence[DeviceTensor] | None:
        input_memories = _input_memories(self._signature, inputs)
        if input_memories is None:
            return None
        user = object()
        try:
            slot = self._slots.acquire(user)
            call = _request_for_slot(slot, self._signature, control)
            return self._placed_by(call, input_memories, slot.stream, is_awaited=True)
        finally:
            self._slots.users.pop(user, None)

    def enqueue(
        self, inputs: Sequence[DeviceTensor], stream: Stream, control: Control = UNLIMITED
    ) -> Sequence[DeviceTensor] | None:
        assert isinstance(stream, NativeStream), "streams of a device are its own"
        input_memories = _input_memories(self._signature, inputs)
        if input_memories is None:
            return None
        return self._placed_by(self._enqueued(stream, control), input_memories, stream, is_awaited=False)

    def specialize(self, sizes: Sequence[Any]) -> Execution:
        dynamic_signature = self._program.dynamic_signature
        if dynamic_signature is None:
            return super().specialize(sizes)
        numbers = dynamic_signature.sizes.of(sizes)
        last = self._last
        if last is None or last[0] != numbers:
            execution = copy(self)
            execution._signature, execution._last = dynamic_signature.at(numbers), None
            last = self._last = numbers, execution
        return last[1]

    def _run(
        self, inputs: Sequence[Array], control: Control = UNLIMITED, outputs: Sequence[Array] = ()
    ) -> Sequence[Array]:
        user = object()
        try:
            slot = self._slots.acquire(user)
            call = _request_for_slot(slot, self._signature, control)
            call.take(inputs, outputs)
            try:
                self._compute(call)
                if slot.stream is not None:
                    slot.stream.synchronize()
            except BaseException:
                wait_out(slot.stream)
                raise
            return call.results()
        finally:
            self._slots.users.pop(user, None)

    def _placed_by(
        self,
        call: NativeCall,
        input_memories: Sequence[DeviceMemory],
        stream: NativeStream | None,
        *,
        is_awaited: bool,
    ) -> list[DeviceTensor]:
        output_memories: list[DeviceMemory] = []
        try:
            for nbytes in self._signature.request.output_sizes:
                output_memories.append(DeviceMemory(self._functions, self._program.device, nbytes))
            call.place(input_memories, output_memories)
            self._compute(call)
            if is_awaited and stream is not None:
                stream.synchronize()
            return _tensors(self._signature, output_memories)
        except BaseException:
            wait_out(stream)
            for memory in output_memories:
                memory.free()
            raise

    def close(self) -> None:
        self._functions.plain("destroy_execution", self._handle)

    def _enqueued(self, stream: NativeStream, control: Control) -> NativeCall:
        signature, (last, call) = self._signature, self._calls.get(stream.handle, (None, None))
        if call is None or last is not signature or control is not UNLIMITED:
            call = NativeCall(signature.request, stream.handle, control, signature.c_sizes)
            self._calls[stream.handle] = signature if control is UNLIMITED else None, call
        return call

    def _compute(self, call: NativeCall) -> None:
        self._functions.call(
            "compute", self._handle, call.request, failure=errors.ExecutionError, misuse=errors.ExecutionError
        )


def _request_for_slot(slot: ExecutionSlot, signature: CallSignature, control: Control) -> NativeCall:
    stream = None if slot.stream is None else slot.stream.handle
    if control is not UNLIMITED:
        return NativeCall(signature.request, stream, control, signature.c_sizes)
    call = signature.calls.get(slot)
    if call is None:
        call = signature.calls[slot] = NativeCall(signature.request, stream, control, signature.c_sizes)
    return call


def _input_memories(signature: CallSignature, inputs: Sequence[DeviceTensor]) -> list[DeviceMemory] | None:
    memories = [tensor.memory for tensor in inputs if isinstance(tensor.memory, DeviceMemory)]
    return memories if len(memories) == len(inputs) and signature.request.may_lie_on_device else None


def _tensors(signature: CallSignature, memories: Sequence[DeviceMemory]) -> list[DeviceTensor]:
    output_forms = zip(memories, signature.request.output_forms, strict=True)
    return [DeviceTensor(memory, dtype, tuple(map(int, dimensions))) for memory, (dimensions, dtype) in output_forms]


class NativeProgram(Program):
    """Program of a C driver. Owns the model, constants and bytes that the driver may read."""

    def __init__(
        self,
        functions: Functions,
        device: int,
        handle: int,
        signature: CallSignature,
        holder: Holder,
        slots: ObjectPool[ExecutionSlot],
        dynamic_signature: RunSignature | None = None,
    ) -> None:
        self.functions, self.device, self._handle = functions, device, handle
        self.signature, self._holder, self.slots = signature, holder, slots
        self.dynamic_signature = dynamic_signature
        self._lock = new_lock()

    def create_execution(self) -> NativeExecution:
        with self._lock:
            handle = self.functions.create_handle("create_execution", self._handle, failure=errors.ExecutionError)
        return NativeExecution(self, handle)

    def bound(self, request: int) -> int | None:
        """Return a handle of the program with other constants; None if the driver cannot replace constants.

        `request` is the address of an NNAdapterCompileRequest with these constants.
        """
        with self._lock:
            handle = self.functions.create_handle_or_none(
                "clone_with_constants",
                self._handle,
                request,
                failure=errors.CompilationError,
                misuse=errors.CompilationError,
            )
        if handle == self._handle:
            raise errors.DriverError(
                f"{self.functions.driver}: clone_with_constants returned the original program, expected a new "
                "one; report it to the vendor"
            )
        return handle

    @property
    def memory_bytes(self) -> int:
        is_reported = "program_memory" in self.functions
        return int(self.functions.plain("program_memory", self._handle)) if is_reported else 0

    def serialize(self) -> bytes | None:
        if "serialize" not in self.functions or self.dynamic_signature is not None:
            return None
        parts: list[bytes] = []

        def write(_: int | None, data: int | None, nbytes: int) -> int:
            parts.append(ctypes.string_at(data, nbytes) if data and nbytes else b"")
            return 0

        callback = SIGNATURES["write"](write)
        writer = make("Writer", write=ctypes.cast(callback, ctypes.c_void_p).value)
        self.functions.call("serialize", self._handle, ctypes.addressof(writer))
        return seal(self.functions.driver, self.signature.types, parts)

    def close(self) -> None:
        self.functions.plain("destroy_program", self._handle)
