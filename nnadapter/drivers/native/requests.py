"""Programs of C drivers and computation requests: executions, device memory, streams, controls and signatures."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from nnadapter.drivers.capability import MemoryStatistics
from nnadapter.drivers.envelope import ADVICE, PREFIX_BYTES, Envelope
from nnadapter.drivers.interface import UNLIMITED, Control, DeviceTensor, Event, Execution, Memory, Program, Stream
from nnadapter.drivers.native.c_interface import CLASSES, DATA_TYPES, SIGNATURES, Functions, Holder, make
from nnadapter.drivers.native.models import OPEN, NumberedSizes, StructTemplate, aligned, contents
from nnadapter.errors import (
    FAILURES,
    CompilationError,
    DriverError,
    ExecutionError,
    IncompatibleProgramError,
    InvalidInputError,
)
from nnadapter.ir.deferred_arrays import pack, unpack
from nnadapter.ir.model import Model
from nnadapter.ir.operand import PACKED, Array, DataType, Layout, OperandType
from nnadapter.process.resources import Cache, ObjectPool, memoize, new_lock


class NativeEvent(Event):
    """See `Event`; that it is waited for or asked came to the interface later, and a driver may lack it.

    Args:
        functions: the driver's; its group `streams` is there.
        device: the device's handle.
    """

    def __init__(self, functions: Functions, device: int) -> None:
        self._functions = functions
        self.handle: int | None = functions.create_handle("create_event", device)
        """The driver's handle; None after `close`."""

    @property
    def is_done(self) -> bool:
        return bool(self._functions.plain("query_event", self.handle))

    def synchronize(self) -> None:
        self._functions.call("synchronize_event", self.handle, failure=ExecutionError, misuse=ExecutionError)

    def close(self) -> None:
        handle, self.handle = self.handle, None
        if handle is not None:
            self._functions.plain("destroy_event", handle)


class NativeStream(Stream):
    """See `Stream`.

    Args:
        functions: the driver's; its group `streams` is there.
        device: the device's handle.
    """

    def __init__(self, functions: Functions, device: int) -> None:
        self._functions = functions
        self.handle: int | None = functions.create_handle("create_stream", device)
        """The driver's handle; None after `close`."""

    def record(self, event: Event) -> None:
        assert isinstance(event, NativeEvent), "events of a device are its own"
        self._functions.call("record_event", event.handle, self.handle)

    def wait(self, event: Event) -> None:
        assert isinstance(event, NativeEvent), "events of a device are its own"
        self._functions.call("wait_event", self.handle, event.handle)

    def synchronize(self) -> None:
        self._functions.call("synchronize_stream", self.handle, failure=ExecutionError, misuse=ExecutionError)

    def close(self) -> None:
        handle, self.handle = self.handle, None
        if handle is not None:
            self._functions.plain("destroy_stream", handle)


def wait_out(stream: NativeStream | None) -> None:
    """Wait until a stream, if there is one, is done, however often somebody interrupts: what it works in may go then.

    What failed is not told: an error is being raised already.
    """
    while stream is not None:
        try:
            with suppress(*FAILURES):
                stream.synchronize()
            return
        except KeyboardInterrupt:
            continue


