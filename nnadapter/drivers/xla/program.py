"""Compiled segments of XLA: device memory, streams, executions and the serialized form.

JAX is asynchronous. A computation waits for the results that it reads, so work is ordered across streams.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from nnadapter import errors
from nnadapter.drivers import Compatibility, Control, DeviceTensor, Event, Execution, Memory, Program, Stream
from nnadapter.drivers.envelope import ADVICE, PREFIX_BYTES, Envelope
from nnadapter.drivers.interface import UNLIMITED
from nnadapter.drivers.xla.compilation import Compiled, Donating, carried, carrier, compiled_again
from nnadapter.drivers.xla.engine import module, own_settings, run_translated, translated
from nnadapter.ir.operand import Array, array_type_of


class XlaEvent(Event):
    """Event that is done when the results that were pending at `record` are ready."""

    def __init__(self) -> None:
        self.results: Sequence[Any] = ()

    @property
    def is_done(self) -> bool:
        return all(result.is_ready() for result in self.results)

    def synchronize(self) -> None:
        wait_for(self.results)

    def close(self) -> None:
        self.results = ()


class XlaStream(Stream):
    """Stream that records the pending results of its work."""

    def __init__(self) -> None:
        self._results: list[Any] | None = []

    def add(self, results: Sequence[Any]) -> None:
        open_results = self._open()
        open_results[:] = [result for result in open_results if not result.is_ready()]
        open_results.extend(results)

    def record(self, event: Event) -> None:
        assert isinstance(event, XlaEvent), "events of a device are its own"
        event.results = tuple(self._open())

    def wait(self, event: Event) -> None:
        """Do nothing: computations wait for the results that they read."""

    def synchronize(self) -> None:
        results, self._results = self._open(), []
        wait_for(results)

    def close(self) -> None:
        results, self._results = self._results or (), None
        for result in results:
            wait_ignoring_failure(result)

    def _open(self) -> list[Any]:
        if self._results is None:
            raise errors.DriverError("the stream of xla is closed; create another one")
        return self._results


def wait_for(results: Sequence[Any]) -> None:
    """Wait for results; raise ExecutionError if one failed."""
    with run_translated():
        for result in results:
            result.block_until_ready()


def wait_ignoring_failure(result: Any) -> None:
    """Wait for an unused result, ignoring failures."""
    try:
        wait_for((result,))
    except errors.ExecutionError:
        return


_REMEDY = "create a new tensor from its data"


class XlaMemory(Memory):
    """Device memory: a JAX array, which may be donated, or nothing before the first copy."""

    def __init__(self, device: Any, nbytes: int, value: Any = None) -> None:
        self._device, self._value, self._is_free = device, value, False
        self.nbytes = nbytes

    def copy_in(self, array: Array) -> None:
        self._check()
        value = carried(array)
        # JAX could alias `array`
        copied = value.copy() if value is array and self._device.platform == "cpu" else value
        with translated("XLA is out of memory", "free some", errors.OutOfMemoryError), own_settings():
            self._value = module().device_put(copied, self._device).block_until_ready()

    def copy_out(self, array: Array) -> None:
        # may be donated meanwhile
        with translated("XLA cannot read the tensor", _REMEDY, errors.DonatedValueError), own_settings():
            array[...] = np.asarray(self.value(array.dtype, array.shape)).astype(array.dtype, copy=False)

    def value(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
        array, dtype = self._array(), carrier(dtype)
        if array is not None and array.dtype == dtype and array.shape == shape:
            return array
        count = int(np.prod(shape)) * dtype.itemsize
        buffer = np.zeros(self.nbytes, np.uint8)
        with own_settings():
            if array is not None:
                buffer[: array.nbytes] = np.asarray(array).reshape(-1).view(np.uint8)
            return module().device_put(buffer[:count].view(dtype).reshape(shape), self._device)

    def free(self) -> None:
        self._value, self._is_free = None, True

    def dlpack_device(self) -> tuple[int, int] | None:
        array = self._array()
        return None if array is None else tuple(map(int, array.__dlpack_device__()))  # type: ignore[return-value]

    def dlpack(self, dtype: np.dtype[Any], shape: tuple[int, ...], **options: Any) -> Any:
        """Export a copy, because JAX cannot export read-only arrays."""
        with translated("XLA is out of memory", "free some", errors.OutOfMemoryError), own_settings():
            return self.value(dtype, shape).__dlpack__(copy=True, **options)

    def _array(self) -> Any:
        self._check()
        value = self._value
        if value is not None and value.is_deleted():
            raise errors.DonatedValueError(f"the tensor was donated to a run, which reused its memory; {_REMEDY}")
        return value

    def _check(self) -> None:
        if self._is_free:
            raise errors.DriverError("the device memory was freed; allocate it again")


def copied_from_dlpack(tensor: Any, device: Any) -> DeviceTensor | None:
    """Copy another library's tensor by DLPack; return None if JAX refuses it."""
    if not hasattr(tensor, "__dlpack__"):
        return None
    try:
        with translated("JAX cannot import it", "copy it to the host", errors.DriverError), own_settings():
            # JAX 0.10 may alias despite copying; a donated alias would be overwritten
            value = module().numpy.from_dlpack(tensor, device=device).copy().block_until_ready()
    except errors.DriverError:
        return None
    if not value.size or carrier(value.dtype) != value.dtype:
        return None
    return DeviceTensor(XlaMemory(device, value.nbytes, value), value.dtype, value.shape)


