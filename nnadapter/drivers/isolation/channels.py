"""Communication with a device process: sockets, messages, lanes of shared memory, and computations on its streams."""

from __future__ import annotations

import contextlib
import io
import pickle
import socket
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, is_dataclass
from enum import Enum
from math import prod
from types import MappingProxyType
from typing import Any
from weakref import ReferenceType, ref

import numpy as np

from nnadapter.drivers.arenas import ALIGNMENT
from nnadapter.drivers.interface import UNLIMITED, Control, Device, DeviceTensor, Stream
from nnadapter.drivers.shared_memory import Block, place_of
from nnadapter.errors import FAILURES, DriverError
from nnadapter.ir.model import Model
from nnadapter.ir.operand import Array, Operand, array_type_of, dtype_name
from nnadapter.process.resources import memoize
from partition.graph import DTYPE_OF_ELEMENT_TYPE

_LENGTH = struct.Struct("<Q")
_PIECE = 1 << 16
_SOON_S = 1.5e-4
"""To be woken takes a third of it."""
_PATIENT = 4
"""So many messages are slept for after one that did not come soon: others need the processor."""
MOST_DESCRIPTORS = 16
"""Beside one message."""


class End(socket.socket):
    """One of a pair. It is closed with the last who holds it: an interrupt may have come before anybody else could."""

    def __del__(self) -> None:
        """Close it."""
        self.close()


def ends() -> tuple[End, End]:
    """Return both of a pair."""
    local_end, other = socket.socketpair()
    return End(fileno=local_end.detach()), End(fileno=other.detach())


class Channel:
    """One end. Whoever uses it does so alone."""

    def __init__(self, end: End) -> None:
        self._socket = end
        self._to_sleep_for = 0

    def send(self, contents: bytes, descriptors: Sequence[int] = (), end: float | None = None) -> None:
        """Send a message.

        Args:
            contents: of the message.
            descriptors: that the other side gets copies of.
            end: by when it has to be gone, by `time.monotonic`.

        Raises:
            TimeoutError: the other side takes nothing.
            OSError: it is gone.
        """
        self._socket.settimeout(_seconds_remaining(end))
        message = _LENGTH.pack(len(contents)) + contents
        if not descriptors:
            self._socket.sendall(message)
            return
        sent = socket.send_fds(self._socket, [message[:_PIECE]], list(descriptors))
        self._socket.sendall(memoryview(message)[sent:])

    def receive(self, end: float | None = None, *, is_alone: bool = False) -> bytes:
        """Wait for a message.

        Args:
            end: by when, by `time.monotonic`.
            is_alone: nobody else waits for the other side, so that to stay awake for what may come soon is worth it.

        Raises:
            TimeoutError: none came in time; what has come of it is lost.
            EOFError: the other side is gone.
        """
        first = self._soon() if is_alone else None
        if first is None:
            self._socket.settimeout(_seconds_remaining(end))
            first = self._socket.recv(_PIECE)
        return self._read_message(first, end)

    def is_readable(self, seconds: float) -> bool:
        """Wait so long for something to come, or for the other side to go."""
        self._socket.settimeout(max(seconds, 0.0))
        try:
            self._socket.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            return False
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def receive_with_descriptors(self) -> tuple[bytes, list[int]]:
        """As `receive`, with what came beside the message."""
        self._socket.settimeout(None)
        first, descriptors, _, _ = socket.recv_fds(self._socket, _PIECE, MOST_DESCRIPTORS)
        return self._read_message(first, None), descriptors

    def close(self) -> None:
        """Close this end; who waits at the other one learns of it, if no process that was forked has it, too."""
        self._socket.close()

    def _soon(self) -> bytes | None:
        """What comes within moments, without going to sleep; None where nothing does, or did lately."""
        if self._to_sleep_for:
            self._to_sleep_for -= 1
            return None
        self._socket.settimeout(0.0)
        until = time.perf_counter() + _SOON_S
        while time.perf_counter() < until:
            with contextlib.suppress(BlockingIOError):
                return self._socket.recv(_PIECE)
        self._to_sleep_for = _PATIENT
        return None

    def _read_message(self, first: bytes, end: float | None) -> bytes:
        if len(first) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(first)
            if len(first) == _LENGTH.size + length:  # nearly always
                return first[_LENGTH.size :]
        pieces = bytearray(first)
        total_length: int | None = None
        while total_length is None or len(pieces) < total_length:
            if total_length is None and len(pieces) >= _LENGTH.size:
                total_length = _LENGTH.size + _LENGTH.unpack_from(pieces)[0]
                continue
            self._socket.settimeout(_seconds_remaining(end))
            piece = self._socket.recv(min(_PIECE if total_length is None else total_length - len(pieces), 1 << 20))
            if not piece:
                raise EOFError("the other side is gone")
            pieces += piece
        return bytes(memoryview(pieces)[_LENGTH.size : total_length])