class DeviceMemory(Memory):
    """Bytes on a device; a context manager that frees them.

    Args:
        functions: the driver's; its group `memory` is there.
        device: the device's handle.
        nbytes: how many.

    Raises:
        OutOfMemoryError: the device has no room.
        DriverError: it failed otherwise.
    """

    def __init__(self, functions: Functions, device: int, nbytes: int) -> None:
        self._functions = functions
        self.nbytes = nbytes
        self.handle: int | None = functions.create_handle("allocate", device, nbytes)
        """The driver's handle; None after `free`."""

    def copy_in(self, array: Array, offset: int = 0, stream: NativeStream | None = None) -> None:
        """Copy a contiguous array to the device, done on return.

        With a stream, call its `synchronize` before the array is changed or let go.
        """
        self._check("copied in", array, offset)
        self._copy("copy_in", array, offset, stream)

    def copy_out(self, array: Array, offset: int = 0, stream: NativeStream | None = None) -> None:
        """Fill a contiguous, writable array from the device, done on return.

        With a stream, call its `synchronize` before the array is read or let go.
        """
        if not array.flags.writeable:
            raise InvalidInputError("the array to copy to is read-only; give one that can be written to")
        self._check("copied out", array, offset)
        self._copy("copy_out", array, offset, stream)

    def copy_from(self, source: DeviceMemory, nbytes: int | None = None, stream: NativeStream | None = None) -> None:
        """Copy the first `nbytes` (all, if None) of other memory here, of this device or another of the driver."""
        count = source.nbytes if nbytes is None else nbytes
        if not 0 <= count <= min(self.nbytes, source.nbytes):
            raise InvalidInputError(f"{count} bytes are to be copied from {source.nbytes} to {self.nbytes} bytes")
        self._functions.call(
            "copy_between", self._open(), 0, source._open(), 0, count, None if stream is None else stream.handle
        )

    def free(self) -> None:
        """Free it; nothing happens the second time."""
        handle, self.handle = self.handle, None
        if handle is not None:
            self._functions.plain("free_memory", handle)

    def __enter__(self) -> DeviceMemory:
        """The memory itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Free it."""
        self.free()

    def _open(self) -> int:
        if self.handle is None:
            raise DriverError("the device memory was freed; allocate it again")
        return self.handle

    def _check(self, action: str, array: Array, offset: int) -> None:
        if not array.flags.c_contiguous:
            raise InvalidInputError(f"the array that is {action} is not contiguous; pass numpy.ascontiguousarray of it")
        if offset < 0 or offset + array.nbytes > self.nbytes:
            raise InvalidInputError(f"{array.nbytes} bytes at {offset} are {action}, there are {self.nbytes} bytes")

    def _copy(self, name: str, array: Array, offset: int, stream: NativeStream | None) -> None:
        address = array.__array_interface__["data"][0] if array.nbytes else None
        handle = None if stream is None else stream.handle
        self._functions.call(name, self._open(), offset, address, array.nbytes, handle)


def statistics_of(functions: Functions, device: int) -> MemoryStatistics:
    """How full a device is now.

    Raises:
        NNAdapterError: the driver failed.
    """
    statistics = make("MemoryStatistics")
    functions.call("statistics", device, ctypes.addressof(statistics))
    return MemoryStatistics(
        total_bytes=statistics.total_bytes, used_bytes=statistics.used_bytes, peak_bytes=statistics.peak_bytes
    )


_ENVELOPE = Envelope(magic=b"NNACDRIV", version=1)


class NativeSignature(NamedTuple):
    """What goes into a program and comes out of it."""

    inputs: tuple[OperandType, ...]
    outputs: tuple[OperandType, ...]


def seal(driver: str, border: NativeSignature, parts: Sequence[bytes]) -> bytes:
    """Return what a driver wrote as bytes that `unseal` takes."""
    header = {
        "driver": driver,
        "inputs": [_plain(type_) for type_ in border.inputs],
        "outputs": [_plain(type_) for type_ in border.outputs],
    }
    return _ENVELOPE.close(json.dumps(header).encode(), parts)


def unseal(driver: str, blob: bytes | memoryview, *, is_checked: bool = False) -> tuple[NativeSignature, memoryview]:
    """Return the types at the border and the driver's own bytes; for `is_checked`, see `Envelope.open`.

    Raises:
        IncompatibleProgramError: they are damaged, of another kind or version, or of another driver.
    """
    header, contents = _ENVELOPE.open(blob, is_checked=is_checked)
    try:
        read = json.loads(header)
        border = NativeSignature(*(tuple(_type(entry) for entry in read[name]) for name in ("inputs", "outputs")))
        writer = read["driver"]
    except (ValueError, KeyError, TypeError) as error:
        raise IncompatibleProgramError(f"the program's header cannot be read: {error}; {ADVICE}") from error
    if writer != driver:
        raise IncompatibleProgramError(f"the program was compiled by {writer!r}, expected {driver!r}; {ADVICE}")
    return border, contents


