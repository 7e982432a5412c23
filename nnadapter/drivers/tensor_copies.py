"""Copies of one tensor on the host and on devices, and device memory bound to an owner.

A tensor never changes; a copy is made once, when a place first needs it. Memory of a dead owner is freed by the next
`add` or `free_orphans`, because a finalizer may run inside a driver call.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from nnadapter.drivers.boundary import use_memory
from nnadapter.drivers.interface import DeviceTensor, Memory
from nnadapter.drivers.registry import open_device
from nnadapter.errors import InvalidInputError
from nnadapter.ir.operand import Array
from nnadapter.onnx.signature import FedTensor
from nnadapter.process.resources import failures_of, new_lock, warn_of_failures
from partition.graph import ITEMSIZE_OF_DTYPE


class _Owner(weakref.ref[object]):
    memory: Memory
    key: Hashable


class OwnerBoundMemory:
    """Device memory by key, freed after the key's owner object is collected. Thread-safe."""

    def __init__(self) -> None:
        self._owners: dict[Hashable, _Owner] = {}
        self._dead_owners: deque[_Owner] = deque()
        self._lock = new_lock()

    def __len__(self) -> int:
        return len(self._owners) - len(self._dead_owners)

    def find(self, key: Hashable, owner: object) -> Memory | None:
        owner_ref = self._owners.get(key)
        return owner_ref.memory if owner_ref is not None and owner_ref() is owner else None

    def add(self, key: Hashable, owner: object, memory: Memory) -> Memory:
        """Store `memory`, or free it if another thread stored memory for `key` first; return the stored memory."""
        owner_ref = _Owner(owner, self._dead_owners.append)  # C callback: no lock, no interrupt
        owner_ref.memory, owner_ref.key = memory, key
        if self._dead_owners:
            self.free_orphans()
        first = self._owners.setdefault(key, owner_ref)
        if first.memory is not memory:
            warn_of_failures(_freed(memory))
        return first.memory

    def free_orphans(self) -> None:
        """Free the memory of dead owners. Failures become warnings, since the caller is seldom to blame."""
        failures: list[str] = []
        while self._dead_owners:
            with self._lock:
                if self._dead_owners:
                    owner_ref = self._dead_owners[0]
                    failures += _freed(owner_ref.memory)
                    del self._owners[owner_ref.key]
                    self._dead_owners.popleft()
        warn_of_failures(failures)


def _freed(memory: Memory) -> Sequence[str]:
    return failures_of(memory.free, f"{type(memory).__name__}.free")


TENSORS = OwnerBoundMemory()
"""Memory of all device tensors of the process."""


def bind_to_owner(tensor: DeviceTensor) -> DeviceTensor:
    """Free the memory of a tensor after the last reference to the tensor; return the tensor."""
    TENSORS.add(id(tensor.memory), tensor, tensor.memory)
    return tensor


HOST = "host"
_PLAIN_KINDS = frozenset("biufc")
"""dtype kinds of numpy's own numbers; extension types have the kind V."""
_PACKED = frozenset(name for name, size in ITEMSIZE_OF_DTYPE.items() if 0 < size < 1)
"""Data types that devices pack into bytes and numpy does not."""


class Transfer(NamedTuple):
    """One recorded copy of a value."""

    value: str
    source: str
    target: str
    nbytes: int
    seconds: float


class Copies(FedTensor):
    """Tensor with copies on the host and on devices. Thread-safe: concurrent requests get the same copy.

    Args:
        array: the host copy, which nothing writes to any more; None if only devices have a copy.
        tensors: device copies by device name.
        is_donated: the tensor is fed to one run, and is not needed after it.
    """

    __slots__ = ("_array", "_tensors", "is_donated", "is_shared")

    def __init__(
        self, array: Array | None, tensors: Mapping[str, DeviceTensor] | None = None, *, is_donated: bool = False
    ) -> None:
        self._array, self.is_donated = array, is_donated
        self._tensors = dict(tensors or {})
        self.is_shared = False
        """True if several values share the tensor, which therefore cannot be donated."""
        tensor = array if array is not None else next(iter(self._tensors.values()))
        self.dtype = tensor.dtype
        self.shape = tensor.shape

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(self._tensors)

    @property
    def has_array(self) -> bool:
        return self._array is not None

    def is_on(self, device: str) -> bool:
        return device in self._tensors

    def tensor_on(self, device: str) -> DeviceTensor | None:
        return self._tensors.get(device)

    def host(self, name: str = "", transfers: list[Transfer] | None = None) -> Array:
        if self._array is None:
            started = time.perf_counter()
            self._array = array = self.own_array()
            if transfers is not None:
                device = next(iter(self._tensors))
                transfers.append(Transfer(name, device, HOST, array.nbytes, time.perf_counter() - started))
        return self._array

    def without_array(self) -> Copies:
        return Copies(None, self._tensors) if self._tensors else Copies(self.own_array())

    def donate(self, is_donated: bool = True) -> Copies:
        return Copies(self._array, self._tensors, is_donated=is_donated)

    def own_array(self) -> Array:
        if self._array is not None:
            return self._array.copy()
        array = np.empty(self.shape, self.dtype)
        device, tensor = next(iter(self._tensors.items()))
        use_memory(device, "copy_out", tensor.memory.copy_out, array)
        return array

    def on(self, device: str, name: str = "", transfers: list[Transfer] | None = None) -> DeviceTensor:
        """Return the read-only device copy; create and record it if missing.

        Raises:
            OutOfMemoryError: the device is full.
            ExecutionError: the driver failed to copy.
            InvalidInputError: devices cannot store the tensor.
        """
        tensor = self._tensors.get(device)
        if tensor is not None:
            return tensor
        if not can_lie_on_devices(self):
            kind = f"{self.dtype}{list(self.shape)}"
            raise InvalidInputError(f"device {device!r} cannot store {kind}; keep it on the host")
        array = np.ascontiguousarray(self.host(name, transfers))
        TENSORS.free_orphans()
        started = time.perf_counter()
        memory = copied_to_device(device, array)
        tensor = self._tensors.setdefault(device, bind_to_owner(DeviceTensor(memory, self.dtype, self.shape)))
        if transfers is not None:
            transfers.append(Transfer(name, HOST, device, self.nbytes, time.perf_counter() - started))
        return tensor


def copied_to_device(device: str, array: Array) -> Memory:
    """Return new memory of a device with a copy of a contiguous array."""
    memory: Memory = use_memory(device, "allocate", open_device(device).allocate, array.nbytes)
    try:
        use_memory(device, "copy_in", memory.copy_in, array)
    except BaseException:
        memory.free()
        raise
    return memory


def can_lie_on_devices(tensor: Any) -> bool:
    """Return whether devices can store a tensor: not empty, no objects, no packed elements."""
    dtype = getattr(tensor, "dtype", None)
    if dtype is None or 0 in tensor.shape:
        return False
    return dtype.kind in _PLAIN_KINDS or (dtype.kind == "V" and dtype.name not in _PACKED)


def on_host(value: Any, name: str = "", transfers: list[Transfer] | None = None) -> Any:
    """Return a tensor as host array; other values unchanged."""
    return value.host(name, transfers) if type(value) is Copies else value
