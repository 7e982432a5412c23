"""Driver interface: driver, device, context, program, execution, memory, streams and controls.

Streams of work on a device, and events that order them.

A device with streams takes work and does it while the host goes on. Work of one stream is done in the order in which it
came; work of two streams may be done at once, unless one waits for an event that the other recorded. A session gives
each run a stream per device, enqueues the steps that follow each other there (`Execution.enqueue`), and waits once,
where somebody else needs what they make.

Work that fails says so where somebody waits. What comes behind it in its stream is done or left out, and nobody looks
at it.

Source: PaddleCustomDevice's streams and events (create, destroy, record, wait, synchronize, query); NNAPI's fenced
compute, whose events tell of failures.

The driver interface: six things to write, everything else has a default.

    1  Driver.open             open a device
    2  Device.create_context   create a context from validated options
    3  Context.supported       a verdict per operation
    4  Context.compile         model -> program
    5  Program.create_execution
    6  Execution.compute       inputs -> outputs

The host calls them in this order. `supported` is asked for the whole graph; `admit`, which has a default, is asked for
every final segment, and only its yes obliges the driver to compile. A model arrives in the form that the device's
capability names: adapter IR (`nnadapter.ir.Model`) or ONNX (`onnx.ModelProto`).

A device with `Capability.dynamic_shapes` may be given a model that holds for many sizes. In adapter IR
(`Model.has_dynamic_shapes`), its dimensions and attributes hold symbolic numbers, whose values `Execution.specialize`
gives. What `supported`, `admit` and `compile` decide on them (`size > 16`) holds for the program; elsewhere the model
is compiled once more.

Source: NNAdapter's driver interface (`open_device`, `create_context`, `validate_program`, `create_program`,
`execute_program`), with verdicts instead of booleans and a separate execution.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from nnadapter.drivers.capability import Capability, DeviceInfo, MemoryStatistics, OptionValues, Profile, Threading
from nnadapter.errors import DriverError, IncompatibleProgramError
from nnadapter.ir.operand import Array
from nnadapter.traces.trace import Trace
from partition.graph import SUPPORTED, Verdict

if TYPE_CHECKING:
    from nnadapter.drivers.kernel import Kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """What a compilation or a computation is given along. Source: NNAdapterControl."""

    deadline_seconds: float = 0.0
    """After the call began; 0 for none."""
    cancelled: Callable[[], bool] | None = None
    """Asked by the driver, from any thread; must not raise. What the host gives says so at the deadline as well."""
    progress: Callable[[float], None] | None = None
    """Told by the driver how much is done, 0 to 1, from any thread; must not raise."""


UNLIMITED = Control()
"""No deadline, and nobody who cancels."""


class Memory(ABC):
    """Bytes on a device."""

    nbytes: int

    @abstractmethod
    def copy_in(self, array: Array) -> None:
        """Copy a contiguous array to the device, done on return."""

    @abstractmethod
    def copy_out(self, array: Array) -> None:
        """Fill a contiguous, writable array from the device, done on return."""

    @abstractmethod
    def free(self) -> None:
        """Free it; nothing happens the second time."""

    def dlpack_device(self) -> tuple[int, int] | None:
        """Where it is, as DLPack numbers devices; None where what lies there is given over in the host's memory."""
        return None

    def dlpack(self, dtype: np.dtype[Any], shape: tuple[int, ...], **asked: Any) -> Any:
        """A copy of the tensor that lies there as DLPack's capsule, asked for only where `dlpack_device` says where.

        Args:
            dtype: of its elements.
            shape: its dimensions.
            asked: `stream` and `dl_device` of `__dlpack__`.
        """
        raise NotImplementedError(f"{type(self).__name__} gives nothing over by DLPack")


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class DeviceTensor:
    """A tensor in memory of a device: row-major, without gaps, from the first byte on."""

    memory: Memory
    """At least as many bytes as the tensor has."""
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_donated: bool = False
    """Whoever computes with it may make results in its memory: nobody else reads it, and nothing need be left there."""

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return prod(self.shape) * self.dtype.itemsize