def written_by(driver: str, blob: memoryview) -> memoryview | None:
    """Return the driver's own bytes, which are neither read nor checked; None if they are not this driver's."""
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
        raise ValueError(f"{dimensions!r} are no dimensions")
    return OperandType(DataType(str(dtype)), tuple(dimensions), Layout(str(layout)))


_UNLIMITED = make("Control", deadline_seconds=UNLIMITED.deadline_seconds)
"""What all have whom nobody stops; drivers read it only."""


def build_control(control: Control, holder: Holder) -> int:
    """The address of an NNAdapterControl; it lives as long as `holder`."""
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
    """An NNAdapterComputeRequest with its tensors, but for addresses: what calls at the same sizes have in common."""

    def __init__(self, border: NativeSignature) -> None:
        every = (*border.inputs, *border.outputs)
        pattern = _pattern(*(tuple([(type_.dtype, type_.rank) for type_ in types]) for types in border))
        self.sizes = [type_.nbytes for type_ in border.inputs]
        """Bytes of the inputs."""
        self.output_sizes = [type_.nbytes for type_ in border.outputs]
        """Bytes of the outputs."""
        self.types = border
        self.rooms = [(type_.dimensions, type_.dtype.array_type) for type_ in border.outputs]
        """Dimensions and data type of arrays for the outputs."""
        self.is_packed = any(type_.dtype in PACKED for type_ in every)
        """Elements of some tensor have another form there."""
        self.may_lie_on_device = not self.is_packed and all(type_.size for type_ in every)
        """Every tensor has bytes, and the same ones there."""
        sizes = [size for type_ in every for size in type_.dimensions]
        self.block = pattern.block.with_words(pattern.sizes, [*sizes, *self.sizes, *self.output_sizes])
        self.data, self.memory = pattern.data, pattern.memory


class NativeCall:
    """One NNAdapterComputeRequest; used by one computation at a time.

    Args:
        request: all of it but addresses.
        stream: the stream's handle; None to be done when the driver returns.
        control: deadline and cancelling.
        told: the sizes that the model leaves open, as an array of C; None where it leaves none open.
    """

    def __init__(self, request: Request, stream: int | None, control: Control, sizes: Any = None) -> None:
        self._request, self._holder = request, Holder()
        words, self.request = request.block.copied()
        """Where the request is."""
        self._words = words.view(np.uint64)
        compute_request = CLASSES["ComputeRequest"].from_address(self.request)
        compute_request.stream, compute_request.control = stream, build_control(control, self._holder)
        if sizes is not None:
            compute_request.size_count, compute_request.sizes = len(sizes), ctypes.addressof(self._holder.keep(sizes))
        self._input_arrays: Sequence[Array] = ()
        self._made: Sequence[Array] = ()

    def take(self, inputs: Sequence[Array], outputs: Sequence[Array] = ()) -> None:
        """Let the request read from arrays, and write to new ones, or to `outputs` where these will do."""
        request = self._request
        if request.is_packed:
            self._input_arrays, self._made = _packed(request.types, inputs)
        else:
            self._input_arrays = list(map(aligned, inputs))
            self._made = (
                outputs if self._fit(outputs) else [np.empty(dimensions, dtype) for dimensions, dtype in request.rooms]
            )
        if [array.nbytes for array in self._input_arrays] != request.sizes:
            raise self._other_sizes(self._input_arrays)
        self._words[request.data] = [contents(array) or 0 for array in (*self._input_arrays, *self._made)]
        self._words[request.memory] = 0

    def _fit(self, outputs: Sequence[Array]) -> bool:
        """Whether the driver can write to arrays."""
        is_plain = all(array.flags.c_contiguous and array.flags.aligned for array in outputs)
        return is_plain and [array.nbytes for array in outputs] == self._request.output_sizes

    def place(self, inputs: Sequence[DeviceMemory], outputs: Sequence[DeviceMemory]) -> None:
        """Let the request read from device memory and write to it."""
        request = self._request
        if any(memory.nbytes < size for memory, size in zip(inputs, request.sizes, strict=True)):
            raise self._other_sizes(inputs)
        self._words[request.data] = 0
        self._words[request.memory] = [memory.handle or 0 for memory in (*inputs, *outputs)]

    def _other_sizes(self, inputs: Sequence[Array | DeviceMemory]) -> ExecutionError:
        """The error for inputs that the driver would read beyond; of plans, only those of forged files give any."""
        input_sizes = [buffer.nbytes for buffer in inputs]
        return ExecutionError(
            f"inputs have {input_sizes} bytes, and the program was compiled for {self._request.sizes}"
        )

    def results(self) -> Sequence[Array]:
        """The arrays that were written, which the call lets go of."""
        output_arrays, self._input_arrays, self._made = self._made, (), ()
        if not self._request.is_packed:
            return output_arrays
        return [
            unpack(array, type_.dtype, type_.dimensions) if type_.dtype in PACKED else array
            for type_, array in zip(self._request.types.outputs, output_arrays, strict=True)
        ]


