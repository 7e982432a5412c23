"""What tensors hold, in their device's own memory, for devices that have one.

A tensor's array is read-only, and so it and its copy on the device stay equal. The copy is made when the first
operation needs it; a result is made there, and its array is filled from it. When the array is gone it is freed by
the next operation.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnadapter.drivers.border import use_memory
from nnadapter.drivers.device_tensors import DeviceTensor, Memory
from nnadapter.drivers.interface import Device as DriverDevice
from nnadapter.drivers.kept_memory import OwnerBoundMemory
from nnadapter.drivers.registry import open_device
from nnadapter.ir.operand import PACKED, Array, freeze
from nnadapter.runtime.execution import Execution


class Residents:
    """Memory by device and array; safe to use from many threads."""

    def __init__(self) -> None:
        self._kept = OwnerBoundMemory()

    def __len__(self) -> int:
        """How many arrays have a copy on a device."""
        return len(self._kept)

    def compute(self, device: str, execution: Execution, inputs: Sequence[Array]) -> tuple[Array, ...] | None:
        """Run a program from memory of the device into memory of it; None, if it has none or its driver cannot.

        Raises:
            OutOfMemoryError: the device has no room.
            ExecutionError: it failed.
        """
        opened = open_device(device)
        self.free_gone()
        types = [operand.type for operand in (*execution.inputs, *execution.outputs)]
        if not opened.has_memory or any(type_.dtype in PACKED or not type_.size for type_ in types):
            return None
        computed = execution.compute_on_device(
            [DeviceTensor(self._of(device, opened, array), array.dtype, array.shape) for array in inputs]
        )
        if computed is None:
            return None
        memories = [tensor.memory for tensor in computed]
        try:
            arrays = [np.empty(tensor.shape, tensor.dtype) for tensor in computed]
            for memory, array in zip(memories, arrays, strict=True):
                use_memory(device, "copy_out", memory.copy_out, array)
            results = tuple(map(freeze, arrays))
            while memories:
                self._keep(device, results[len(memories) - 1], memories.pop())
            return results
        finally:
            for memory in memories:
                memory.free()

    def free_gone(self) -> None:
        """Free the copies of arrays that are gone."""
        self._kept.free_gone()

    def _of(self, device: str, opened: DriverDevice, array: Array) -> Memory:
        cached_memory = self._kept.find((device, id(array)), array)
        if cached_memory is not None:
            return cached_memory
        memory: Memory = use_memory(device, "allocate", opened.allocate, array.nbytes)
        try:
            use_memory(device, "copy_in", memory.copy_in, np.ascontiguousarray(array))
        except BaseException:
            memory.free()
            raise
        return self._keep(device, array, memory)

    def _keep(self, device: str, array: Array, memory: Memory) -> Memory:
        return self._kept.keep((device, id(array)), array, memory)


RESIDENTS = Residents()
"""Those of the process."""