def tensor_of(value: Any, name: str, device: Any) -> DeviceTensor:
    """Return a result as a device tensor of the data type `name`."""
    dtype = array_type_of(name)
    return DeviceTensor(XlaMemory(device, value.size * dtype.itemsize, value), dtype, value.shape)


def value_of(tensor: DeviceTensor) -> Any:
    """Return a device tensor as a JAX array."""
    assert isinstance(tensor.memory, XlaMemory), "memory of a device is its own"
    return tensor.memory.value(tensor.dtype, tensor.shape)


class XlaExecution(Execution):
    """Execution that threads can share."""

    def __init__(self, compiled: Compiled, donating: Donating) -> None:
        self._compiled, self._donating = compiled, donating

    def compute(self, inputs: Sequence[Array]) -> Sequence[Array]:
        results = self._start(list(map(carried, inputs)))
        to_array = array_over if self._compiled.device.platform == "cpu" else np.array
        with run_translated(), own_settings():
            arrays = zip(self._compiled.results, map(to_array, results), strict=True)
            return [array.astype(array_type_of(name), copy=False) for name, array in arrays]

    def compute_on_device(
        self, inputs: Sequence[DeviceTensor], control: Control = UNLIMITED
    ) -> Sequence[DeviceTensor] | None:
        results = self._start_on_device(inputs)
        wait_for(results)
        return self._tensors(results)

    def enqueue(
        self, inputs: Sequence[DeviceTensor], stream: Stream, control: Control = UNLIMITED
    ) -> Sequence[DeviceTensor] | None:
        assert isinstance(stream, XlaStream), "streams of a device are its own"
        results = self._start_on_device(inputs)
        stream.add(results)
        return self._tensors(results)

    def _tensors(self, results: Sequence[Any]) -> list[DeviceTensor]:
        compiled = self._compiled
        return [
            tensor_of(result, name, compiled.device) for result, name in zip(results, compiled.results, strict=True)
        ]

    def _start_on_device(self, inputs: Sequence[DeviceTensor]) -> Sequence[Any]:
        values = list(map(value_of, inputs))
        donations = [position for position, device_tensor in enumerate(inputs) if device_tensor.is_donated]
        try:
            results = self._donating.start(values, donations) if donations else None
            return self._start(values) if results is None else results
        except errors.ExecutionError:
            for tensor in inputs:
                if not tensor.is_donated:
                    value_of(tensor)  # raises for an input that another run took
            raise

    def _start(self, inputs: Sequence[Any]) -> Sequence[Any]:
        compiled = self._compiled
        with run_translated(), own_settings():
            results: Sequence[Any] = compiled.executable(list(inputs), compiled.constants)
            return results