def pair() -> tuple[Channel, End]:
    """Return one end, and the other one, whose descriptor is to be given away."""
    local_end, other = ends()
    return Channel(local_end), other


def from_descriptor(descriptor: int) -> Channel:
    """Return the end that a descriptor stands for, which it takes."""
    return Channel(End(fileno=descriptor))


def can_share() -> bool:
    """Whether descriptors can be passed here."""
    return hasattr(socket, "send_fds") and hasattr(socket, "AF_UNIX")


def _seconds_remaining(end: float | None) -> float | None:
    return None if end is None else max(end - time.monotonic(), 1e-6)


_ASIDE_BYTES = 1 << 16
"""From this size on an array stands beside its message."""
_PLAIN = {
    "builtins": {"tuple", "list", "dict", "frozenset", "set", "bytearray", "complex"},
    "types": {"MappingProxyType"},
    "numpy": {"ndarray", "dtype"},
    "numpy._core.multiarray": {"_reconstruct", "scalar"},
    "numpy._core.numeric": {"_frombuffer"},
    "numpy.core.multiarray": {"_reconstruct", "scalar"},
    "numpy.core.numeric": {"_frombuffer"},
    "ml_dtypes": {*DTYPE_OF_ELEMENT_TYPE.values()},
}
"""What may be made of what a device's process sends, beside classes of ours."""
_OURS = ("nnadapter.drivers.", "nnadapter.ir.", "partition.")


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:  # the module's own name for the hook
        if type(value) is MappingProxyType:
            return MappingProxyType, (dict(value),)
        if type(value) is Model:
            return Model, (value.operands, value.operations, value.inputs, value.outputs, value.covarying_number_groups)
        if type(value) is Operand:
            return _operand, (value.name, value.type, value.lifetime, value.value)
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if name in _PLAIN.get(module, ()):
            return super().find_class(module, name)
        if module.startswith(_OURS) and "." not in name:
            class_ = super().find_class(module, name)
            if isinstance(class_, type) and (is_dataclass(class_) or issubclass(class_, Enum)):
                return class_
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def written(message: object, aside: Callable[[pickle.PickleBuffer], Any] | None = None) -> bytes:
    """Return a message as bytes.

    Args:
        message: what is said.
        aside: takes what is large and stands beside it; None where all of it is in the bytes.

    Raises:
        Exception: it holds something that cannot be pickled.
    """
    contents = io.BytesIO()

    def takes(buffer: pickle.PickleBuffer) -> bool:
        if aside is None or buffer.raw().nbytes < _ASIDE_BYTES:
            return True
        aside(buffer)
        return False

    _Pickler(contents, protocol=5, buffer_callback=takes).dump(message)
    return contents.getvalue()


def read(contents: bytes, aside: Sequence[memoryview] = ()) -> Any:
    """Return what the process that opened this one said."""
    return pickle.loads(contents, buffers=aside)


def read_answer(contents: bytes, device: str) -> Any:
    """Return what the process of a device said.

    Raises:
        DriverError: it is nothing that such a process says.
    """
    try:
        return _Unpickler(io.BytesIO(contents)).load()
    except Exception as error:
        raise DriverError(
            f"the process of device {device!r} gave no answer that can be read: {type(error).__name__}: {error}; "
            "report it to the vendor",
            device=device,
        ) from error


@memoize(64)
def type_named(name: str) -> np.dtype[Any]:
    """Return the type of arrays of a name.

    Raises:
        ValueError: there is none whose elements are numbers.
    """
    try:
        dtype = array_type_of(name)
    except TypeError as error:
        raise ValueError(f"{name!r} is no data type") from error
    if dtype.hasobject or dtype.fields is not None or dtype.subdtype is not None or dtype.name != name:
        raise ValueError(f"{name!r} is no data type of tensors")
    return dtype


def _operand(name: str, type_: Any, lifetime: Any, value: Any) -> Operand:
    if isinstance(value, np.ndarray):
        value.setflags(write=False)
    return Operand(name, type_, lifetime, value)


HEADER_BYTES = ALIGNMENT
"""Before the first tensor of a lane's memory."""
LANE_BLOCK = 0
"""The number of a lane's own memory among blocks."""
GRACE_S = 0.04
"""How long a driver may take to stop, once it was told to."""
_LOOK_S = 0.005
"""How often somebody who may stop a computation is asked."""
_MOST_RANK = 64

