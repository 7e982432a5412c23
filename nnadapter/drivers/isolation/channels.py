"""Communication with a device process: sockets, messages and shared memory."""

from __future__ import annotations

import io
import pickle
import socket
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import is_dataclass
from enum import Enum
from itertools import accumulate
from math import prod
from types import MappingProxyType
from typing import Any
from weakref import ReferenceType, ref

import numpy as np

from nnadapter.drivers.arenas import ALIGNMENT
from nnadapter.drivers.interface import UNLIMITED, Control
from nnadapter.drivers.shared_memory import Block, place_of
from nnadapter.errors import DriverError
from nnadapter.ir.model import Model
from nnadapter.ir.operand import Array, Operand, array_type_of, dtype_name
from nnadapter.process.resources import memoize
from nnadapter.records import dataclass
from partition.graph import DTYPE_OF_ELEMENT_TYPE

_LENGTH = struct.Struct("<Q")
_PIECE = 1 << 16
_SPIN_S = 1.5e-4
"""Seconds of polling before sleep, about three times the time of a wake-up."""
_SKIPPED_SPINS = 4
"""Number of messages that are received without polling, after polling was in vain."""
MOST_DESCRIPTORS = 16


class End(socket.socket):
    """Socket that closes with its last reference, so an interrupt cannot leak it."""

    def __del__(self) -> None:
        self.close()


def ends() -> tuple[End, End]:
    """Return a socket pair."""
    local_end, other = socket.socketpair()
    return End(fileno=local_end.detach()), End(fileno=other.detach())


class Channel:
    """End of a socket pair, for one user at a time."""

    def __init__(self, end: End) -> None:
        self._socket = end
        self._skipped_spins = 0

    def send(self, contents: bytes, descriptors: Sequence[int] = (), end: float | None = None) -> None:
        """Send a message; `end` is a deadline on `time.monotonic`.

        Raises:
            TimeoutError: the peer does not read.
            OSError: the peer is gone.
        """
        self._socket.settimeout(_seconds_remaining(end))
        message = _LENGTH.pack(len(contents)) + contents
        if not descriptors:
            self._socket.sendall(message)
            return
        sent = socket.send_fds(self._socket, [message[:_PIECE]], list(descriptors))
        self._socket.sendall(memoryview(message)[sent:])

    def receive(self, end: float | None = None, *, is_alone: bool = False) -> bytes:
        """Receive a message. If `is_alone`, because no other lane exists, poll briefly before sleeping.

        Raises:
            TimeoutError: no complete message in time; a partial one is lost.
            EOFError: the peer is gone.
        """
        first = self._spin() if is_alone else None
        if first is None:
            self._socket.settimeout(_seconds_remaining(end))
            first = self._socket.recv(_PIECE)
        return self._read_message(first, end)

    def is_readable(self, seconds: float) -> bool:
        """Wait for a message; return True if one arrived or the peer is gone."""
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
        self._socket.settimeout(None)
        first, descriptors, _, _ = socket.recv_fds(self._socket, _PIECE, MOST_DESCRIPTORS)
        return self._read_message(first, None), descriptors

    def close(self) -> None:
        """Close this end. The peer notices, unless a forked process has it open, too."""
        self._socket.close()

    def _spin(self) -> bytes | None:
        if self._skipped_spins:
            self._skipped_spins -= 1
            return None
        self._socket.settimeout(0.0)
        until = time.perf_counter() + _SPIN_S
        while time.perf_counter() < until:
            with suppress(BlockingIOError):
                return self._socket.recv(_PIECE)
        self._skipped_spins = _SKIPPED_SPINS
        return None

    def _read_message(self, first: bytes, end: float | None) -> bytes:
        if len(first) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(first)
            if len(first) == _LENGTH.size + length:
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
                raise EOFError("the other process closed the channel")
            pieces += piece
        return bytes(memoryview(pieces)[_LENGTH.size : total_length])


def pair() -> tuple[Channel, End]:
    """Return a channel, and the other end of its socket pair."""
    local_end, other = ends()
    return Channel(local_end), other


def from_descriptor(descriptor: int) -> Channel:
    """Return a channel that owns the descriptor."""
    return Channel(End(fileno=descriptor))


def can_share() -> bool:
    """Return whether descriptors can be passed between processes."""
    return hasattr(socket, "send_fds") and hasattr(socket, "AF_UNIX")


def _seconds_remaining(end: float | None) -> float | None:
    return None if end is None else max(end - time.monotonic(), 1e-6)


_ASIDE_BYTES = 1 << 16
"""Smallest buffer that goes into shared memory."""
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
"""Classes that may be unpickled, in addition to our dataclasses and enumerations."""
_OURS = ("nnadapter.drivers.", "nnadapter.ir.", "partition.")


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:  # pickle defines the name
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
        raise pickle.UnpicklingError(f"the message refers to {module}.{name}, which messages may not contain")