def _packed(types: NativeSignature, inputs: Sequence[Array]) -> tuple[list[Array], list[Array]]:
    """Arrays to read from and to write to, where some have another form in C."""
    pairs = zip(types.inputs, inputs, strict=True)
    packed_inputs = [pack(array) if type_.dtype in PACKED else aligned(array) for type_, array in pairs]
    return packed_inputs, [_allocate(type_) for type_ in types.outputs]


class CallSignature:
    """What goes into a run and comes out of it, and what the run is told of open sizes."""

    def __init__(self, border: NativeSignature, sizes: Any = None) -> None:
        """Take the types, and an array of C; None where the model leaves no sizes open."""
        self.border, self.told = border, sizes
        self.calls: dict[object, NativeCall] = {}
        """By seat, the request that its user fills in: whatever is computed there, one thing at a time is."""

    @cached_property
    def request(self) -> Request:
        """What its calls have in common; not where types are traced."""
        return Request(self.border)


class ExecutionSlot:
    """What one computation at a time has: a stream, where the driver has streams."""

    def __init__(self, stream: NativeStream | None) -> None:
        self.stream = stream

    def close(self) -> None:
        """Close the stream."""
        if self.stream is not None:
            self.stream.close()


_Kind = tuple[DataType, int]
"""Data type and rank of a tensor."""


@dataclass(frozen=True, slots=True, eq=False)
class _Pattern:
    """A request as far as data types and ranks say it, and the words where the rest stands, tensor by tensor."""

    block: StructTemplate
    sizes: Array
    """Dimensions of all, then the bytes of each."""
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
"""What an `OperandType` is made of, but that each dimension is its place among the sizes, or `OPEN` and its number."""


class _DynamicSignature:
    """A border as far as it is the same at any sizes, with what was made of it at the last few."""

    def __init__(self, inputs: Sequence[_Type], outputs: Sequence[_Type]) -> None:
        self._types = inputs, outputs
        self._sized: Cache[tuple[int, ...], CallSignature] = Cache("drivers.native.open_borders", 8)

    def at(self, sizes: NumberedSizes, numbers: Sequence[int]) -> CallSignature:
        """What it is at these numbers, one for each of the sizes."""
        return self._sized.get_or_make(
            tuple(numbers), lambda: CallSignature(self._specialize(numbers), sizes.c_array(numbers))
        )

    def _specialize(self, numbers: Sequence[int]) -> NativeSignature:
        inputs, outputs = (tuple([_type_at(operand_type, numbers) for operand_type in types]) for types in self._types)
        return NativeSignature(inputs, outputs)