Form = tuple[tuple[int, ...], np.dtype[Any]]
"""Dimensions and data type."""
Spec = Any
"""Of a tensor: data type by name, dimensions, block and offset; or an array whose elements are texts."""


class AbandonedComputationError(TimeoutError):
    """Nobody wanted the results any more, and the driver did not stop."""


@dataclass(frozen=True, slots=True)
class Computation:
    """One computation."""

    execution: int
    """By its number."""
    inputs: Sequence[Array]
    forms: Sequence[Form] | None = None
    """Of the outputs, where they are known and each has elements."""
    into: Sequence[Array] = ()
    """Where they are to be written; empty where they are new."""
    sizes: Sequence[Any] | None = None
    """See `Execution.specialize`; None where it is told none."""
    control: Control = UNLIMITED


class Lane:
    """See above. Whoever uses it does so alone."""

    def __init__(self, channel: Channel, device: str) -> None:
        self.is_talking = False
        """Something was said and not answered."""
        self.is_alone = False
        """Nobody else has said anything to the process lately."""
        self.was_used = True
        self._channel, self._device = channel, device
        self._own: Block | None = None
        self._known: dict[int, ReferenceType[Block]] = {}
        """Blocks that the other side maps for this lane."""

    def ask(self, contents: bytes, aside: Sequence[memoryview], end: float) -> tuple[bytes, None]:
        """Ask, and return the answer as it is; what stands aside goes by memory that is shared.

        Raises:
            TimeoutError, OSError, EOFError: see `Channel`.
            OutOfMemoryError: there is no room for what stands aside.
        """
        sizes = [view.nbytes for view in aside]
        if not aside:
            return self._exchange((contents, sizes), (), end), None
        offsets, total = _offsets(sizes)
        block = Block(total)
        for view, offset in zip(aside, offsets, strict=True):
            block[offset : offset + view.nbytes] = view
        return self._exchange((contents, sizes), (block.descriptor,), end), None

    def compute(self, computation: Computation, end: float) -> tuple[bytes, Any]:
        """Compute, and return the results; or what else it said, as it is.

        Raises:
            TimeoutError, OSError, EOFError: see `Channel`.
            OutOfMemoryError: there is no room for the tensors.
            DriverError: the results do not lie where there is memory.
        """
        request = _Request(self, computation)
        lane_block = self._with_room(request.nbytes)
        for offset, array in request.copies:
            np.copyto(lane_block.array(offset, array.shape, array.dtype), array)
        control = computation.control
        if control is not UNLIMITED:
            lane_block[0] = 0
            if control.deadline_seconds:
                end = min(end, time.monotonic() + control.deadline_seconds + GRACE_S)
        shared = request.new_blocks
        is_new = lane_block.number not in self._known
        blocks = (
            ((LANE_BLOCK, lane_block), *((each.number, each) for each in shared))
            if is_new
            else [(b.number, b) for b in shared]
        )
        freed_blocks = [number for number, block in self._known.items() if block() is None]
        message = (
            computation.execution,
            request.inputs,
            request.outputs,
            computation.sizes,
            None if control is UNLIMITED else control.deadline_seconds,
            [(number, block.nbytes) for number, block in blocks],
            freed_blocks,
        )
        answer = self._exchange(message, [block.descriptor for _, block in blocks], end, control)
        for _, block in blocks:
            self._known[block.number] = ref(block)
        for number in freed_blocks:
            del self._known[number]
        return self._read_results(answer, lane_block, request, end, control)

    def close(self) -> None:
        """Close it."""
        self._channel.close()
        self._own = None

    def knows(self, block: Block) -> bool:
        """Whether the other side knows a block."""
        return block.number in self._known

    def _with_room(self, nbytes: int) -> Block:
        lane_block = self._own
        if lane_block is None or lane_block.nbytes < nbytes:
            # Powers of two, so that it seldom has to grow; pages that nobody writes to cost nothing.
            lane_block = self._own = Block(1 << (nbytes - 1).bit_length())
        return lane_block

    def _exchange(self, message: object, descriptors: Sequence[int], end: float, control: Control = UNLIMITED) -> bytes:
        self.is_talking = self.was_used = True
        self._channel.send(pickle.dumps(message, protocol=5), descriptors, end)
        if control.cancelled is None:
            answer = self._channel.receive(end, is_alone=self.is_alone)
        else:
            answer = self._heard(end, control)
        self.is_talking = False
        return answer

    def _heard(self, end: float, control: Control) -> bytes:
        """The answer to what somebody may stop."""
        assert control.cancelled is not None
        assert self._own is not None, "what can be stopped is told in it"
        while not self._channel.is_readable(min(_LOOK_S, end - time.monotonic())):
            if control.cancelled():
                self._own[0] = 1
                if not self._channel.is_readable(GRACE_S):
                    raise AbandonedComputationError
                break
            if time.monotonic() >= end:
                raise TimeoutError
        return self._channel.receive(time.monotonic() + GRACE_S)

    def _read_results(
        self, answer: bytes, lane_block: Block, request: _Request, end: float, control: Control
    ) -> tuple[bytes, Any]:
        if not answer:  # it has written what it was asked for to where it was asked to
            return answer, request.results(lane_block)
        reply = read_answer(answer, self._device)
        if isinstance(reply, tuple) and len(reply) == 2 and reply[0] == "more":
            self.is_talking = True  # it waits for that room
            lane_block = self._with_room(_checked_byte_count(reply[1], self._device))
            message = [(LANE_BLOCK, lane_block.nbytes)]
            answer = self._exchange(message, (lane_block.descriptor,), end, control)
            self._known[lane_block.number] = ref(lane_block)
            reply = read_answer(answer, self._device)
        if isinstance(reply, tuple) and len(reply) == 2 and reply[0] is True and isinstance(reply[1], list):
            return b"", [_result(lane_block, entry, self._device) for entry in reply[1]]
        return answer, None


