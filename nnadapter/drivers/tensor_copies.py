"""Copies of a tensor on the host and on devices, and device memory bound to the life of its owner.

Memory of devices that lives as long as something on the host does.

When that is gone the memory is freed by the next one who asks: what Python finalizes may be in the middle of anything,
a driver's call too, so no finalizer does it.

A tensor and the places where copies of it lie: the host's memory, devices, or both.

It never changes, so all copies are equal. A copy is made when somebody asks for one at a place that has none, once, and
noted: that is all that passes between host and devices while values stay where they are.
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
    """What the memory lives as long as."""

    memory: Memory
    key: Hashable


class OwnerBoundMemory:
    """Memory by key; safe to use from many threads."""

    def __init__(self) -> None:
        self._owners: dict[Hashable, _Owner] = {}
        self._gone: deque[_Owner] = deque()
        self._lock = new_lock()

    def __len__(self) -> int:
        """How many pieces are kept for somebody."""
        return len(self._owners) - len(self._gone)

    def find(self, key: Hashable, owner: object) -> Memory | None:
        """What is kept under a key for that owner."""
        owner_ref = self._owners.get(key)
        return owner_ref.memory if owner_ref is not None and owner_ref() is owner else None

    def add(self, key: Hashable, owner: object, memory: Memory) -> Memory:
        """Keep memory for its owner, unless it is kept already; what another thread kept under the key before."""
        owner_ref = _Owner(owner, self._gone.append)  # of C: it waits for no lock, and no interrupt comes into it
        owner_ref.memory, owner_ref.key = memory, key
        if self._gone:
            self.free_orphans()
        first = self._owners.setdefault(key, owner_ref)
        if first.memory is not memory:
            warn_of_failures(_freed(memory))
        return first.memory

    def free_orphans(self) -> None:
        """Free what nobody owns any more.

        Whoever comes next does so, and it is seldom whose memory it was: a driver that raises costs them nothing.
        """
        failures: list[str] = []
        while self._gone:
            with self._lock:
                if self._gone:
                    owner_ref = self._gone[0]
                    failures += _freed(owner_ref.memory)
                    del self._owners[owner_ref.key]
                    self._gone.popleft()
        warn_of_failures(failures)


def _freed(memory: Memory) -> Sequence[str]:
    """What freeing memory raised, in words."""
    return failures_of(memory.free, f"{type(memory).__name__}.free")


TENSORS = OwnerBoundMemory()
"""The memory of tensors on devices, in the process."""


def bind_to_owner(tensor: DeviceTensor) -> DeviceTensor:
    """The tensor itself, whose memory is freed some time after nobody has it any more."""
    TENSORS.add(id(tensor.memory), tensor, tensor.memory)
    return tensor


HOST = "host"
"""The place of what lies in the host's memory, in transfers."""
_PLAIN_KINDS = frozenset("biufc")
"""Kinds of numpy's own numbers; those of other packages are of kind V."""
_PACKED = frozenset(name for name, size in ITEMSIZE_OF_DTYPE.items() if 0 < size < 1)
"""Data types whose elements may share bytes on a device, and do not in numpy."""


class Transfer(NamedTuple):
    """A copy that was made of a value."""

    value: str
    source: str
    """The place that it came from: a device, or `HOST`."""
    target: str
    nbytes: int
    seconds: float