def written(message: object, aside: Callable[[pickle.PickleBuffer], Any] | None = None) -> bytes:
    """Serialize a message; pass its large buffers to `aside` instead."""
    contents = io.BytesIO()

    def takes(buffer: pickle.PickleBuffer) -> bool:
        if aside is None or buffer.raw().nbytes < _ASIDE_BYTES:
            return True
        aside(buffer)
        return False

    _Pickler(contents, protocol=5, buffer_callback=takes).dump(message)
    return contents.getvalue()


def read(contents: bytes, aside: Sequence[memoryview] = ()) -> Any:
    """Deserialize a message of the trusted host, with its large buffers in `aside`."""
    return pickle.loads(contents, buffers=aside)


def read_answer(contents: bytes, device: str) -> Any:
    """Deserialize a message of an untrusted device process."""
    try:
        return _Unpickler(io.BytesIO(contents)).load()
    except Exception as error:
        raise DriverError(
            f"the process of device {device!r} returned an unreadable answer: {type(error).__name__}: {error}; "
            "report it to the vendor",
            device=device,
        ) from error


@memoize(64)
def type_named(name: str) -> np.dtype[Any]:
    """Return the array type of a data type name."""
    try:
        dtype = array_type_of(name)
    except TypeError as error:
        raise ValueError(f"{name!r} is not a data type") from error
    if dtype.hasobject or dtype.fields is not None or dtype.subdtype is not None or dtype.name != name:
        raise ValueError(f"{name!r} is not a data type of tensors")
    return dtype


def _operand(name: str, type_: Any, lifetime: Any, value: Any) -> Operand:
    if isinstance(value, np.ndarray):
        value.setflags(write=False)
    return Operand(name, type_, lifetime, value)


HEADER_BYTES = ALIGNMENT
"""Offset of the first tensor in shared memory. The first byte of the memory is the cancellation flag."""
LANE_BLOCK = 0
GRACE_S = 0.04
"""Seconds that a driver has to stop after cancellation."""
_POLL_S = 0.005
_MOST_RANK = 64

Form = tuple[tuple[int, ...], np.dtype[Any]]
Spec = Any
"""Description of a tensor (data type name, dimensions, block number, offset), or an array of strings itself."""
StreamResults = tuple[list[list[Array]], list[str]]
"""Results of each task, and violations of the driver interface as text."""


class AbandonedComputationError(TimeoutError):
    """Computation that did not stop after cancellation."""


@dataclass(frozen=True, slots=True)
class Computation:
    """Request to run an execution."""

    execution: int
    inputs: Sequence[Array]
    forms: Sequence[Form] | None = None
    """Shapes and data types of the outputs; None if unknown or some output is empty."""
    into: Sequence[Array] = ()
    sizes: Sequence[Any] | None = None
    control: Control = UNLIMITED


