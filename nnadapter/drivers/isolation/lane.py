"""A channel to a device's process with memory that both see, for one question or computation at a time.

A computation is a message of some hundred bytes: where its tensors lie, by blocks and offsets. What lies in a block
already stays there; the others are copied into the lane's own memory once, and results are copied out of it once. The
first byte of that memory says that nobody wants the results any more.

What the other process says of places is held against the memory that there is.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any
from weakref import ReferenceType, ref

import numpy as np

from nnadapter.drivers.control import UNLIMITED, Control
from nnadapter.drivers.isolation.channel import MOST_DESCRIPTORS, Channel
from nnadapter.drivers.isolation.messages import read_answer, type_named
from nnadapter.errors import DriverError
from nnadapter.ir.operand import Array, dtype_name
from nnadapter.memory.buffers import ALIGNMENT
from nnadapter.memory.shared import Block, place_of

HEADER_BYTES = ALIGNMENT
"""Before the first tensor of a lane's memory."""
OWN = 0
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
    """See `Execution.at`; None where it is told none."""
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
            return self._said((contents, sizes), (), end), None
        offsets, total = _offsets(sizes)
        block = Block(total)
        for view, offset in zip(aside, offsets, strict=True):
            block[offset : offset + view.nbytes] = view
        return self._said((contents, sizes), (block.descriptor,), end), None

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
            ((OWN, lane_block), *((each.number, each) for each in shared))
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
        answer = self._said(message, [block.descriptor for _, block in blocks], end, control)
        for _, block in blocks:
            self._known[block.number] = ref(block)
        for number in freed_blocks:
            del self._known[number]
        return self._taken(answer, lane_block, request, end, control)

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

    def _said(self, message: object, descriptors: Sequence[int], end: float, control: Control = UNLIMITED) -> bytes:
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

    def _taken(
        self, answer: bytes, lane_block: Block, request: _Request, end: float, control: Control
    ) -> tuple[bytes, Any]:
        if not answer:  # it has written what it was asked for to where it was asked to
            return answer, request.results(lane_block)
        reply = read_answer(answer, self._device)
        if isinstance(reply, tuple) and len(reply) == 2 and reply[0] == "more":
            self.is_talking = True  # it waits for that room
            lane_block = self._with_room(_whole(reply[1], self._device))
            message = [(OWN, lane_block.nbytes)]
            answer = self._said(message, (lane_block.descriptor,), end, control)
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
        if block == OWN:
            self.copies.append((offset, array))
        return dtype_name(array.dtype), array.shape, block, offset

    def _outputs(self, computation: Computation) -> list[Spec] | None:
        specs: list[Spec] = []
        for array in computation.into:
            block, offset = self._place(array)
            if block == OWN:
                self._targets.append(array)
                self._places.append((offset, (array.shape, array.dtype)))
            specs.append((dtype_name(array.dtype), array.shape, block, offset))
        if specs or computation.forms is None:
            return specs or None
        for shape, dtype in computation.forms:
            offset = self._room(prod(shape) * dtype.itemsize)
            self._places.append((offset, (shape, dtype)))
            specs.append((dtype_name(dtype), shape, OWN, offset))
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
        return OWN, self._room(array.nbytes)

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


def _whole(nbytes: Any, device: str) -> int:
    if type(nbytes) is not int or nbytes < 0:
        raise DriverError(f"the process of device {device!r} asked for {nbytes!r} bytes of memory")
    return nbytes
