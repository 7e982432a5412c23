"""Programs and executions of a driver in C."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from functools import partial

from nnadapter.drivers.control import UNLIMITED, Control
from nnadapter.drivers.interface import DeviceTensor, Execution, Program
from nnadapter.drivers.native.calls import NativeCall
from nnadapter.drivers.native.functions import Functions
from nnadapter.drivers.native.memory import DeviceMemory
from nnadapter.drivers.native.packing import PACKED
from nnadapter.drivers.native.serialized import Border, seal
from nnadapter.drivers.native.streams import Stream
from nnadapter.drivers.native.structures import SIGNATURES, Holder, make
from nnadapter.errors import CompilationError, DriverError, ExecutionError
from nnadapter.ir.operand import Array
from nnadapter.process.lending import Lending


class NativeExecution(Execution):
    """Computes straight from the caller's arrays into new ones, by a stream where the driver has streams."""

    def __init__(self, functions: Functions, device: int, handle: int, border: Border, held: Holder) -> None:
        self._functions, self._device, self._handle, self._border = functions, device, handle, border
        self._held = held  # the driver reads from it, even where nobody has the program any more
        self._calls = Lending(partial(self._new_call, UNLIMITED))

    def compute(self, inputs: Sequence[Array]) -> Sequence[Array]:
        """See `Execution.compute`."""
        user = object()
        try:
            call, stream = self._calls.take(user)
            call.take(inputs)
            self._run(call, stream)
            return call.results()
        finally:
            self._calls.users.pop(user, None)

    def compute_within(self, inputs: Sequence[Array], control: Control) -> Sequence[Array]:
        """As `compute`, with a deadline and somebody who may cancel.

        Raises:
            CancelledError: the driver was told that nobody wants the result, and stopped.
            ExecutionError: the deadline passed, or the computation failed.
        """
        call, stream = self._new_call(control)
        try:
            call.take(inputs)
            self._run(call, stream)
            return call.results()
        finally:
            if stream is not None:
                stream.close()

    def compute_on_device(
        self, inputs: Sequence[DeviceTensor], control: Control = UNLIMITED
    ) -> Sequence[DeviceTensor] | None:
        """See `Execution.compute_on_device`: not for tensors without bytes, nor those that share bytes there alone."""
        given = [each.memory for each in inputs if isinstance(each.memory, DeviceMemory)]
        every = (*self._border.inputs, *self._border.outputs)
        if len(given) < len(inputs) or any(type_.dtype in PACKED or not type_.size for type_ in every):
            return None
        made: list[DeviceMemory] = []
        user = object()
        try:
            for type_ in self._border.outputs:
                made.append(DeviceMemory(self._functions, self._device, type_.nbytes))
            call, stream = self._calls.take(user) if control is UNLIMITED else self._new_call(control)
            call.place(given, made)
            try:
                self._run(call, stream)
            finally:
                if stream is not None and control is not UNLIMITED:
                    stream.close()
        except BaseException:
            for memory in made:
                memory.free()
            raise
        finally:
            self._calls.users.pop(user, None)
        return [
            DeviceTensor(memory, type_.dtype.array_type, tuple(map(int, type_.dimensions)))
            for memory, type_ in zip(made, self._border.outputs, strict=True)
        ]

    def close(self) -> None:
        """See `Execution.close`."""
        for _, stream in self._calls.clear():
            if stream is not None:
                stream.close()
        self._functions.plain("destroy_execution", self._handle)

    def _new_call(self, control: Control) -> tuple[NativeCall, Stream | None]:
        stream = Stream(self._functions, self._device) if "create_stream" in self._functions else None
        return NativeCall(*self._border, None if stream is None else stream.handle, control), stream

    def _run(self, call: NativeCall, stream: Stream | None) -> None:
        self._functions.call("compute", self._handle, call.request, failure=ExecutionError, misuse=ExecutionError)
        if stream is not None:
            stream.synchronize()


class NativeProgram(Program):
    """Keeps what the driver may read as long as the program lives: the model with its constants, serialized bytes."""

    def __init__(self, functions: Functions, device: int, handle: int, border: Border, held: Holder) -> None:
        self._functions, self._device, self._handle = functions, device, handle
        self._border, self._held = border, held
        self._lock = threading.Lock()

    def create_execution(self) -> NativeExecution:
        """See `Program.create_execution`."""
        with self._lock:
            handle = self._functions.made("create_execution", self._handle, failure=ExecutionError)
        return NativeExecution(self._functions, self._device, handle, self._border, self._held)

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
        if "serialize" not in self._functions:
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