class Copies(FedTensor):
    """One tensor. Safe to use from many threads: two that ask for the same copy at once get the same one.

    Args:
        array: the tensor in the host's memory, which nobody writes to any more; None where it lies on devices alone.
        tensors: the tensor on devices, by their names.
        is_donated: nobody wants it after the run that is fed with it.
    """

    __slots__ = ("_array", "_tensors", "is_donated", "is_shared")

    def __init__(
        self, array: Array | None, tensors: Mapping[str, DeviceTensor] | None = None, *, is_donated: bool = False
    ) -> None:
        self._array, self.is_donated = array, is_donated
        self._tensors = dict(tensors or {})
        self.is_shared = False
        """Several values hold it: none of them gives it up."""
        tensor = array if array is not None else next(iter(self._tensors.values()))
        self.dtype = tensor.dtype
        self.shape = tensor.shape

    @property
    def nbytes(self) -> int:
        """Bytes of one copy."""
        return prod(self.shape) * self.dtype.itemsize

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that have a copy in memory of their own."""
        return tuple(self._tensors)

    @property
    def has_array(self) -> bool:
        """Whether there is a copy in the host's memory."""
        return self._array is not None

    def is_on(self, device: str) -> bool:
        """Whether a device has a copy in memory of its own."""
        return device in self._tensors

    def tensor_on(self, device: str) -> DeviceTensor | None:
        """The copy in a device's own memory, if there is one."""
        return self._tensors.get(device)

    def host(self, name: str = "", transfers: list[Transfer] | None = None) -> Array:
        """The tensor in the host's memory, not to be written to.

        Args:
            name: the value's, for what is noted.
            transfers: gets a transfer, if there is one.
        """
        if self._array is None:
            started = time.perf_counter()
            self._array = array = self.own_array()
            if transfers is not None:
                device = next(iter(self._tensors))
                transfers.append(Transfer(name, device, HOST, array.nbytes, time.perf_counter() - started))
        return self._array

    def without_array(self) -> Copies:
        """The same without its array, which somebody else may change: where it lies on devices, else a copy of it."""
        return Copies(None, self._tensors) if self._tensors else Copies(self.own_array())

    def donate(self, is_donated: bool = True) -> Copies:
        """The same for a run behind which nobody wants it, or somebody does."""
        return Copies(self._array, self._tensors, is_donated=is_donated)

    def own_array(self) -> Array:
        """The tensor in an array of the caller's own, which is not kept here.

        Raises:
            ExecutionError: the driver failed to copy it from its device.
        """
        if self._array is not None:
            return self._array.copy()
        array = np.empty(self.shape, self.dtype)
        device, tensor = next(iter(self._tensors.items()))
        use_memory(device, "copy_out", tensor.memory.copy_out, array)
        return array

    def on(self, device: str, name: str = "", transfers: list[Transfer] | None = None) -> DeviceTensor:
        """The tensor in a device's own memory, not to be written to.

        Raises:
            OutOfMemoryError: the device has no room.
            ExecutionError: its driver failed to copy it there.
            InvalidInputError: it cannot lie there, see `can_lie_on_devices`.
        """
        tensor = self._tensors.get(device)
        if tensor is not None:
            return tensor
        if not can_lie_on_devices(self):
            kind = f"{self.dtype}{list(self.shape)}"
            raise InvalidInputError(f"{kind} cannot lie in memory of {device!r}; keep it on the host")
        array = np.ascontiguousarray(self.host(name, transfers))
        TENSORS.free_orphans()
        started = time.perf_counter()
        memory: Memory = use_memory(device, "allocate", open_device(device).allocate, self.nbytes)
        try:
            use_memory(device, "copy_in", memory.copy_in, array)
        except BaseException:
            memory.free()
            raise
        tensor = self._tensors.setdefault(device, bind_to_owner(DeviceTensor(memory, self.dtype, self.shape)))
        if transfers is not None:
            transfers.append(Transfer(name, HOST, device, self.nbytes, time.perf_counter() - started))
        return tensor


def can_lie_on_devices(tensor: Any) -> bool:
    """Whether a tensor may lie in a device's own memory: it has bytes, each element has its own, and no references."""
    dtype = getattr(tensor, "dtype", None)
    if dtype is None or 0 in tensor.shape:
        return False
    return dtype.kind in _PLAIN_KINDS or (dtype.kind == "V" and dtype.name not in _PACKED)


def on_host(value: Any, name: str = "", transfers: list[Transfer] | None = None) -> Any:
    """A value as code that knows no devices takes it: a tensor as an array, others as they are."""
    return value.host(name, transfers) if type(value) is Copies else value
