"""What a driver computed, changed as faults say: arrays of the host's, and tensors in memory of the device."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any

import numpy as np

from nnadapter.drivers.device_tensors import DeviceTensor
from nnadapter.drivers.faulty.faults import Due
from nnadapter.drivers.faulty.kinds import Kind
from nnadapter.errors import FAILURES
from nnadapter.ir.operand import FLOATING, Array

_OTHER_KINDS = {"f": "i", "V": "u", "i": "u", "u": "i", "b": "u"}
"""Kinds of numpy's data types, and another one of the same size for each."""
_FLOATING = frozenset(each.value for each in FLOATING)


def changed(results: Sequence[Array], due: Sequence[Due]) -> list[Array]:
    """Return other results; those that may be written to are changed where they lie."""
    altered_results = list(results)
    for triggered_fault in due:
        if triggered_fault.fault.kind is Kind.WRONG_COUNT:
            altered_results = altered_results[:-1]
        elif triggered_fault.fault.kind in _CHANGES:
            altered_results = [
                _changed(triggered_fault, position, array) for position, array in enumerate(altered_results)
            ]
    return altered_results


def changed_on_device(results: Sequence[DeviceTensor], due: Sequence[Due]) -> list[DeviceTensor]:
    """Return other results, in the same memory."""
    arrays = changed([_copied(tensor) for tensor in results], due)
    for tensor in results[len(arrays) :]:
        tensor.memory.free()
    altered_tensors = []
    for tensor, array in zip(results, arrays, strict=False):
        tensor.memory.copy_in(np.ascontiguousarray(array).reshape(array.shape))
        altered_tensors.append(DeviceTensor(tensor.memory, array.dtype, array.shape))
    return altered_tensors


def written_to(inputs: Sequence[Array]) -> list[Array]:
    """Write to arrays, also to those that nobody may write to, and return what they held."""
    originals = [array.copy() for array in inputs]
    for array in inputs:
        _spoil(array)
    return originals


def written_to_on_device(inputs: Iterable[DeviceTensor]) -> None:
    """Write to tensors in memory of a device."""
    for tensor in inputs:
        array = _copied(tensor)
        _spoil(array)
        with suppress(*FAILURES):  # it may be freed by now
            tensor.memory.copy_in(array)


def _spoil(array: Array) -> None:
    if array.dtype.hasobject or not array.nbytes or not array.flags.c_contiguous:
        return
    address = array.ctypes.data
    contents = np.frombuffer(ctypes.string_at(address, array.nbytes), np.uint8)
    ctypes.memmove(address, (contents ^ 0xFF).tobytes(), array.nbytes)


def _copied(tensor: DeviceTensor) -> Array:
    array = np.empty(tensor.shape, tensor.dtype)
    tensor.memory.copy_out(array)
    return array


def _changed(due: Due, position: int, array: Array) -> Array:
    output_index = due.fault.output
    return array if output_index is not None and output_index != position else _CHANGES[due.fault.kind](due, array)


def _writable(array: Array) -> Array:
    return array if array.flags.writeable and array.flags.c_contiguous else array.copy()


def _with_axis(due: Due, array: Array) -> Array:
    return array[None]


def _as_others(due: Due, array: Array) -> Array:
    other: Any = _OTHER_KINDS.get(array.dtype.kind)
    if other is None:
        return np.zeros(array.shape, np.float32)
    return np.ascontiguousarray(array).reshape(array.shape).view(f"{other}{array.dtype.itemsize}")


def _no_numbers(due: Due, array: Array) -> Array:
    if array.dtype.name not in _FLOATING:
        return array
    array = _writable(array)
    array[...] = np.nan
    return array


def _flipped(due: Due, array: Array) -> Array:
    if array.dtype.hasobject or not array.nbytes:
        return array
    array = _writable(array)
    flat, random = array.reshape(-1).view(np.uint8), Random(due.draw)
    for bit in random.sample(range(flat.size * 8), min(due.fault.bits or 1, flat.size * 8)):
        flat[bit // 8] ^= 1 << bit % 8
    return array


_CHANGES = {
    Kind.WRONG_SHAPE: _with_axis,
    Kind.WRONG_DTYPE: _as_others,
    Kind.NAN: _no_numbers,
    Kind.FLIPPED_BITS: _flipped,
}


class RetainedOutputs:
    """Outputs that were given away, and are written to later all the same."""

    def __init__(self) -> None:
        self._kept: list[Any] = []

    def write(self) -> None:
        """Write to all that was kept, and let go of it."""
        writers, self._kept = self._kept, []
        for write in writers:
            write()

    def keep(self, results: Sequence[Array] | Sequence[DeviceTensor]) -> None:
        """Keep results."""
        for result in results:
            write = (
                partial(written_to_on_device, [result]) if isinstance(result, DeviceTensor) else partial(_spoil, result)
            )
            self._kept.append(write)
