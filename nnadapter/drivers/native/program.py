"""Programs and executions of a driver in C."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from nnadapter.drivers.interface import UNLIMITED, Control, DeviceTensor, Execution, Program, Stream
from nnadapter.drivers.native.c_interface import SIGNATURES, Functions, Holder, make
from nnadapter.drivers.native.requests import (
    CallSignature,
    DeviceMemory,
    ExecutionSlot,
    NativeCall,
    NativeStream,
    RunSignature,
    seal,
    wait_out,
)
from nnadapter.errors import CompilationError, DriverError, ExecutionError
from nnadapter.ir.operand import Array
from nnadapter.process.resources import ObjectPool, new_lock


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
