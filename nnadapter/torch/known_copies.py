"""Tensors of PyTorch of which a device has a copy: fed from there as long as they are what was copied, bit for bit.

PyTorch, numpy and whoever knows an address may write to a tensor, and not all of them tell. So nothing is concluded
from counters: beside the copy on the device stands one on the host, and the tensor is compared with it, whole, each
time that it is fed. What differs is copied anew. This reads memory of the host, at its speed, where a copy would pass a
bus. A copy is thus a guess at what a tensor may hold, found by its address, and never taken without a look. That makes
simple what else were not: a result that PyTorch is about to write into a parameter is noted for the parameter before.

Copied, and compared, is what comes again: parameters, results that are fed back, and a tensor that comes to the same
input of a session twice in a row. What differed a few times in a row is no longer kept. A copy goes with the tensor's
memory, and before that with its owner: a parameter, a tensor that a graph writes into, and for others an `Occurrence`,
of which a session has few. So what is kept is bounded by what a model and its graphs have, not by what they are fed.
What refers to owners and memory runs no Python when they go; devices free their memory when the next one asks for some.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from nnadapter.drivers.copies import Copies, can_lie_on_devices
from nnadapter.torch.arrays import Array

_MOST_MISSES = 4
"""How often in a row a tensor may differ before it is no longer kept."""
_BITS = {1: (torch.uint8, np.uint8), 2: (torch.int16, np.int16), 4: (torch.int32, np.int32), 8: (torch.int64, np.int64)}
"""By bytes of an element, as what it is compared: NaN is equal to itself, and 0 is not -0."""
_Key = tuple[int, torch.dtype, tuple[int, ...], tuple[int, ...]]
"""Address, data type, sizes, strides."""


class Occurrence:
    """A tensor at a place of a session, where it came or was made; a copy of it goes with this."""

    __slots__ = ("__weakref__", "_key", "_memory", "was_fed")

    def __init__(self, tensor: torch.Tensor) -> None:
        """Take a tensor, which this does not keep alive."""
        self._key, self._memory = _key(tensor), weakref.ref(tensor.untyped_storage())
        self.was_fed = False
        """The copy was."""

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether it is this tensor: the same piece of the same memory."""
        return self._key == _key(tensor) and self._memory() is tensor.untyped_storage()


@dataclass(eq=False, slots=True)
class Known:
    """What is known of a piece of memory that was fed."""

    memory: weakref.ref[Any]
    owner: weakref.ref[Any]
    """What this goes with."""
    copies: Copies | None = None
    """What it may hold, on the host and on devices."""
    missed: int = 0
    """How often in a row it held something else."""


class CopyCache:
    """What is known of tensors. Safe to use from several threads: who is late copies once more."""

    def __init__(self) -> None:
        self._known: dict[_Key, Known] = {}

    def __len__(self) -> int:
        """Of how many tensors there is a copy."""
        return sum(entry.copies is not None for entry in list(self._known.values()))

    def fed(self, tensor: torch.Tensor, array: Array, owner: object | None) -> Copies | None:
        """Return what a device may compute with in a tensor's place; None if it is not kept.

        Args:
            tensor: what is fed.
            array: the same, in the same memory.
            owner: what a copy goes with; None where it comes for the first time, and none is to be made.
        """
        if tensor.is_neg():  # what lies in memory is not what it holds
            return None
        key = _key(tensor)
        entry = self._of(key, tensor)
        copies = None if entry is None else entry.copies  # read once: another thread may note others meanwhile
        if entry is not None and copies is not None:
            if _are_equal(tensor, copies.host()):
                entry.missed = 0
                if type(occurrence := entry.owner()) is Occurrence:
                    occurrence.was_fed = True
                return copies
            entry.missed += 1
            entry.copies = None
        if owner is None or not can_lie_on_devices(array) or array.dtype.itemsize not in _BITS:
            return None
        if entry is None:
            entry = self._made(key, tensor, owner)
        if entry.missed >= _MOST_MISSES:
            return None
        entry.copies = copies = Copies(np.array(array, order="C"))
        return copies

    def note(self, tensor: torch.Tensor, copies: Copies, owner: object) -> None:
        """Note what a tensor holds, or is about to hold: of its data type and shape.

        Args:
            tensor: it.
            copies: what it holds.
            owner: what the copies go with.
        """
        key = _key(tensor)
        entry = self._of(key, tensor)
        if entry is None:
            entry = self._made(key, tensor, owner)
        elif entry.owner() is not owner:
            entry.owner = self._referred(key, owner)
        entry.copies = copies

    def _of(self, key: _Key, tensor: torch.Tensor) -> Known | None:
        entry = self._known.get(key)
        return entry if entry is not None and entry.memory() is tensor.untyped_storage() else None

    def _made(self, key: _Key, tensor: torch.Tensor, owner: object) -> Known:
        memory = tensor.untyped_storage()
        entry = self._known[key] = Known(self._referred(key, memory), self._referred(key, owner))
        return entry

    def _referred(self, key: _Key, referent: object) -> weakref.ref[Any]:
        return weakref.ref(referent, partial(self._known.pop, key))  # of C: a finalizer runs no Python

    def forget(self) -> None:
        """Let go of all copies: who needs them makes them again."""
        self._known.clear()

    def let_go(self, unused: Iterable[Copies]) -> None:
        """Let go of these copies."""
        unused_ids = set(map(id, unused))
        for key, entry in list(self._known.items()) if unused_ids else ():
            if id(entry.copies) in unused_ids:
                self._known.pop(key, None)


def _key(tensor: torch.Tensor) -> _Key:
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def _are_equal(tensor: torch.Tensor, array: Array) -> bool:
    if tensor.shape != array.shape or tensor.itemsize != array.dtype.itemsize:
        return False
    bits, array_bits = _BITS[array.dtype.itemsize]
    return bool(torch.equal(tensor.detach().view(bits), torch.from_numpy(array.view(array_bits))))


KNOWN = CopyCache()
"""Those of the process: models share weights, and a step of an optimizer reads what a backward graph made."""