class Event(ABC):
    """A point in the work of a stream. It may be recorded again; what counts is its last record."""

    @property
    @abstractmethod
    def is_done(self) -> bool:
        """Whether it has happened, or was never recorded; asks and does not wait."""

    @property
    def happened_ns(self) -> int | None:
        """When it happened, by `time.perf_counter_ns`, for traces; None where that is not known."""
        return None

    @abstractmethod
    def synchronize(self) -> None:
        """Have the host wait until it has happened; at once where it was never recorded.

        Raises:
            ExecutionError: work before it in its stream failed (or another error of the tree that says more), which
                nobody had been told by `Stream.synchronize` when it was recorded. It says so at each call.
        """

    @abstractmethod
    def close(self) -> None:
        """Destroy it; nothing happens the second time."""


class Stream(ABC):
    """Work that is done in the order in which it came. One thread at a time uses it."""

    @abstractmethod
    def record(self, event: Event) -> None:
        """Let the event happen when the work that the stream has now is done, or has failed."""

    @abstractmethod
    def wait(self, event: Event) -> None:
        """Let later work of the stream wait for what the event recorded last; the host goes on."""

    @abstractmethod
    def synchronize(self) -> None:
        """Have the host wait until all work is done.

        Raises:
            ExecutionError: some of it failed (or another error of the tree that says more): the first failure since the
                last call, which is then forgotten.
        """

    @abstractmethod
    def close(self) -> None:
        """Destroy it, after its work is done; nothing happens the second time."""


def is_streaming(threading: Threading, *, has_memory: bool, has_streams: bool) -> bool:
    """Return whether steps of a device are enqueued where that saves a wait.

    Not those of one that does one thing at a time: streams of several runs would be under way there at once.

    Args:
        threading: of the device.
        has_memory: it has memory of its own.
        has_streams: it works while the host goes on.
    """
    return has_memory and has_streams and threading is not Threading.SERIAL


INTERFACE_VERSION = (1, 0)
"""Major and minor. A driver's major must be equal, its minor at most this."""

SegmentModel = Any
"""`nnadapter.ir.Model` or `onnx.ModelProto`, as the device's capability says."""


KERNEL = "kernel "
"""What stands before the name of the custom kernel that an operation runs as."""
NO_OPERATION = "no operation"
"""What an operation runs as that costs nothing: a view, or one that a pass took away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """A device's answer to one final segment."""

    verdict: Verdict = SUPPORTED
    """Yes obliges the driver to compile."""
    runs_as: tuple[str, ...] = ()
    """For every operation of the model (node, for ONNX), what it runs as on the device; empty if not known.
    Operations with the same text are fused into one; `NO_OPERATION` costs nothing."""
    facts: Mapping[str, int | float | str] = field(default_factory=dict)
    """What the device can say beforehand, for the report: names as in `arena_bytes`, units in the name."""


class Compatibility(StrEnum):
    """What a serialized program is to a context that is asked for it."""

    IDENTICAL = "same"
    """It was compiled by this version for this device, with these options."""
    COMPATIBLE = "compatible"
    """It was not, and runs all the same."""
    RECOMPILE = "recompile"
    """It does not run here; the model that it was compiled from may."""
    INCOMPATIBLE = "no"
    """It is none of this device's: not even the model is for it."""


