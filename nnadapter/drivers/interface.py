"""Driver interface. Implement six methods and the property `Device.capability`; everything else has a default.

    1  Driver.open
    2  Device.create_context    from validated options
    3  Context.supported        one verdict per operation
    4  Context.compile          model -> program
    5  Program.create_execution
    6  Execution.compute        inputs -> outputs

The host calls them in this order. It asks `supported` about the entire graph and `admit` (optional) about every final
segment; only an admitted segment obliges the driver to compile. `Capability.form` selects adapter IR
(`nnadapter.ir.Model`) or ONNX (`onnx.ModelProto`).

Dynamic shapes: with `Capability.dynamic_shapes`, dimensions and attributes of an adapter IR model may be symbolic
numbers (`Model.has_dynamic_shapes`), and `Execution.specialize` passes their values. A comparison such as `size > 16`
in `supported`, `admit` or `compile` becomes a guard of the program. Shapes that violate the guard are compiled again.

Streams: a device with streams works while the host continues. Work of one stream runs in order. Streams overlap unless
one waits for an event of another. A session enqueues consecutive steps (`Execution.enqueue`) and waits once, before
another device needs the results. Failures surface at the wait; later results of that stream are ignored.

Sources: NNAdapter's driver interface (`open_device`, `create_context`, `validate_program`, `create_program`,
`execute_program`), with verdicts instead of booleans; streams of PaddleCustomDevice; NNAPI's fenced compute.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from enum import StrEnum
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from nnadapter.drivers.capability import Capability, DeviceInfo, MemoryStatistics, OptionValues, Profile, Threading
from nnadapter.errors import DriverError, IncompatibleProgramError
from nnadapter.ir.operand import Array
from nnadapter.records import dataclass, field
from nnadapter.traces.trace import Trace
from partition.graph import SUPPORTED, Verdict

if TYPE_CHECKING:
    from nnadapter.drivers.kernel import Kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """Deadline, cancellation and progress of a call. Source: NNAdapterControl."""

    deadline_seconds: float = 0.0
    """Seconds after the start of the call; 0 for none."""
    cancelled: Callable[[], bool] | None = None
    """Callable that returns True on cancellation and after the deadline. Drivers may call it from any thread. Never
    raises.
    """
    progress: Callable[[float], None] | None = None
    """Callable for the completed fraction, 0 to 1. Drivers may call it from any thread. Never raises."""


UNLIMITED = Control()


class Memory(ABC):
    """Device memory allocated by `Device.allocate`."""

    nbytes: int

    @abstractmethod
    def copy_in(self, array: Array) -> None:
        """Copy a contiguous array to the device; block until done."""

    @abstractmethod
    def copy_out(self, array: Array) -> None:
        """Copy from the device into a contiguous, writable array; block until done."""

    @abstractmethod
    def free(self) -> None:
        """Free the memory; do nothing if it is already free."""

    def dlpack_device(self) -> tuple[int, int] | None:
        """Return DLPack's device type and id; None to export a host copy instead."""
        return None

    def dlpack(self, dtype: np.dtype[Any], shape: tuple[int, ...], **asked: Any) -> Any:
        """Return a copy of the tensor as a DLPack capsule. Called only if `dlpack_device` is not None.

        `asked` has `stream` and `dl_device` of `__dlpack__`.
        """
        raise NotImplementedError(f"{type(self).__name__} does not support DLPack")


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class DeviceTensor:
    """Tensor in device memory: row-major, without gaps, from the first byte of `memory`."""

    memory: Memory
    """At least `nbytes` long."""
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_donated: bool = False
    """Executions may overwrite the memory with results: nothing reads this tensor afterwards."""

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize


class Event(ABC):
    """Point in the work of a stream. It can be recorded repeatedly; only the last record counts."""

    @property
    @abstractmethod
    def is_done(self) -> bool:
        """True if the event has happened or was never recorded. Does not block."""

    @property
    def happened_ns(self) -> int | None:
        """Time of the event on the clock of `time.perf_counter_ns`, for traces; None if unknown."""
        return None

    @abstractmethod
    def synchronize(self) -> None:
        """Block the host until the event has happened; return at once if it was never recorded.

        Raises:
            ExecutionError: work before the event failed. Every call raises the failure, unless `Stream.synchronize`
                raised it before the event was recorded. May be another NNAdapterError.
        """

    @abstractmethod
    def close(self) -> None:
        """Destroy the event; do nothing if it is already destroyed."""


class Stream(ABC):
    """Queue of work that runs in order. Used by one thread at a time."""

    @abstractmethod
    def record(self, event: Event) -> None:
        """Let the event happen once all work queued so far has finished or failed."""

    @abstractmethod
    def wait(self, event: Event) -> None:
        """Make later work of the stream wait for the last record of the event. Does not block the host."""

    @abstractmethod
    def synchronize(self) -> None:
        """Block the host until all work is done.

        Raises:
            ExecutionError: the first failure since the last call, raised only once. It may be another NNAdapterError.
        """

    @abstractmethod
    def close(self) -> None:
        """Wait for the work, then destroy the stream; do nothing if it is already destroyed."""


def is_streaming(threading: Threading, *, has_memory: bool, has_streams: bool) -> bool:
    """Return whether sessions use a device's streams; False for serial devices, because streams let runs overlap."""
    return has_memory and has_streams and threading is not Threading.SERIAL


INTERFACE_VERSION = (1, 0)
"""Major and minor version. A driver's major must be equal, its minor at most this."""

SegmentModel = Any
"""`nnadapter.ir.Model` or `onnx.ModelProto`, depending on `Capability.form`."""


KERNEL = "kernel "
"""Prefix in `Admission.runs_as`, before the name of a custom kernel."""
NO_OPERATION = "no operation"
"""Entry of `Admission.runs_as` for operations without cost, such as views."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Answer of a device about one final segment."""

    verdict: Verdict = SUPPORTED
    """SUPPORTED obliges the driver to compile the segment."""
    runs_as: tuple[str, ...] = ()
    """Name of the device operation that computes each operation (each node, for ONNX); empty if unknown. Operations
    with the same name are fused; `NO_OPERATION` marks an operation without cost.
    """
    facts: Mapping[str, int | float | str] = field(default_factory=dict)
    """Statistics of the segment for the report, with units in the names, as in `arena_bytes`."""


class Compatibility(StrEnum):
    """Relation of a serialized program to a context that may load it."""

    IDENTICAL = "same"
    """Same driver version, device and options."""
    COMPATIBLE = "compatible"
    """Other driver version or options, but the program runs in this context."""
    RECOMPILE = "recompile"
    """The program does not run in this context; compiling its model again may work."""
    INCOMPATIBLE = "no"
    """The program was compiled for another device. Its model does not fit this context, either."""


