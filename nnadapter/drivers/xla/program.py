"""Compiled segments of XLA: device memory, streams, executions and the serialized form.

JAX starts work and goes on: a stream is what was started, an event the results that it had by then.

What reads an array waits on the device until it is there, so that work is in order whichever stream it is of.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from nnadapter.drivers import Compatibility, Control, DeviceTensor, Event, Execution, Memory, Program, Stream
from nnadapter.drivers.envelope import ADVICE, PREFIX_BYTES, Envelope
from nnadapter.drivers.interface import UNLIMITED
from nnadapter.drivers.xla.compilation import Compiled, Donating, carried, carrier, compiled_again
from nnadapter.drivers.xla.engine import module, own_settings, translated
from nnadapter.errors import (
    CompilationError,
    DonatedValueError,
    DriverError,
    ExecutionError,
    IncompatibleProgramError,
    OutOfMemoryError,
)
from nnadapter.ir.operand import Array, array_type_of


class XlaEvent(Event):
    """See `Event`."""

    def __init__(self) -> None:
        self.results: Sequence[Any] = ()
        """What was under way at the last record."""

    @property
    def is_done(self) -> bool:
        return all(result.is_ready() for result in self.results)

    def synchronize(self) -> None:
        wait_for(self.results)

    def close(self) -> None:
        self.results = ()


class XlaStream(Stream):
    """See `Stream`."""

    def __init__(self) -> None:
        self._results: list[Any] | None = []
        """Of work that nobody has waited for yet."""

    def add(self, results: Sequence[Any]) -> None:
        """Add work that is under way."""
        open_results = self._open()
        open_results[:] = [result for result in open_results if not result.is_ready()]
        open_results.extend(results)

    def record(self, event: Event) -> None:
        assert isinstance(event, XlaEvent), "events of a device are its own"
        event.results = tuple(self._open())

    def wait(self, event: Event) -> None:
        """See `Stream.wait`: whatever reads the results of the other stream waits for them."""

    def synchronize(self) -> None:
        results, self._results = self._open(), []
        wait_for(results)

    def close(self) -> None:
        results, self._results = self._results or (), None
        for result in results:
            with_no_word(result)

    def _open(self) -> list[Any]:
        if self._results is None:
            raise DriverError("the stream of xla is closed; create another one")
        return self._results


def wait_for(results: Sequence[Any]) -> None:
    """Wait until all of them are there.

    Raises:
        ExecutionError: what makes one failed.
    """
    with translated("XLA failed", "see its message", ExecutionError):
        for result in results:
            result.block_until_ready()


def with_no_word(result: Any) -> None:
    """Wait for a result that nobody looks at, whatever becomes of it."""
    try:
        wait_for((result,))
    except ExecutionError:
        return


class XlaMemory(Memory):
    """Room for bytes, which holds an array of JAX's or nothing yet, or nothing any more: XLA took it for a result.

    Args:
        device: JAX's.
        nbytes: how much may be copied in.
        value: what lies there.
    """

    def __init__(self, device: Any, nbytes: int, value: Any = None) -> None:
        self._device, self._value, self._is_free = device, value, False
        self.nbytes = nbytes

    def copy_in(self, array: Array) -> None:
        self._check()
        held = carried(array)
        copied = held.copy() if held is array and self._device.platform == "cpu" else held  # it would look at `array`
        with translated("XLA has no room", "free some", OutOfMemoryError), own_settings():
            self._value = module().device_put(copied, self._device).block_until_ready()

    def copy_out(self, array: Array) -> None:
        with translated("the tensor is gone", "feed it anew", DonatedValueError), own_settings():  # donated meanwhile
            array[...] = np.asarray(self.value(array.dtype, array.shape)).astype(array.dtype, copy=False)

    def value(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
        """Return the contents as JAX's array, seen as a tensor of this type."""
        held, dtype = self._held(), carrier(dtype)
        if held is not None and held.dtype == dtype and held.shape == shape:
            return held
        count = int(np.prod(shape)) * dtype.itemsize
        seen = np.zeros(self.nbytes, np.uint8)
        with own_settings():
            if held is not None:
                seen[: held.nbytes] = np.asarray(held).reshape(-1).view(np.uint8)
            return module().device_put(seen[:count].view(dtype).reshape(shape), self._device)

    def free(self) -> None:
        """See `Memory.free`: XLA frees the array when nothing that is under way needs it."""
        self._value, self._is_free = None, True

    def dlpack_device(self) -> tuple[int, int] | None:
        held = self._held()
        return None if held is None else tuple(map(int, held.__dlpack_device__()))  # type: ignore[return-value]

    def dlpack(self, dtype: np.dtype[Any], shape: tuple[int, ...], **asked: Any) -> Any:
        """See `Memory.dlpack`: a copy, since JAX cannot say that what it gives is not to be written to."""
        with translated("XLA has no room", "free some", OutOfMemoryError), own_settings():
            return self.value(dtype, shape).__dlpack__(copy=True, **asked)

    def _held(self) -> Any:
        self._check()
        held = self._value
        if held is not None and held.is_deleted():
            raise DonatedValueError("the tensor was donated to a run, which made a result in its memory; feed it anew")
        return held

    def _check(self) -> None:
        if self._is_free:
            raise DriverError("the device memory was freed; allocate it again")