class Lane:
    """Channel with shared memory, for one request at a time."""

    def __init__(self, channel: Channel, device: str) -> None:
        self.is_talking = False
        self.is_alone = False
        self.was_used = True
        self._channel, self._device = channel, device
        self._block: Block | None = None
        self._known_blocks: dict[int, ReferenceType[Block]] = {}

    def ask(self, contents: bytes, aside: Sequence[memoryview], end: float) -> tuple[bytes, None]:
        sizes = [view.nbytes for view in aside]
        if not aside:
            return self._exchange((contents, sizes), (), end), None
        offsets, total = aligned_offsets(sizes)
        block = Block(total)
        for view, offset in zip(aside, offsets, strict=True):
            block[offset : offset + view.nbytes] = view
        return self._exchange((contents, sizes), (block.descriptor,), end), None

    def compute(self, computation: Computation, end: float) -> tuple[bytes, Any]:
        """Send a computation; return (b"", results), or (raw answer, None) if the answer must be deserialized.

        Raises:
            TimeoutError, OSError, EOFError: see `Channel`.
            OutOfMemoryError: no shared memory.
            DriverError: invalid results.
        """
        request = _Request(self, computation)
        lane_block = self._sized_block(request.nbytes)
        for offset, array in request.copies:
            np.copyto(lane_block.array(offset, array.shape, array.dtype), array)
        control = computation.control
        if control is not UNLIMITED:
            lane_block[0] = 0
            if control.deadline_seconds:
                end = min(end, time.monotonic() + control.deadline_seconds + GRACE_S)
        blocks = [(block.number, block) for block in request.new_blocks]
        if lane_block.number not in self._known_blocks:
            blocks.insert(0, (LANE_BLOCK, lane_block))
        freed_blocks = [number for number, block in self._known_blocks.items() if block() is None]
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
            self._known_blocks[block.number] = ref(block)
        for number in freed_blocks:
            del self._known_blocks[number]
        return self._read_results(answer, lane_block, request, end, control)

    def close(self) -> None:
        self._channel.close()
        self._block = None

    def knows(self, block: Block) -> bool:
        return block.number in self._known_blocks

    def _sized_block(self, nbytes: int) -> Block:
        lane_block = self._block
        if lane_block is None or lane_block.nbytes < nbytes:
            # Powers of two seldom have to grow; unwritten pages cost nothing.
            lane_block = self._block = Block(1 << (nbytes - 1).bit_length())
        return lane_block

    def _exchange(self, message: object, descriptors: Sequence[int], end: float, control: Control = UNLIMITED) -> bytes:
        self.is_talking = self.was_used = True
        self._channel.send(pickle.dumps(message, protocol=5), descriptors, end)
        if control.cancelled is None:
            answer = self._channel.receive(end, is_alone=self.is_alone)
        else:
            answer = self._receive_or_cancel(end, control)
        self.is_talking = False
        return answer

    def _receive_or_cancel(self, end: float, control: Control) -> bytes:
        assert control.cancelled is not None
        assert self._block is not None, "what can be stopped is told in it"
        while not self._channel.is_readable(min(_POLL_S, end - time.monotonic())):
            if control.cancelled():
                self._block[0] = 1
                if not self._channel.is_readable(GRACE_S):
                    raise AbandonedComputationError
                break
            if time.monotonic() >= end:
                raise TimeoutError
        return self._channel.receive(time.monotonic() + GRACE_S)

    def _read_results(
        self, answer: bytes, lane_block: Block, request: _Request, end: float, control: Control
    ) -> tuple[bytes, Any]:
        if not answer:  # results are where the request placed them
            return answer, request.results(lane_block)
        reply = read_answer(answer, self._device)
        if isinstance(reply, tuple) and len(reply) == 2 and reply[0] == "more":
            self.is_talking = True  # the peer waits for more memory
            lane_block = self._sized_block(_checked_byte_count(reply[1], self._device))
            message = [(LANE_BLOCK, lane_block.nbytes)]
            answer = self._exchange(message, (lane_block.descriptor,), end, control)
            self._known_blocks[lane_block.number] = ref(lane_block)
            reply = read_answer(answer, self._device)
        if isinstance(reply, tuple) and len(reply) == 2 and reply[0] is True and isinstance(reply[1], list):
            return b"", [_result(lane_block, entry, self._device) for entry in reply[1]]
        return answer, None


class _Request:
    def __init__(self, lane: Lane, computation: Computation) -> None:
        self._lane = lane
        self.nbytes = HEADER_BYTES
        self.copies: list[tuple[int, Array]] = []
        self.new_blocks: list[Block] = []
        self.inputs = [self._input(array) for array in computation.inputs]
        self._into = computation.into
        self._places: list[tuple[int, Form]] = []
        self._targets: list[Array] = []
        self.outputs = self._outputs(computation)

    def results(self, lane_block: Block) -> Sequence[Array]:
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
            offset = self._reserve(prod(shape) * dtype.itemsize)
            self._places.append((offset, (shape, dtype)))
            specs.append((dtype_name(dtype), shape, LANE_BLOCK, offset))
        return specs

    def _place(self, array: Array) -> tuple[int, int]:
        place = place_of(array)
        if place is not None:
            block = place.block
            if self._lane.knows(block) or block in self.new_blocks:
                return block.number, place.offset
            if len(self.new_blocks) < MOST_DESCRIPTORS - 1:
                self.new_blocks.append(block)
                return block.number, place.offset
        return LANE_BLOCK, self._reserve(array.nbytes)

    def _reserve(self, nbytes: int) -> int:
        offset = self.nbytes
        self.nbytes += nbytes + -nbytes % ALIGNMENT
        return offset


def aligned_offsets(sizes: Iterable[int], start: int = 0) -> tuple[list[int], int]:
    """Return aligned offsets of consecutive buffers, and the end of the last."""
    *offsets, end = accumulate((size + -size % ALIGNMENT for size in sizes), initial=start)
    return offsets, end


def _result(block: Block, spec: Any, device: str) -> Array:
    if isinstance(spec, np.ndarray):
        return spec
    try:
        name, shape, offset = spec
        dtype = type_named(name)
        sizes = [size for size in shape if type(size) is int and size >= 0]
        fits = len(sizes) == len(shape) <= _MOST_RANK and type(offset) is int and offset >= HEADER_BYTES
        if not fits or offset + prod(sizes) * dtype.itemsize > block.nbytes:
            raise ValueError("the array is not within the shared memory")
        return block.array(offset, tuple(sizes), dtype).copy()
    except (TypeError, ValueError) as error:
        text = f"the process of device {device!r} returned an invalid result: {error}; report it to the vendor"
        raise DriverError(text) from error


def _checked_byte_count(nbytes: Any, device: str) -> int:
    if type(nbytes) is not int or nbytes < 0:
        raise DriverError(
            f"the process of device {device!r} requested {nbytes!r} bytes of memory, expected an integer of at least "
            "0; report it to the vendor"
        )
    return nbytes
