"""Programs and executions of a driver in C."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from nnadapter.drivers.control import UNLIMITED, Control
from nnadapter.drivers.interface import DeviceTensor, Execution, Program
from nnadapter.drivers.native.calls import NativeCall, Seat, Sized
from nnadapter.drivers.native.functions import Functions
from nnadapter.drivers.native.memory import DeviceMemory
from nnadapter.drivers.native.packing import PACKED
from nnadapter.drivers.native.serialized import Border, seal
from nnadapter.drivers.native.sizes import NumberedSizes
from nnadapter.drivers.native.streams import NativeStream
from nnadapter.drivers.native.structures import SIGNATURES, Holder, make
from nnadapter.drivers.streams import Stream
from nnadapter.errors import FAILURES, CompilationError, DriverError, ExecutionError
from nnadapter.ir.operand import Array
from nnadapter.process.lending import Lending


class NativeExecution(Execution):
    """Computes straight from the caller's arrays into new ones, by a stream where the driver has streams.

    Args:
        functions: of the driver.
        device: handle.
        handle: of the execution.
        border: what goes in and comes out; traced where the model leaves sizes open.
        held: what the driver reads from, even where nobody has the program any more.
        sizes: those that the model leaves open; None where it leaves none open.
        seats: of the context, which its executions share: a stream may be a thread.
    """

    def __init__(
        self,
        functions: Functions,
        device: int,
        handle: int,
        border: Border,
        held: Holder,
        sizes: NumberedSizes | None,
        seats: Lending[Seat],
    ) -> None:
        self._functions, self._device, self._handle = functions, device, handle
        self._held, self._sizes = held, sizes
        self._fixed = Sized(border, None)
        self._seats = seats
        self._calls: dict[int | None, tuple[Sized, NativeCall]] = {}
        """The last request on each stream."""
        self._last: tuple[Sequence[int], _SizedExecution | None] = (), None
        self._ahead: NativeCall | None = None
        """The request that was enqueued last, which the driver reads until its work is done."""

    def compute(self, inputs: Sequence[Array]) -> Sequence[Array]:
        """See `Execution.compute`."""
        return self.computed(self._fixed, inputs)

    def compute_within(self, inputs: Sequence[Array], control: Control) -> Sequence[Array]:
        """As `compute`, with a deadline and somebody who may cancel.

        Raises:
            CancelledError: the driver was told that nobody wants the result, and stopped.
            ExecutionError: the deadline passed, or the computation failed.
        """
        return self.computed(self._fixed, inputs, control)

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

    def at(self, sizes: Sequence[Any]) -> Execution:
        """See `Execution.at`."""
        if self._sizes is None:
            return super().at(sizes)
        numbers = self._sizes.of(sizes)
        last, execution = self._last
        if execution is None or last != numbers:
            border = Border(*(tuple(type_.at(sizes) for type_ in types) for types in self._fixed.border))
            execution = _SizedExecution(self, Sized(border, self._sizes.told(numbers)))
            self._last = numbers, execution
        return execution

    def computed(self, sized: Sized, inputs: Sequence[Array], control: Control = UNLIMITED) -> Sequence[Array]:
        """What a run computes; see `compute_within`."""
        user = object()
        try:
            seat = self._seats.take(user)
            call = self._call(seat.stream_handle, sized, control)
            call.take(inputs)
            self._run(call, seat)
            return call.results()
        finally:
            self._seats.users.pop(user, None)

    def computed_on_device(
        self, sized: Sized, inputs: Sequence[DeviceTensor], control: Control
    ) -> Sequence[DeviceTensor] | None:
        """What a run computes in memory of the device; see `compute_on_device`."""
        given = _placed(sized, inputs)
        if given is None:
            return None
        user = object()
        try:
            with self._room(sized) as made:
                seat = self._seats.take(user)
                call = self._call(seat.stream_handle, sized, control)
                call.place(given, made)
                self._run(call, seat)
        finally:
            self._seats.users.pop(user, None)
        return _tensors(sized, made)

    def enqueued(
        self, sized: Sized, inputs: Sequence[DeviceTensor], stream: Stream, control: Control
    ) -> Sequence[DeviceTensor] | None:
        """What work of a stream computes; see `enqueue`."""
        assert isinstance(stream, NativeStream), "streams of a device are its own"
        given = _placed(sized, inputs)
        if given is None:
            return None
        call = self._ahead = self._call(stream.handle, sized, control)
        with self._room(sized) as made:
            call.place(given, made)
            try:
                self._compute(call)
            except BaseException:
                with suppress(*FAILURES):  # the driver may be at work on what is about to be freed
                    stream.synchronize()
                raise
        return _tensors(sized, made)

    @contextmanager
    def _room(self, sized: Sized) -> Iterator[list[DeviceMemory]]:
        """Memory for the outputs, freed where the block raises."""
        made: list[DeviceMemory] = []
        try:
            for type_ in sized.border.outputs:
                made.append(DeviceMemory(self._functions, self._device, type_.nbytes))
            yield made
        except BaseException:
            for memory in made:
                memory.free()
            raise

    def close(self) -> None:
        """See `Execution.close`."""
        self._functions.plain("destroy_execution", self._handle)

    def _call(self, stream: int | None, sized: Sized, control: Control) -> NativeCall:
        """The request on a stream, the last one where it fits."""
        last, call = self._calls.get(stream, (None, None))
        if call is None or last is not sized or control is not UNLIMITED:
            call = NativeCall(*sized.border, stream, control, sized.told)
            if control is UNLIMITED:
                self._calls[stream] = sized, call
        return call

    def _compute(self, call: NativeCall) -> None:
        self._functions.call("compute", self._handle, call.request, failure=ExecutionError, misuse=ExecutionError)

    def _run(self, call: NativeCall, seat: Seat) -> None:
        self._compute(call)
        if seat.stream is not None:
            seat.stream.synchronize()


class _SizedExecution(Execution):
    """An execution for many sizes, at some; it belongs to that one."""

    def __init__(self, whole: NativeExecution, sized: Sized) -> None:
        self._whole, self._sized = whole, sized

    def compute(self, inputs: Sequence[Array]) -> Sequence[Array]:
        """See `Execution.compute`."""
        return self._whole.computed(self._sized, inputs)

    def compute_within(self, inputs: Sequence[Array], control: Control) -> Sequence[Array]:
        """See `Execution.compute_within`."""
        return self._whole.computed(self._sized, inputs, control)

    def compute_on_device(
        self, inputs: Sequence[DeviceTensor], control: Control = UNLIMITED
    ) -> Sequence[DeviceTensor] | None:
        """See `Execution.compute_on_device`."""
        return self._whole.computed_on_device(self._sized, inputs, control)

    def enqueue(
        self, inputs: Sequence[DeviceTensor], stream: Stream, control: Control = UNLIMITED
    ) -> Sequence[DeviceTensor] | None:
        """See `Execution.enqueue`."""
        return self._whole.enqueued(self._sized, inputs, stream, control)


def _placed(sized: Sized, inputs: Sequence[DeviceTensor]) -> list[DeviceMemory] | None:
    """Where inputs lie; None where the driver cannot compute in its memory."""
    given = [each.memory for each in inputs if isinstance(each.memory, DeviceMemory)]
    every = (*sized.border.inputs, *sized.border.outputs)
    able = len(given) == len(inputs) and all(type_.dtype not in PACKED and type_.size for type_ in every)
    return given if able else None


def _tensors(sized: Sized, made: Sequence[DeviceMemory]) -> list[DeviceTensor]:
    return [
        DeviceTensor(memory, type_.dtype.array_type, tuple(map(int, type_.dimensions)))
        for memory, type_ in zip(made, sized.border.outputs, strict=True)
    ]


class NativeProgram(Program):
    """Keeps what the driver may read as long as the program lives: the model with its constants, serialized bytes."""

    def __init__(
        self,
        functions: Functions,
        device: int,
        handle: int,
        border: Border,
        held: Holder,
        seats: Lending[Seat],
        sizes: NumberedSizes | None = None,
    ) -> None:
        self._functions, self._device, self._handle = functions, device, handle
        self._border, self._held, self._sizes, self._seats = border, held, sizes, seats
        self._lock = threading.Lock()

    def create_execution(self) -> NativeExecution:
        """See `Program.create_execution`."""
        with self._lock:
            handle = self._functions.made("create_execution", self._handle, failure=ExecutionError)
        around = self._border, self._held, self._sizes, self._seats
        return NativeExecution(self._functions, self._device, handle, *around)

    def bound(self, request: int) -> int | None:
        """The handle of a new program made of this one, for the NNAdapterCompileRequest at an address; None if none.

        Raises:
            CompilationError: the driver failed.
            DriverError: it gave this program itself.
        """
        with self._lock:
            handle = self._functions.made_or_none(
                "bind", self._handle, request, failure=CompilationError, misuse=CompilationError
            )
        if handle == self._handle:
            raise DriverError(
                f"{self._functions.driver}: bind gave the program that it was given, expected a new one; "
                "report it to the vendor"
            )
        return handle

    @property
    def memory_bytes(self) -> int:
        """See `Program.memory_bytes`."""
        known = "program_memory" in self._functions
        return int(self._functions.plain("program_memory", self._handle)) if known else 0

    def serialize(self) -> bytes | None:
        """See `Program.serialize`."""
        if "serialize" not in self._functions or self._sizes is not None:
            return None
        parts: list[bytes] = []

        def write(_: int | None, data: int | None, nbytes: int) -> int:
            parts.append(ctypes.string_at(data, nbytes) if data and nbytes else b"")
            return 0

        callback = SIGNATURES["write"](write)
        writer = make("Writer", write=ctypes.cast(callback, ctypes.c_void_p).value)
        self._functions.call("serialize", self._handle, ctypes.addressof(writer))
        return seal(self._functions.driver, self._border, parts)

    def close(self) -> None:
        """See `Program.close`."""
        self._functions.plain("destroy_program", self._handle)