class _CpuBuffer:
    def __init__(self, result: Any) -> None:
        self._result = result.block_until_ready()
        self.__array_interface__ = {
            "data": (result.unsafe_buffer_pointer(), False),
            "shape": (result.nbytes,),
            "typestr": "|u1",
            "version": 3,
        }


def array_over(result: Any) -> Array:
    """Return a writable array that shares the memory of a CPU result, which must have no other readers."""
    if not result.nbytes:
        return np.array(result)
    array: Array = np.asarray(_CpuBuffer(result)).view(result.dtype).reshape(result.shape)
    return array


Seal = Mapping[str, str]
"""JAX version, platform and precision of a compilation."""

_ENVELOPE = Envelope(magic=b"nna-xla\n", version=1)
_ALIGNMENT = 64


class XlaProgram(Program):
    """Segment compiled by XLA."""

    def __init__(self, compiled: Compiled, seal: Seal) -> None:
        self._compiled, self._seal = compiled, seal
        self._donating = Donating(compiled)

    def create_execution(self) -> Execution:
        return XlaExecution(self._compiled, self._donating)

    @property
    def memory_bytes(self) -> int:
        analysis = self._compiled.executable.memory_analysis()
        constant_bytes = sum(array.nbytes for array in self._compiled.constants)
        return int(constant_bytes + analysis.temp_size_in_bytes + analysis.generated_code_size_in_bytes)

    @property
    def execution_bytes(self) -> int:
        return 0

    def serialize(self) -> bytes:
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
    """Return the compatibility of a serialized program with a context that has this seal."""
    header = _ENVELOPE.header_of(blob)
    try:
        recorded = None if header is None else dict(json.loads(header)["seal"])
    except (ValueError, KeyError, TypeError):
        return Compatibility.RECOMPILE
    if recorded is None or recorded.get("platform") != seal["platform"]:
        return Compatibility.INCOMPATIBLE
    return Compatibility.IDENTICAL if recorded == seal else Compatibility.RECOMPILE


def deserialized(blob: bytes | memoryview, seal: Seal, device: Any, *, is_checked: bool = False) -> XlaProgram:
    """Load a serialized program, which XLA compiles again; `is_checked` as in `Envelope.open`.

    Raises:
        IncompatibleProgramError: the bytes are damaged, or the program was compiled with another seal.
    """
    header, contents = _ENVELOPE.open(blob, is_checked=is_checked)
    try:
        fields = json.loads(header)
        recorded, results, exported_bytes = dict(fields["seal"]), fields["results"], int(fields["exported"])
        arrays = list(_constants(fields["constants"], contents[: len(contents) - exported_bytes]))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise errors.IncompatibleProgramError(f"the program's header is damaged; {ADVICE}") from error
    for name, value in seal.items():
        if recorded.get(name) != value:
            raise errors.IncompatibleProgramError(
                f"the program was compiled with {name} {recorded.get(name)!r}, the context has {value!r}; {ADVICE}"
            )
    try:
        exported = bytes(contents[len(contents) - exported_bytes :])
        return XlaProgram(compiled_again(exported, arrays, results, device), seal)
    except errors.CompilationError as error:
        raise errors.IncompatibleProgramError(f"JAX cannot import the program ({error}); {ADVICE}") from error


def _constants(rows: Sequence[Mapping[str, Any]], contents: memoryview) -> Iterator[Array]:
    begin = 0
    for row in rows:
        dtype, shape = array_type_of(row["dtype"]), tuple(map(int, row["shape"]))
        count = int(np.prod(shape, dtype=np.int64))
        yield np.frombuffer(contents, dtype, count, begin).reshape(shape) if count else np.zeros(shape, dtype)
        begin += -(-count * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