class Execution(ABC):
    """Buffers for running one program. `Capability.threading` limits concurrent calls."""

    @abstractmethod
    def compute(self, inputs: Sequence[Array]) -> Sequence[Array]:
        """Run the program once. May raise any NNAdapterError.

        Args:
            inputs: read-only, contiguous, with the order, data types and dimensions of the model's inputs.

        Returns:
            Arrays in the order of the model's outputs. The caller owns them: a later `compute` must not write to them.
        """

    def compute_within(self, inputs: Sequence[Array], control: Control) -> Sequence[Array]:
        """Run the program once with a deadline or a way to cancel.

        Override it to check `control` between steps and raise CancelledError. By default the program runs to its end.
        """
        return self.compute(inputs)

    def specialize(self, sizes: Sequence[Any]) -> Execution:
        """Return an execution for concrete sizes of a program with dynamic shapes.

        Called before each run, so keep it cheap.

        Args:
            sizes: values of the model's symbolic sizes, for `nnadapter.ir.substitute_sizes(number, sizes)`.

        Returns:
            An execution that is valid until the next call (of the same thread, if threads share this one). The host
            does not close it.
        """
        raise DriverError(f"{type(self).__name__} does not support dynamic shapes")

    def compute_into(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Sequence[Array]:
        """Run the program once, writing into host memory that is reused between runs.

        Args:
            inputs: see `compute`.
            outputs: one writable, contiguous array per output, with its data type and dimensions, without overlap.

        Returns:
            `outputs`, or new arrays if the driver cannot write into them.
        """
        return self.compute(inputs)

    def compute_on_device(
        self, inputs: Sequence[DeviceTensor], control: Control = UNLIMITED
    ) -> Sequence[DeviceTensor] | None:
        """Run the program once from device memory into new device memory; block until done.

        Args:
            inputs: in the order of the model's inputs. Only donated ones may be overwritten.
            control: see `compute_within`.

        Returns:
            One tensor per output, each in its own memory, which the host frees. None, without any effect, if the driver
            does not support the run.
        """
        return None

    def enqueue(
        self, inputs: Sequence[DeviceTensor], stream: Stream, control: Control = UNLIMITED
    ) -> Sequence[DeviceTensor] | None:
        """Start `compute_on_device` as work of a stream of the device; failures surface when the host waits.

        Called only if the device has streams and memory. Pending work of this stream, or of a stream that it waits for,
        may still compute the inputs. Until the work is done, `control` is valid, and the host neither frees the tensors
        nor closes or reuses the execution.
        """
        return None

    def close(self) -> None:  # noqa: B027  a default, not an omission
        """Free the execution's resources. Called at most once, as the last call."""


class Program(ABC):
    """Compiled segment."""

    @abstractmethod
    def create_execution(self) -> Execution:
        """Allocate buffers for one run, so that `compute` allocates nothing except its outputs."""

    @property
    def memory_bytes(self) -> int:
        """Bytes held now by the program and one execution, without `shared_bytes`; 0 if unknown.

        The value may grow. The host evicts the least recently used plans if all plans together hold too much.
        """
        return 0

    @property
    def execution_bytes(self) -> int:
        """Part of `memory_bytes` that each further execution adds; by default all of it."""
        return self.memory_bytes

    @property
    def shared_bytes(self) -> Mapping[Hashable, int]:
        """Bytes shared with other programs of the device, such as packed weights; each key counts once."""
        return {}

    def serialize(self) -> bytes | None:
        """Return the program as bytes for `Context.deserialize`; None if the device has no such format."""
        return None

    def close(self) -> None:  # noqa: B027
        """Free the program's resources. Called after all of its executions are closed."""


class ProgramReader:
    """Loader of serialized programs. Every context is one."""

    def deserialize(self, blob: bytes) -> Program:
        """Load a program from bytes of `Program.serialize`.

        Raises:
            IncompatibleProgramError: the bytes are damaged, from another version or device, or not for this context.
        """
        raise IncompatibleProgramError(f"{type(self).__name__} cannot deserialize programs; compile the model instead")

    def deserialize_view(self, blob: memoryview) -> Program:
        """Load a program from a read-only view of a verified, mapped file, which the program may keep.

        Override it to avoid the copy.
        """
        return self.deserialize(bytes(blob))

    def check_blob(self, blob: memoryview) -> Compatibility | None:
        """Return the compatibility of a serialized program with the context, judging by the program's header.

        Args:
            blob: read-only view of a mapped file; read only its beginning.

        Returns:
            None to let the host compare the stored driver version and device name with the current ones.
        """
        return None


class Context(ProgramReader, ABC):
    """Device opened with options. The host may call it from several threads."""

    @abstractmethod
    def supported(self, model: SegmentModel) -> Sequence[Verdict]:
        """Return one verdict per operation (per node, for ONNX), in the model's order.

        The model is an entire graph or a part of one; some operations may be missing. Judge operations separately, with
        the code that lowers them; `admit` judges the size of a segment. An exception refuses all operations.
        """

    def admit(self, model: SegmentModel) -> Admission:
        """Judge a final segment as a whole: memory, size and count limits. An exception refuses it."""
        return Admission()

    def profile(self) -> Profile | None:
        """Return the device's speed under the context's options; None for the capability's profile."""
        return None

    def kernels(self) -> Sequence[Kernel]:
        """Return host functions for unsupported ONNX ops, see docs/extending.md. Called once."""
        return ()

    @abstractmethod
    def compile(self, model: SegmentModel) -> Program:
        """Compile a segment that `admit` accepted.

        Raises:
            CompilationError: set `refused` if only some operations are at fault.
        """

    def with_session_options(self, options: Any) -> Context:
        """Return the context for a session with ONNX Runtime's `SessionOptions`. Only the device `cpu` uses them."""
        return self

    def with_trace(self, trace: Trace, lane: str) -> Context:
        """Return the context for a traced session. Override it to add the driver's own events to the trace.

        `lane` is the device's name in the session.
        """
        return self

    def compile_whole_graph(self, model: SegmentModel) -> Program:
        """Compile a segment that is the entire plan, so no other segment competes for the processor."""
        return self.compile(model)

    def clone_with_constants(self, program: Program, model: SegmentModel) -> Program | None:
        """Return a program for a model that differs from a compiled one only in constants, as repeated layers do.

        Args:
            program: from this context. It stays unchanged and may be closed before or after the new program.
            model: admitted adapter IR. It differs from the model of `program` only in names and constants.

        Returns:
            None if the model must be compiled, because the program depends on values of constants.
        """
        return None

    def close(self) -> None:
        """Free the context's resources. Called after all of its programs are closed."""


class Device(ABC):
    """Opened device, shared by all sessions of the process."""

    @property
    @abstractmethod
    def capability(self) -> Capability:
        """Static description; the same on every call."""

    @abstractmethod
    def create_context(self, options: OptionValues) -> Context:
        """Create a context. `options` has every option of the capability, checked, with defaults filled in."""

    @property
    def has_memory(self) -> bool:
        """True if `allocate` works."""
        return False

    def allocate(self, nbytes: int) -> Memory:
        """Allocate device memory. Called only if `has_memory`.

        Raises:
            OutOfMemoryError: the device is full.
        """
        raise DriverError(f"{type(self).__name__} has no memory to allocate")

    def from_dlpack(self, tensor: Any) -> DeviceTensor | None:
        """Return a copy of another library's tensor in device memory; None to copy it through host memory.

        Called only if `has_memory`.
        """
        return None

    @property
    def has_raw_inputs(self) -> bool:
        """True if native code gets the addresses of inputs and could write to them despite numpy's read-only flag.

        Such devices get copies. The property may be False if the native code promises not to write to inputs.
        """
        return False

    @property
    def has_streams(self) -> bool:
        """True if the device works while the host continues."""
        return False

    def create_stream(self) -> Stream:
        """Create a stream. Called only if `has_streams`."""
        raise DriverError(f"{type(self).__name__} has no streams")

    def create_event(self) -> Event:
        """Create an event. Called only if `has_streams`."""
        raise DriverError(f"{type(self).__name__} has no events")

    def memory_statistics(self) -> MemoryStatistics | None:
        """Return the current usage of device memory; None if unknown."""
        return None

    def close(self) -> None:  # noqa: B027
        """Close the device after its contexts. Usually never called, so save persistent data in `Context.close`."""


class Driver(ABC):
    """Driver, named by an entry point of the group `nnadapter.drivers` and created without arguments."""

    interface_version: tuple[int, int] = INTERFACE_VERSION

    @abstractmethod
    def open(self, device_id: str) -> Device:
        """Open a device; `device_id` is the part of its name after the colon, or empty for the first.

        Raises:
            DeviceNotFoundError, DeviceUnavailableError: the device does not exist or cannot be used.
        """

    def devices(self) -> Sequence[DeviceInfo]:
        """Return the devices on this machine, without opening any.

        An empty result means one device with the driver's name. List unusable devices with `available=False` and a
        reason.
        """
        return ()