def taken_over(tensor: Any, device: Any) -> DeviceTensor | None:
    """Return a copy of another library's tensor by DLPack; None if JAX does not take it."""
    if not hasattr(tensor, "__dlpack__"):
        return None
    try:
        with translated("JAX does not take it", "copy it to the host", DriverError), own_settings():
            # JAX 0.10 makes no copy of aligned memory, whatever it is asked; who is donated that would write into it.
            value = module().numpy.from_dlpack(tensor, device=device).copy().block_until_ready()
    except DriverError:
        return None
    if not value.size or carrier(value.dtype) != value.dtype:
        return None
    return DeviceTensor(XlaMemory(device, value.nbytes, value), value.dtype, value.shape)


def tensor_of(value: Any, name: str, device: Any) -> DeviceTensor:
    """Return a result of that data type as a tensor in memory of its own."""
    dtype = array_type_of(name)
    return DeviceTensor(XlaMemory(device, value.size * dtype.itemsize, value), dtype, value.shape)


def value_of(tensor: DeviceTensor) -> Any:
    """Return a tensor as JAX's array."""
    assert isinstance(tensor.memory, XlaMemory), "memory of a device is its own"
    return tensor.memory.value(tensor.dtype, tensor.shape)


class XlaExecution(Execution):
    """Holds nothing between runs, so many threads may share it."""

    def __init__(self, compiled: Compiled, donating: Donating) -> None:
        self._compiled, self._donating = compiled, donating

    def compute(self, inputs: Sequence[Array]) -> Sequence[Array]:
        """See `Execution.compute`.

        Raises:
            ExecutionError: XLA fails.
        """
        results = self._started(list(map(carried, inputs)))
        taken = array_over if self._compiled.device.platform == "cpu" else np.array
        with translated("XLA failed", "see its message", ExecutionError), own_settings():
            arrays = zip(self._compiled.results, map(taken, results), strict=True)
            return [array.astype(array_type_of(name), copy=False) for name, array in arrays]

    def compute_on_device(
        self, inputs: Sequence[DeviceTensor], control: Control = UNLIMITED
    ) -> Sequence[DeviceTensor] | None:
        results = self._made(inputs)
        wait_for(results)
        return self._tensors(results)

    def enqueue(
        self, inputs: Sequence[DeviceTensor], stream: Stream, control: Control = UNLIMITED
    ) -> Sequence[DeviceTensor] | None:
        assert isinstance(stream, XlaStream), "streams of a device are its own"
        results = self._made(inputs)
        stream.add(results)
        return self._tensors(results)

    def _tensors(self, results: Sequence[Any]) -> list[DeviceTensor]:
        compiled = self._compiled
        return [
            tensor_of(result, name, compiled.device) for result, name in zip(results, compiled.results, strict=True)
        ]

    def _made(self, inputs: Sequence[DeviceTensor]) -> Sequence[Any]:
        """Start a run as `_started`, in memory of donated inputs if XLA has a use for it."""
        values = list(map(value_of, inputs))
        given_up = [position for position, device_tensor in enumerate(inputs) if device_tensor.is_donated]
        try:
            results = self._donating.start(values, given_up) if given_up else None
            return self._started(values) if results is None else results
        except ExecutionError:
            for tensor in inputs:
                if not tensor.is_donated:
                    value_of(tensor)  # whoever fed one that another run took meanwhile is at fault, and is told so
            raise

    def _started(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """Return JAX's arrays of the results, which XLA may still be computing."""
        compiled = self._compiled
        with translated("XLA failed", "see its message", ExecutionError), own_settings():
            results: Sequence[Any] = compiled.executable(list(inputs), compiled.constants)
            return results


class _Held:
    """Memory of a result, as numpy asks for it; the result lives as long as somebody looks at it."""

    def __init__(self, result: Any) -> None:
        self._result = result.block_until_ready()
        self.__array_interface__ = {
            "data": (result.unsafe_buffer_pointer(), False),
            "shape": (result.nbytes,),
            "typestr": "|u1",
            "version": 3,
        }


def array_over(result: Any) -> Array:
    """Return a writable array over the memory of a result on a processor, which nothing else reads."""
    if not result.nbytes:
        return np.array(result)
    array: Array = np.asarray(_Held(result)).view(result.dtype).reshape(result.shape)
    return array


Seal = Mapping[str, str]
"""What a program must have been compiled with, by name."""

_ENVELOPE = Envelope(magic=b"nna-xla\n", version=1)
_ALIGNMENT = 64
"""Of constants, so that those of a file are used where they are."""


class XlaProgram(Program):
    """What XLA made of a segment, and its constants."""

    def __init__(self, compiled: Compiled, seal: Seal) -> None:
        self._compiled, self._seal = compiled, seal
        self._donating = Donating(compiled)

    def create_execution(self) -> Execution:
        """See `Program.create_execution`: XLA allocates as it runs, so that many threads may share one."""
        return XlaExecution(self._compiled, self._donating)

    @property
    def memory_bytes(self) -> int:
        """See `Program.memory_bytes`: constants, code, and what one run works in."""
        said = self._compiled.executable.memory_analysis()
        held = sum(array.nbytes for array in self._compiled.constants)
        return int(held + said.temp_size_in_bytes + said.generated_code_size_in_bytes)

    @property
    def execution_bytes(self) -> int:
        """See `Program.execution_bytes`: what a run works in is freed behind it."""
        return 0

    def serialize(self) -> bytes:
        """See `Program.serialize`: the function as XLA was given it, and not what it made of it."""
        with own_settings():
            arrays = [np.asarray(value) for value in self._compiled.constants]
        constants = [{"dtype": array.dtype.name, "shape": array.shape} for array in arrays]
        header = {
            "seal": dict(self._seal),
            "constants": constants,
            "results": self._compiled.results,
            "exported": len(self._compiled.exported),
        }
        written = json.dumps(header).encode()
        written += b" " * (-(PREFIX_BYTES + len(written)) % _ALIGNMENT)
        return _ENVELOPE.close(written, [*_padded(arrays), self._compiled.exported])

    def close(self) -> None:
        del self._compiled, self._donating


def _padded(arrays: Sequence[Array]) -> Iterator[bytes | memoryview]:
    for array in arrays:
        yield np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        yield bytes(-array.nbytes % _ALIGNMENT)


def compatibility(blob: memoryview, seal: Seal) -> Compatibility:
    """Return what a program is to a context of this seal, by its header."""
    header = _ENVELOPE.header_of(blob)
    try:
        recorded = None if header is None else dict(json.loads(header)["seal"])
    except (ValueError, KeyError, TypeError):
        return Compatibility.RECOMPILE
    if recorded is None or recorded.get("platform") != seal["platform"]:
        return Compatibility.INCOMPATIBLE
    return Compatibility.IDENTICAL if recorded == seal else Compatibility.RECOMPILE


def deserialized(blob: bytes | memoryview, seal: Seal, device: Any, *, is_checked: bool = False) -> XlaProgram:
    """Return the program that was written as `blob`; XLA compiles it again.

    Args:
        blob: the bytes.
        seal: what it must have been compiled with.
        device: JAX's, that it is to run on.
        is_checked: they are not damaged, see `Envelope.open`.

    Raises:
        IncompatibleProgramError: it is damaged, or was compiled by another JAX, for another platform or with other
            options than `seal` says.
    """
    header, contents = _ENVELOPE.open(blob, is_checked=is_checked)
    try:
        said = json.loads(header)
        recorded, results, exported_bytes = dict(said["seal"]), said["results"], int(said["exported"])
        arrays = list(_constants(said["constants"], contents[: len(contents) - exported_bytes]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise IncompatibleProgramError(f"the program's header is damaged; {ADVICE}") from error
    for name, value in seal.items():
        if recorded.get(name) != value:
            raise IncompatibleProgramError(
                f"the program was compiled with {name} {recorded.get(name)!r}, here is {value!r}; {ADVICE}"
            )
    try:
        exported = bytes(contents[len(contents) - exported_bytes :])
        return XlaProgram(compiled_again(exported, arrays, results, device), seal)
    except CompilationError as error:
        raise IncompatibleProgramError(f"JAX does not take the program back ({error}); {ADVICE}") from error


def _constants(rows: Sequence[Mapping[str, Any]], contents: memoryview) -> Iterator[Array]:
    """Return the constants, where they lie.

    Raises:
        ValueError: there are fewer bytes than they have.
    """
    begin = 0
    for row in rows:
        dtype, shape = array_type_of(row["dtype"]), tuple(map(int, row["shape"]))
        count = int(np.prod(shape, dtype=np.int64))
        yield np.frombuffer(contents, dtype, count, begin).reshape(shape) if count else np.zeros(shape, dtype)
        begin += -(-count * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