class Execution(ABC):
    """Buffers and bindings of one program; what may compute at once is the device's `Threading`."""

    @abstractmethod
    def compute(self, inputs: Sequence[Array]) -> Sequence[Array]:
        """Run the program once.

        Args:
            inputs: read-only, contiguous arrays in the order, data types and dimensions of the model's inputs.

        Returns:
            Arrays in the order of the model's outputs. They belong to the caller: a later `compute` must not
            write to them.
        """

    def compute_within(self, inputs: Sequence[Array], control: Control) -> Sequence[Array]:
        """As `compute`, where the run has a deadline or may be stopped.

        A driver that can stop in the middle looks at `control` between steps and raises CancelledError; what it then
        gives is not looked at. One that cannot computes to its end.
        """
        return self.compute(inputs)

    def specialize(self, sizes: Sequence[Any]) -> Execution:
        """The execution at some sizes, of a program whose model leaves them open; cheap, asked for before each run.

        Only devices are asked that take such adapter IR. What `compute` and the others are given has the dimensions of
        the model at these sizes.

        Args:
            sizes: what every traced number of the model is now: `nnadapter.ir.substitute_sizes(number, sizes)`.

        Returns:
            What is used until the next call, where executions are not shared, and is not closed.
        """
        raise DriverError(f"{type(self).__name__} runs at fixed sizes")

    def compute_into(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Sequence[Array]:
        """Run the program once, into memory of the host's, which it uses again from run to run.

        Args:
            inputs: as `compute` takes them.
            outputs: for every output of the model a writable, contiguous array of its data type and dimensions, with
                anything in it. None of them shares memory with another or with an input.

        Returns:
            `outputs`; or as `compute` does, where the driver cannot write into memory that it is given.
        """
        return self.compute(inputs)

    def compute_on_device(
        self, inputs: Sequence[DeviceTensor], control: Control = UNLIMITED
    ) -> Sequence[DeviceTensor] | None:
        """Run the program once from memory of the device into new memory of it, done on return.

        Args:
            inputs: in the order of the model's inputs, not to be written to, but for those with `is_donated`.
            control: see `compute_within`.

        Returns:
            Tensors in the order of the model's outputs, each in memory of its own, which the host frees; None, and
            nothing was done, where the driver cannot.
        """
        return None

    def enqueue(
        self, inputs: Sequence[DeviceTensor], stream: Stream, control: Control = UNLIMITED
    ) -> Sequence[DeviceTensor] | None:
        """As `compute_on_device`, but as work of a stream: the driver returns at once, and a wait tells what failed.

        Until the work is done, the host frees none of the tensors, and neither closes the execution nor computes with
        it. Only devices are asked that have streams and memory.

        Args:
            inputs: see `compute_on_device`; work of the same stream, or of one that it waits for, may be making them.
            stream: of the device.
            control: see `compute_within`; it lives as long as the work.
        """
        return None

    def close(self) -> None:  # noqa: B027  a default, not an omission
        """Free what the execution holds. May be called once; nothing is called after it."""


class Program(ABC):
    """A compiled model."""

    @abstractmethod
    def create_execution(self) -> Execution:
        """Allocate what one run needs, so that `compute` allocates nothing but its outputs."""

    @property
    def memory_bytes(self) -> int:
        """Bytes that the program and one execution of it hold now, beside `shared_bytes`; 0 if unknown.

        The host drops the plans used longest ago when all of them together hold too much. It asks the
        plans that were used since it asked last when a plan is made, and all when somebody asks for a report, so what
        grows from run to run may be told as it grows.
        """
        return 0

    @property
    def execution_bytes(self) -> int:
        """How many of `memory_bytes` every execution holds once more; all of them where a driver does not say."""
        return self.memory_bytes

    @property
    def shared_bytes(self) -> Mapping[Hashable, int]:
        """What the program holds together with other programs of its device, counted once for all of them.

        By what tells one such piece of memory from others, its bytes: packed weights, an arena of the context.
        """
        return {}

    def serialize(self) -> bytes | None:
        """The program as bytes that `Context.deserialize` takes, or None where the device has no such form."""
        return None

    def close(self) -> None:  # noqa: B027
        """Free what the program holds. Called after all of its executions are closed."""


class ProgramReader:
    """Makes programs again of what `Program.serialize` gave, here or elsewhere; every context is one."""

    def deserialize(self, blob: bytes) -> Program:
        """Make a program from what `Program.serialize` gave.

        Raises:
            IncompatibleProgramError: the bytes are damaged, from another version or device, or do not fit the context.
        """
        raise IncompatibleProgramError(f"{type(self).__name__} cannot deserialize programs; compile the model instead")

    def deserialize_view(self, blob: memoryview) -> Program:
        """As `deserialize`, of a read-only view of a mapped file. Programs may keep it; override it to copy nothing.

        The host has held the bytes against their checksum, so that the driver need not do so again.
        """
        return self.deserialize(bytes(blob))

    def check_blob(self, blob: memoryview) -> Compatibility | None:
        """Say whether what `Program.serialize` gave, here or elsewhere, can be deserialized: by its header alone.

        Args:
            blob: read-only; looking at it reads it from a file, so look at the beginning.

        Returns:
            None where the driver does not tell: the host compares its version and the device's name with those that
            were kept.
        """
        return None


class Context(ProgramReader, ABC):
    """A device opened with options."""

    @abstractmethod
    def supported(self, model: SegmentModel) -> Sequence[Verdict]:
        """Return one verdict per operation (per node, for ONNX) of the model, in its order.

        The model is a whole graph with holes, or a part of one. Judge each operation by itself, as the device's own
        lowering would; sizes of the whole are judged by `admit`.
        """

    def admit(self, model: SegmentModel) -> Admission:
        """Say whether the final segment, as a whole, will compile: memory, size and count limits."""
        return Admission()

    def profile(self) -> Profile | None:
        """How fast the device is under the context's options; None for what the capability says."""
        return None

    def kernels(self) -> Sequence[Kernel]:
        """Functions on the host for ONNX ops that the device itself does not take.

        The host runs them between the driver's own programs, as docs/kernels.md says. Asked once per context.
        """
        return ()

    @abstractmethod
    def compile(self, model: SegmentModel) -> Program:
        """Compile a segment that `admit` took."""

    def with_session_options(self, options: Any) -> Context:
        """The same for a session with ONNX Runtime's own `SessionOptions`; only the host looks at them."""
        return self

    def with_trace(self, trace: Trace, lane: str) -> Context:
        """The same for a session whose runs are traced. The host notes the calls of a driver; more is the driver's.

        Args:
            trace: takes events of the driver's own.
            lane: which they belong to: the device's name in this session.
        """
        return self

    def compile_whole_graph(self, model: SegmentModel) -> Program:
        """Compile a segment that is the whole plan: nothing else of it runs beside, on whatever processor."""
        return self.compile(model)

    def clone_with_constants(self, program: Program, model: SegmentModel) -> Program | None:
        """The program of another model, made of one that was compiled, by giving it other constants.

        Layers of a network are such models. A driver that can do so compiles one of them.

        Args:
            program: what `compile` or `clone_with_constants` of this context gave; it stays as it was, and may be
                closed before the new one, or after it.
            model: adapter IR that `admit` took. It differs from the one that `program` was compiled from in names, and
                in what constants hold.

        Returns:
            None where the model has to be compiled after all, because something depends on what constants hold.
        """
        return None

    def close(self) -> None:
        """Free what the context holds. Called after all of its programs are closed."""


class Device(ABC):
    """One opened device."""

    @property
    @abstractmethod
    def capability(self) -> Capability:
        """Limits and options; the same at every call."""

    @abstractmethod
    def create_context(self, options: OptionValues) -> Context:
        """Create a context.

        Args:
            options: every option that the capability lists, checked and with defaults filled in.
        """

    @property
    def has_memory(self) -> bool:
        """Whether memory of the device can be allocated: what `allocate` gives."""
        return False

    def allocate(self, nbytes: int) -> Memory:
        """Return new memory of the device, asked for only where it `has_memory`.

        Raises:
            OutOfMemoryError: there is no room.
        """
        raise DriverError(f"{type(self).__name__} has no memory to allocate")

    def from_dlpack(self, tensor: Any) -> DeviceTensor | None:
        """Return a copy of another library's tensor in memory of the device, asked for only where it `has_memory`.

        None, where it does not take the tensor as it is: it then gets what the host reads of it.
        """
        return None

    @property
    def has_raw_inputs(self) -> bool:
        """Whether code that numpy does not guard gets the addresses of inputs: a library in C, say.

        Sessions give such a device copies, so that whatever it does to inputs is seen by nobody else. An engine that
        promises to leave inputs as they are need not say so.
        """
        return False

    @property
    def has_streams(self) -> bool:
        """Whether the device works while the host goes on: `create_stream` gives streams, `create_event` events."""
        return False

    def create_stream(self) -> Stream:
        """Return a new stream, asked for only where the device `has_streams`."""
        raise DriverError(f"{type(self).__name__} has no streams")

    def create_event(self) -> Event:
        """Return a new event, asked for only where the device `has_streams`."""
        raise DriverError(f"{type(self).__name__} has no events")

    def memory_statistics(self) -> MemoryStatistics | None:
        """How full the device's own memory is now; None where it has none, or does not count."""
        return None

    def close(self) -> None:  # noqa: B027
        """Close the device, if ever, after all of its contexts: sessions share it, and it stays open with the process.

        So nothing may depend on it: what is to be kept is written when a context is closed.
        """


class Driver(ABC):
    """What an entry point of the group `nnadapter.drivers` names: a class, created without arguments."""

    interface_version: tuple[int, int] = INTERFACE_VERSION
    """The interface that the driver was written for."""

    @abstractmethod
    def open(self, device_id: str) -> Device:
        """Open a device; `device_id` is what stands behind the colon of its name, or empty for the first."""

    def devices(self) -> Sequence[DeviceInfo]:
        """The devices of this driver on this machine, cheaply: nothing is opened. One, of the driver's name, if empty.

        A device that is known and cannot be used is listed with `available=False` and the reason.
        """
        return ()
