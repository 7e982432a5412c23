"""The other end of a lane, in the process of a device: it takes one message after the other, and answers.

What a driver raises is an answer. Inputs that lie in memory of the host's are mapped so that writing to them is a crash
here, and spoils nothing there.
"""

from __future__ import annotations

import mmap
import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from nnadapter.drivers.control import Control
from nnadapter.drivers.isolation.channel import Channel
from nnadapter.drivers.isolation.lane import HEADER_BYTES, OWN, Spec
from nnadapter.drivers.isolation.messages import read, type_named, written
from nnadapter.drivers.isolation.served import Served
from nnadapter.errors import FAILURES, CompilationError, ExecutionError, NNAdapterError, describe
from nnadapter.ir.operand import Array, dtype_name
from nnadapter.memory.buffers import ALIGNMENT
from nnadapter.memory.shared import mapped


class Seat:
    """See above; one thread's."""

    def __init__(self, channel: Channel, served: Served) -> None:
        self._channel, self._served = channel, served
        self._blocks: dict[int, tuple[mmap.mmap, mmap.mmap]] = {}
        """By number, what lies there to be read, and the same to be written to."""

    def answer(self) -> None:
        """Take a message, and answer it.

        Raises:
            OSError, EOFError: the other side is gone.
        """
        contents, descriptors = self._channel.receive_with_descriptors()
        message = pickle.loads(contents)
        if len(message) == 2:
            self._channel.send(_pickled(self._asked(message, descriptors)))
            return
        answer = self._computed(message, descriptors)
        self._channel.send(answer if isinstance(answer, bytes) else _pickled(answer))

    def _asked(self, message: tuple[bytes, Sequence[int]], descriptors: Sequence[int]) -> tuple[bool, Any]:
        contents, sizes = message
        try:
            command, arguments = read(contents, _pieces(sizes, descriptors))
            return True, self._served.call(command)(**arguments)
        except FAILURES as error:  # a driver may raise anything; the host is told
            return False, _told(error)

    def _computed(self, message: Sequence[Any], descriptors: Sequence[int]) -> Any:
        number, inputs, outputs, sizes, seconds, blocks, freed_blocks = message
        try:
            self._map(blocks, descriptors)
            for block_number in freed_blocks:
                self._blocks.pop(block_number, None)
            execution, call = self._served.execution(number)
            arrays = [self._array(spec, writable=False) for spec in inputs]
            into = None if outputs is None else [self._array(spec, writable=True) for spec in outputs]
            if sizes is not None:
                execution = call(execution.at, sizes)
            results = self._results(execution, call, arrays, into, seconds)
            if into is not None and _written(results, into):
                return b""
            return self._placed(results)
        except FAILURES as error:  # as above
            return False, _told(error)

    def _results(
        self,
        execution: Any,
        call: Callable[..., Any],
        arrays: Sequence[Array],
        into: Sequence[Array] | None,
        seconds: float | None,
    ) -> Sequence[Array]:
        if seconds is not None:
            lane_block = self._blocks[OWN][0]
            control = Control(deadline_seconds=seconds, cancelled=lambda: lane_block[0] != 0)
            results = call(execution.compute_within, arrays, control)
        elif into is not None:
            results = call(execution.compute_into, arrays, into)
        else:
            results = call(execution.compute, arrays)
        for position, result in enumerate(results):
            if type(result) is not np.ndarray:
                type_name = type(result).__name__
                raise ExecutionError(f"the driver gave {type_name} for output {position}, expected a numpy array")
        return results  # type: ignore[no-any-return]

    def _placed(self, results: Sequence[Array]) -> Any:
        """Results in the lane's own memory, and where they lie; more of it is asked for where it is too small."""
        specs: list[Any] = []
        nbytes = HEADER_BYTES
        for result in results:
            if result.dtype.hasobject:
                specs.append(result)
                continue
            specs.append((dtype_name(result.dtype), result.shape, nbytes))
            nbytes += -(-result.nbytes // ALIGNMENT) * ALIGNMENT
        if any(_overlaps(result, lane_array) for result in results for lane_array in self._own_arrays()):
            results = [np.array(result) for result in results]
        if OWN not in self._blocks or len(self._blocks[OWN][1]) < nbytes:
            self._channel.send(written(("more", nbytes)))
            contents, descriptors = self._channel.receive_with_descriptors()
            self._map(pickle.loads(contents), descriptors)
        for spec, result in zip(specs, results, strict=True):
            if isinstance(spec, tuple):
                name, shape, offset = spec
                np.copyto(np.ndarray(shape, type_named(name), self._blocks[OWN][1], offset), result)
        return True, specs

    def _own_arrays(self) -> list[Array]:
        return [np.frombuffer(block, np.uint8) for block in self._blocks.get(OWN, ())]

    def _array(self, spec: Spec, *, writable: bool) -> Array:
        if isinstance(spec, np.ndarray):
            return spec
        name, shape, number, offset = spec
        array: Array = np.ndarray(shape, type_named(name), self._blocks[number][writable], offset)
        array.setflags(write=writable)
        return array

    def _map(self, blocks: Sequence[tuple[int, int]], descriptors: Sequence[int]) -> None:
        for (number, nbytes), descriptor in zip(blocks, descriptors, strict=True):
            duplicate = os.dup(descriptor)
            to_write = mapped(descriptor, nbytes, writable=True)
            to_read = mapped(duplicate, nbytes, writable=False)
            # What the lane's own memory holds was copied for this driver alone: it may do with it what it likes.
            self._blocks[number] = to_write if number == OWN else to_read, to_write


def _pieces(sizes: Sequence[int], descriptors: Sequence[int]) -> list[memoryview]:
    """What stands beside a message: read-only, and mapped as long as somebody holds a piece."""
    if not descriptors:
        return []
    starts, total = [], 0
    for size in sizes:
        starts.append(total)
        total += -(-size // ALIGNMENT) * ALIGNMENT
    view = memoryview(mapped(descriptors[0], total, writable=False))
    return [view[start : start + size] for start, size in zip(starts, sizes, strict=True)]


def _written(results: Sequence[Array], into: Sequence[Array]) -> bool:
    """Whether all results are where they were asked for, after copying those that are elsewhere."""
    if results is into:
        return True
    forms = [(array.shape, array.dtype) for array in into]
    if [(result.shape, result.dtype) for result in results] != forms:
        return False
    pairs = zip(results, into, strict=True)
    sources = [each if each is target or not _overlaps_any(each, into) else np.array(each) for each, target in pairs]
    for result, target in zip(sources, into, strict=True):
        if result is not target:
            np.copyto(target, result)
    return True


def _overlaps_any(result: Array, arrays: Sequence[Array]) -> bool:
    return any(_overlaps(result, array) for array in arrays)


def _overlaps(result: Array, array: Array) -> bool:
    return np.may_share_memory(result, array)


def _pickled(answer: Any) -> bytes:
    try:
        return written(answer)
    except Exception as error:  # noqa: BLE001  what a driver made may not be something that can be sent
        message = f"the driver's answer cannot be sent: {type(error).__name__}: {error}"
        return written((False, ("DriverError", message, {})))


def _told(error: BaseException) -> tuple[str, str, Mapping[str, Any]]:
    """An error, in plain values: its class, its text in one line, and what else it holds."""
    fields = {"refused": error.refused} if isinstance(error, CompilationError) else {}
    kind, text = type(error).__name__, describe(error)
    return kind, text if isinstance(error, NNAdapterError) else text.removeprefix(f"{kind}: "), fields
