"""Memory of devices that lives as long as something on the host does.

When that is gone the memory is freed by the next one who asks: what Python finalizes may be in the middle of anything,
a driver's call too, so no finalizer does it.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Hashable, Sequence

from nnadapter.drivers.device_tensors import DeviceTensor, Memory
from nnadapter.process.closing import failures_of, warn_of_failures
from nnadapter.process.forking import new_lock


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

    def keep(self, key: Hashable, owner: object, memory: Memory) -> Memory:
        """Keep memory for its owner, unless it is kept already; what another thread kept under the key before."""
        owner_ref = _Owner(owner, self._gone.append)  # of C: it waits for no lock, and no interrupt comes into it
        owner_ref.memory, owner_ref.key = memory, key
        if self._gone:
            self.free_gone()
        first = self._owners.setdefault(key, owner_ref)
        if first.memory is not memory:
            warn_of_failures(_freed(memory))
        return first.memory

    def free_gone(self) -> None:
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


def kept(tensor: DeviceTensor) -> DeviceTensor:
    """The tensor itself, whose memory is freed some time after nobody has it any more."""
    TENSORS.keep(id(tensor.memory), tensor, tensor.memory)
    return tensor