class _Request:
    """What a message says of tensors, and what is to be copied for it."""

    def __init__(self, lane: Lane, computation: Computation) -> None:
        self._lane = lane
        self.nbytes = HEADER_BYTES
        """How much of the lane's own memory is needed."""
        self.copies: list[tuple[int, Array]] = []
        """What goes into it."""
        self.new_blocks: list[Block] = []
        """Of which the other side has to be told."""
        self.inputs = [self._input(array) for array in computation.inputs]
        self._into = computation.into
        self._places: list[tuple[int, Form]] = []
        """Of the outputs that lie in the lane's own memory."""
        self._targets: list[Array] = []
        """Where those go, unless they are new."""
        self.outputs = self._outputs(computation)

    def results(self, lane_block: Block) -> Sequence[Array]:
        """The results, where they were written as asked."""
        if not self._into:
            return [lane_block.array(offset, *form).copy() for offset, form in self._places]
        for (offset, form), target in zip(self._places, self._targets, strict=True):
            np.copyto(target, lane_block.array(offset, *form))
        return self._into

    def _input(self, array: Array) -> Spec:
        if array.dtype.hasobject:
            return array
        block, offset = self._place(array)
        if block == LANE_BLOCK:
            self.copies.append((offset, array))
        return dtype_name(array.dtype), array.shape, block, offset

    def _outputs(self, computation: Computation) -> list[Spec] | None:
        specs: list[Spec] = []
        for array in computation.into:
            block, offset = self._place(array)
            if block == LANE_BLOCK:
                self._targets.append(array)
                self._places.append((offset, (array.shape, array.dtype)))
            specs.append((dtype_name(array.dtype), array.shape, block, offset))
        if specs or computation.forms is None:
            return specs or None
        for shape, dtype in computation.forms:
            offset = self._room(prod(shape) * dtype.itemsize)
            self._places.append((offset, (shape, dtype)))
            specs.append((dtype_name(dtype), shape, LANE_BLOCK, offset))
        return specs

    def _place(self, array: Array) -> tuple[int, int]:
        """Where an array lies, or is to be copied to."""
        place = place_of(array)
        if place is not None:
            block = place.block
            if self._lane.knows(block) or block in self.new_blocks:
                return block.number, place.offset
            if len(self.new_blocks) < MOST_DESCRIPTORS - 1:
                self.new_blocks.append(block)
                return block.number, place.offset
        return LANE_BLOCK, self._room(array.nbytes)

    def _room(self, nbytes: int) -> int:
        offset = self.nbytes
        self.nbytes += -(-nbytes // ALIGNMENT) * ALIGNMENT
        return offset


def _offsets(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Where pieces of these sizes begin, one behind the other, and where the last one ends."""
    offsets, total = [], 0
    for size in sizes:
        offsets.append(total)
        total += -(-size // ALIGNMENT) * ALIGNMENT
    return offsets, total


def _result(block: Block, spec: Any, device: str) -> Array:
    """A copy of a result that the other process says of where it lies.

    Raises:
        DriverError: there is no such memory.
    """
    if isinstance(spec, np.ndarray):
        return spec
    try:
        name, shape, offset = spec
        dtype = type_named(name)
        sizes = [size for size in shape if type(size) is int and size >= 0]
        fits = len(sizes) == len(shape) <= _MOST_RANK and type(offset) is int and offset >= HEADER_BYTES
        if not fits or offset + prod(sizes) * dtype.itemsize > block.nbytes:
            raise ValueError("it lies outside of the memory that there is")
        return block.array(offset, tuple(sizes), dtype).copy()
    except (TypeError, ValueError) as error:
        raise DriverError(f"the process of device {device!r} gave a result that is none: {error}") from error


def _checked_byte_count(nbytes: Any, device: str) -> int:
    if type(nbytes) is not int or nbytes < 0:
        raise DriverError(f"the process of device {device!r} asked for {nbytes!r} bytes of memory")
    return nbytes


Task = tuple[Any, Sequence[Array]]
"""An execution, and what it is to compute with."""
StreamResults = tuple[list[list[Array]], list[str]]
"""Results of each task, and which promises were broken, in words."""


def compute_on_streams(
    device: Device, first_tasks: Sequence[Task], second_tasks: Sequence[Task]
) -> StreamResults | None:
    """Compute tasks on one stream, and others on another that waits for the first; each execution is in one of them.

    Returns:
        None where the device has no streams or no memory, or does not enqueue such a task.
    """
    if not (device.has_memory and device.has_streams):
        return None
    broken: list[str] = []
    with ExitStack() as stack:
        first, second = (_closed_twice(stack, device.create_stream()) for _ in range(2))
        event = _closed_twice(stack, device.create_event())
        if not event.is_done:
            broken.append("an event that was never recorded has not happened")
        event.synchronize()
        outputs = _enqueued(device, stack, first_tasks, first)
        first.record(event)
        second.wait(event)
        outputs += _enqueued(device, stack, second_tasks, second)
        second.synchronize()
        if not event.is_done:
            broken.append("an event has not happened when what waited for it is done")
        event.synchronize()
        first.synchronize()
        if len(outputs) < len(first_tasks) + len(second_tasks):
            return None
        return [[_on_host(tensor) for tensor in tensors] for tensors in outputs], broken


def compute_on_device(device: Device, tasks: Sequence[Task]) -> StreamResults | None:
    """Compute tasks one after the other from tensors in the device's memory to others there.

    Returns:
        None where the device has no memory, or does not compute such a task.
    """
    if not device.has_memory:
        return None
    broken: list[str] = []
    results: list[list[DeviceTensor]] = []
    with ExitStack() as later:
        for execution, arrays in tasks:
            with ExitStack() as stack:
                inputs = [_on_device(device, stack, array) for array in arrays]
                outputs = execution.compute_on_device(inputs)
                if outputs is None:
                    return None
                for memory in {id(tensor.memory): tensor.memory for tensor in outputs}.values():
                    later.callback(memory.free)
                results.append(list(outputs))
                if len({id(tensor.memory) for tensor in (*inputs, *outputs)}) < len(inputs) + len(outputs):
                    broken.append("a result of compute_on_device lies in memory of an input, or of another result")
                pairs = zip(inputs, arrays, strict=True)
                if any(_on_host(tensor).tobytes() != array.tobytes() for tensor, array in pairs):
                    broken.append("compute_on_device wrote to an input that is not donated")
            if broken:
                return [], broken  # nothing is read of what may be gone
        return [[_on_host(tensor) for tensor in tensors] for tensors in results], broken


def _closed_twice(stack: ExitStack, resource: Any) -> Any:
    stack.callback(resource.close)
    stack.callback(resource.close)
    return resource


def _enqueued(device: Device, stack: ExitStack, tasks: Sequence[Task], stream: Stream) -> list[Sequence[DeviceTensor]]:
    """What each task makes, as far as the device enqueues them."""
    outputs: list[Sequence[DeviceTensor]] = []
    for execution, inputs in tasks:
        tensors = execution.enqueue([_on_device(device, stack, array) for array in inputs], stream)
        if tensors is None:
            break
        for tensor in tensors:
            stack.callback(tensor.memory.free)
        stack.callback(_wait, stream)  # which comes before what it reads and writes is freed
        outputs.append(tensors)
    return outputs


def _wait(stream: Stream) -> None:
    with suppress(*FAILURES):
        stream.synchronize()


def _on_device(device: Device, stack: ExitStack, array: Array) -> DeviceTensor:
    memory = device.allocate(array.nbytes)
    stack.callback(memory.free)
    memory.copy_in(np.ascontiguousarray(array))
    return DeviceTensor(memory, array.dtype, array.shape)


def _on_host(tensor: DeviceTensor) -> Array:
    array = np.empty(tensor.shape, tensor.dtype)
    tensor.memory.copy_out(array)
    return array
