"""What tensors hold, in their device's own memory, for devices that have one.

A tensor's array is read-only, and so it and its copy on the device stay equal. The copy is made when the first
operation needs it; a result is made there, and its array is filled from it. When the array is gone it is freed by
the next operation: what Python finalizes may be in the middle of anything, a driver's call too.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Sequence

import numpy as np

from nnadapter.drivers.interface import Device, Memory
from nnadapter.drivers.registry import open_device
from nnadapter.ir.operand import Array, DataType, freeze
from nnadapter.runtime.execution import Execution

_PACKED = frozenset({DataType.INT4, DataType.UINT4})
"""Data types whose elements share bytes on a device, and not in numpy."""


class _Copy(weakref.ref[Array]):
    """An array, and its copy on a device."""

    memory: Memory
    key: tuple[str, int]


class Residents:
    """Memory by device and array; safe to use from many threads."""

    def __init__(self) -> None:
        self._copies: dict[tuple[str, int], _Copy] = {}
        self._gone: deque[_Copy] = deque()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """How many arrays have a copy on a device."""
        return len(self._copies) - len(self._gone)

    def compute(self, device: str, execution: Execution, inputs: Sequence[Array]) -> tuple[Array, ...] | None:
        """Run a program from memory of the device into memory of it; None, if it has none or its driver cannot.

        Raises:
            OutOfMemoryError: the device has no room.
            ExecutionError: it failed.
        """
        opened = open_device(device)
        self.free_gone()
        types = [operand.type for operand in (*execution.inputs, *execution.outputs)]
        if not opened.has_memory or any(type_.dtype in _PACKED or not type_.size for type_ in types):
            return None
        input_memories = [self._of(device, opened, array) for array in inputs]
        made = [opened.allocate(operand.type.nbytes) for operand in execution.outputs]
        try:
            if not execution.compute_on_device(input_memories, made):
                return None
            arrays = [np.empty(each.type.dimensions, each.type.dtype.array_type) for each in execution.outputs]
            for memory, array in zip(made, arrays, strict=True):
                memory.copy_out(array)
            results = tuple(map(freeze, arrays))
            while made:
                self._keep(device, results[len(made) - 1], made.pop())
            return results
        finally:
            for memory in made:
                memory.free()

    def _of(self, device: str, opened: Device, array: Array) -> Memory:
        known = self._copies.get((device, id(array)))
        if known is not None and known() is array:
            return known.memory
        memory = opened.allocate(array.nbytes)
        memory.copy_in(np.ascontiguousarray(array))
        return self._keep(device, array, memory)

    def _keep(self, device: str, array: Array, memory: Memory) -> Memory:
        copy = _Copy(array, self._gone.append)  # of C: it waits for no lock, and no interrupt comes into it
        copy.memory, copy.key = memory, (device, id(array))
        self.free_gone()
        kept = self._copies.setdefault(copy.key, copy)
        if kept is not copy:
            memory.free()  # another thread was first
        return kept.memory

    def free_gone(self) -> None:
        """Free the copies of arrays that are gone."""
        while self._gone:
            with self._lock:
                if self._gone:
                    gone = self._gone[0]
                    gone.memory.free()
                    del self._copies[gone.key]
                    self._gone.popleft()


RESIDENTS = Residents()
"""Those of the process."""