class RunSignature:
    """What goes into a program and comes out of it, whose sizes each run tells.

    Args:
        sizes: those that its model leaves open.
        border: of the model.
    """

    def __init__(self, sizes: NumberedSizes, border: _DynamicSignature) -> None:
        self._sizes, self._border = sizes, border

    def numbers(self, sizes: Sequence[Any]) -> list[int]:
        """The sizes of the model among those of a run; see `Execution.specialize`."""
        return self._sizes.of(sizes)

    def at(self, numbers: Sequence[int]) -> CallSignature:
        """What goes in and comes out at these."""
        return self._border.at(self._sizes, numbers)


class DynamicSignatures:
    """The borders of the programs of a context."""

    def __init__(self) -> None:
        self._kept: Cache[tuple[Any, ...], _DynamicSignature] = Cache("drivers.native.open_borders", 256)

    def of(self, model: Model, sizes: NumberedSizes) -> RunSignature:
        """What goes into a program of a model with open sizes, and comes out of it."""
        inputs, outputs = (
            tuple([_type_of(model.type_at(operand), sizes) for operand in operands])
            for operands in (model.inputs, model.outputs)
        )
        return RunSignature(
            sizes, self._kept.get_or_make((inputs, outputs), lambda: _DynamicSignature(inputs, outputs))
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
    """Computes straight from the caller's arrays into new ones, by a stream where the driver has streams.

    Args:
        functions: of the driver.
        device: handle.
        handle: of the execution.
        sized: what goes in and comes out; traced where the model leaves sizes open.
        held: what the driver reads from, even where nobody has the program any more.
        by_run: the same where the model leaves sizes open; None where it leaves none open.
        seats: of the context, which its executions share: a stream may be a thread.
    """

    def __init__(
        self,
        functions: Functions,
        device: int,
        handle: int,
        sized: CallSignature,
        holder: Holder,
        by_run: RunSignature | None,
        seats: ObjectPool[ExecutionSlot],
    ) -> None:
        self._functions, self._device, self._handle = functions, device, handle
        self._held, self._by_run = holder, by_run
        self._fixed = sized
        self._seats = seats
        self._calls: dict[object, tuple[CallSignature | None, NativeCall]] = {}
        """By handle of the caller's stream, the last request, which the driver reads until it is done; and what for,
        unless that was one run alone."""
        self._last: tuple[Sequence[int], CallSignature | None] = (), None

    def compute(self, inputs: Sequence[Array]) -> Sequence[Array]:
        return self.computed(self._fixed, inputs)

    def compute_within(self, inputs: Sequence[Array], control: Control) -> Sequence[Array]:
        """As `compute`, with a deadline and somebody who may cancel.

        Raises:
            CancelledError: the driver was told that nobody wants the result, and stopped.
            ExecutionError: the deadline passed, or the computation failed.
        """
        return self.computed(self._fixed, inputs, control)

    def compute_into(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Sequence[Array]:
        """See `Execution.compute_into`: not for tensors whose elements have another form there."""
        return self.computed(self._fixed, inputs, outputs=outputs)

    def compute_on_device(
        self, inputs: Sequence[DeviceTensor], control: Control = UNLIMITED
    ) -> Sequence[DeviceTensor] | None:
        """See `Execution.compute_on_device`: not for tensors without bytes, nor those that share bytes there alone."""
        return self.computed_on_device(self._fixed, inputs, control)

    def enqueue(
        self, inputs: Sequence[DeviceTensor], stream: Stream, control: Control = UNLIMITED
    ) -> Sequence[DeviceTensor] | None:
        """See `Execution.enqueue`: for the same tensors as `compute_on_device`."""
        return self.enqueued(self._fixed, inputs, stream, control)

    def specialize(self, sizes: Sequence[Any]) -> Execution:
        if self._by_run is None:
            return super().specialize(sizes)
        numbers = self._by_run.numbers(sizes)
        last, sized = self._last
        if sized is None or last != numbers:
            sized = self._by_run.at(numbers)
            self._last = numbers, sized
        return _SizedExecution(self, sized)

    def computed(
        self, sized: CallSignature, inputs: Sequence[Array], control: Control = UNLIMITED, outputs: Sequence[Array] = ()
    ) -> Sequence[Array]:
        """What a run computes, into `outputs` where there are any; see `compute_within`."""
        user = object()
        try:
            seat = self._seats.acquire(user)
            call = _seated(seat, sized, control)
            call.take(inputs, outputs)
            try:
                self._compute(call)
                if seat.stream is not None:
                    seat.stream.synchronize()
            except BaseException:
                wait_out(seat.stream)
                raise
            return call.results()
        finally:
            self._seats.users.pop(user, None)

    def computed_on_device(
        self, sized: CallSignature, inputs: Sequence[DeviceTensor], control: Control
    ) -> Sequence[DeviceTensor] | None:
        """What a run computes in memory of the device; see `compute_on_device`."""
        input_memories = _placed(sized, inputs)
        if input_memories is None:
            return None
        user = object()
        try:
            seat = self._seats.acquire(user)
            call = _seated(seat, sized, control)
            return self._placed_by(call, sized, input_memories, seat.stream, is_awaited=True)
        finally:
            self._seats.users.pop(user, None)

    def enqueued(
        self, sized: CallSignature, inputs: Sequence[DeviceTensor], stream: Stream, control: Control
    ) -> Sequence[DeviceTensor] | None:
        """What work of a stream computes; see `enqueue`."""
        assert isinstance(stream, NativeStream), "streams of a device are its own"
        input_memories = _placed(sized, inputs)
        if input_memories is None:
            return None
        call = self._enqueued(stream, sized, control)
        return self._placed_by(call, sized, input_memories, stream, is_awaited=False)

    def _placed_by(
        self,
        call: NativeCall,
        sized: CallSignature,
        input_memories: Sequence[DeviceMemory],
        stream: NativeStream | None,
        *,
        is_awaited: bool,
    ) -> list[DeviceTensor]:
        """The outputs in new memory, which is freed where this raises: not before the stream is done with it."""
        output_memories: list[DeviceMemory] = []
        try:
            for nbytes in sized.request.output_sizes:
                output_memories.append(DeviceMemory(self._functions, self._device, nbytes))
            call.place(input_memories, output_memories)
            self._compute(call)
            if is_awaited and stream is not None:
                stream.synchronize()
            return _tensors(sized, output_memories)
        except BaseException:
            wait_out(stream)
            for memory in output_memories:
                memory.free()
            raise

    def close(self) -> None:
        self._functions.plain("destroy_execution", self._handle)

    def _enqueued(self, stream: NativeStream, sized: CallSignature, control: Control) -> NativeCall:
        """The request of work of a caller's stream; the last one where it fits."""
        last, call = self._calls.get(stream.handle, (None, None))
        if call is None or last is not sized or control is not UNLIMITED:
            call = NativeCall(sized.request, stream.handle, control, sized.told)
            self._calls[stream.handle] = sized if control is UNLIMITED else None, call
        return call

    def _compute(self, call: NativeCall) -> None:
        self._functions.call("compute", self._handle, call.request, failure=ExecutionError, misuse=ExecutionError)


class _SizedExecution(Execution):
    """An execution for many sizes, at some; it belongs to that one."""

    def __init__(self, whole: NativeExecution, sized: CallSignature) -> None:
        self._whole, self._sized = whole, sized

    def compute(self, inputs: Sequence[Array]) -> Sequence[Array]:
        return self._whole.computed(self._sized, inputs)

    def compute_within(self, inputs: Sequence[Array], control: Control) -> Sequence[Array]:
        return self._whole.computed(self._sized, inputs, control)

    def compute_on_device(
        self, inputs: Sequence[DeviceTensor], control: Control = UNLIMITED
    ) -> Sequence[DeviceTensor] | None:
        return self._whole.computed_on_device(self._sized, inputs, control)

    def enqueue(
        self, inputs: Sequence[DeviceTensor], stream: Stream, control: Control = UNLIMITED
    ) -> Sequence[DeviceTensor] | None:
        return self._whole.enqueued(self._sized, inputs, stream, control)


def _seated(seat: ExecutionSlot, sized: CallSignature, control: Control) -> NativeCall:
    """The request of who has a seat: that of all executions at these sizes."""
    stream = None if seat.stream is None else seat.stream.handle
    if control is not UNLIMITED:
        return NativeCall(sized.request, stream, control, sized.told)
    call = sized.calls.get(seat)
    if call is None:
        call = sized.calls[seat] = NativeCall(sized.request, stream, control, sized.told)
    return call


def _placed(sized: CallSignature, inputs: Sequence[DeviceTensor]) -> list[DeviceMemory] | None:
    """Where inputs lie; None where the driver cannot compute in its memory."""
    memories = [tensor.memory for tensor in inputs if isinstance(tensor.memory, DeviceMemory)]
    return memories if len(memories) == len(inputs) and sized.request.may_lie_on_device else None


def _tensors(sized: CallSignature, memories: Sequence[DeviceMemory]) -> list[DeviceTensor]:
    rooms = zip(memories, sized.request.rooms, strict=True)
    return [DeviceTensor(memory, dtype, tuple(map(int, dimensions))) for memory, (dimensions, dtype) in rooms]


class NativeProgram(Program):
    """Keeps what the driver may read as long as the program lives: the model with its constants, serialized bytes."""

    def __init__(
        self,
        functions: Functions,
        device: int,
        handle: int,
        sized: CallSignature,
        holder: Holder,
        seats: ObjectPool[ExecutionSlot],
        by_run: RunSignature | None = None,
    ) -> None:
        self._functions, self._device, self._handle = functions, device, handle
        self._sized, self._held, self._by_run, self._seats = sized, holder, by_run, seats
        self._lock = new_lock()

    def create_execution(self) -> NativeExecution:
        with self._lock:
            handle = self._functions.create_handle("create_execution", self._handle, failure=ExecutionError)
        around = self._sized, self._held, self._by_run, self._seats
        return NativeExecution(self._functions, self._device, handle, *around)

    def bound(self, request: int) -> int | None:
        """The handle of a new program made of this one, for the NNAdapterCompileRequest at an address; None if none.

        Raises:
            CompilationError: the driver failed.
            DriverError: it gave this program itself.
        """
        with self._lock:
            handle = self._functions.create_handle_or_none(
                "clone_with_constants", self._handle, request, failure=CompilationError, misuse=CompilationError
            )
        if handle == self._handle:
            raise DriverError(
                f"{self._functions.driver}: clone_with_constants gave the program that it was given, expected a new "
                "one; report it to the vendor"
            )
        return handle

    @property
    def memory_bytes(self) -> int:
        is_reported = "program_memory" in self._functions
        return int(self._functions.plain("program_memory", self._handle)) if is_reported else 0

    def serialize(self) -> bytes | None:
        if "serialize" not in self._functions or self._by_run is not None:
            return None
        parts: list[bytes] = []

        def write(_: int | None, data: int | None, nbytes: int) -> int:
            parts.append(ctypes.string_at(data, nbytes) if data and nbytes else b"")
            return 0

        callback = SIGNATURES["write"](write)
        writer = make("Writer", write=ctypes.cast(callback, ctypes.c_void_p).value)
        self._functions.call("serialize", self._handle, ctypes.addressof(writer))
        return seal(self._functions.driver, self._sized.border, parts)

    def close(self) -> None:
        self._functions.plain("destroy_program", self._handle)
