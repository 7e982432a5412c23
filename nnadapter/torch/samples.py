"""Whether memory is what it was: some of its words, of many tensors, read in one go.

PyTorch does not count changes through `parameter.data`, through `parameter.numpy()` or by batch normalization. They are
seen by the bytes: of small tensors all of them, of everything else a few, spread evenly. What changes a tensor as a
whole changes those; a change of single elements of a large one may be missed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

Array = np.ndarray[Any, Any]

_WHOLE_BUFFER = 2**16
"""Bytes up to which a buffer is compared as a whole: batch normalization of 16384 channels."""
_WHOLE_PARAMETER = 2**14
"""Bytes up to which a parameter is: a bias of 4096 classes. There are many, and they are read in each call."""
_WORD = 4
_IN_ALL, _LEAST, _MOST = 2048, 4, 64
"""How many words of tensors that are not compared as a whole are read: of all together, and of one."""


@dataclass(frozen=True, slots=True)
class Samples:
    """Words of some tensors' memory, as they were."""

    memory: Array
    """uint32[N]: all memory between the first and the last of the tensors, most of which is not theirs."""
    places: Array
    """int64[M]: the words in it that are read."""
    bounds: tuple[int, ...]
    """Where the words of each tensor begin among these, and the end."""
    words: bytes
    """What they were."""

    def hold(self) -> bool:
        """Whether they are what they were; the tensors must be alive and where they were."""
        return self.memory.take(self.places).tobytes() == self.words

    def changed(self) -> list[int]:
        """Which tensors have others."""
        was, current = np.frombuffer(self.words, np.uint32), self.memory.take(self.places)
        differ = np.flatnonzero(was != current)
        return sorted(set((np.searchsorted(self.bounds, differ, "right") - 1).tolist()))


def samples_of(tensors: Sequence[Any]) -> Samples:
    """Return what some words of tensors are now; of those whose memory has gaps or is not the host's, none are read."""
    dense = [tensor if _is_dense(tensor) else None for tensor in tensors]
    share = min(_MOST, max(_LEAST, _IN_ALL // max(len(tensors), 1)))
    words = [np.empty(0, np.int64) if tensor is None else _words(tensor, share) for tensor in dense]
    addresses = np.concatenate([np.empty(0, np.int64), *words])
    lowest = int(addresses.min()) if len(addresses) else 0
    memory = _memory_words(lowest, (int(addresses.max()) - lowest) // _WORD + 1 if len(addresses) else 0)
    places = (addresses - lowest) // _WORD
    bounds = np.cumsum([0, *map(len, words)])
    return Samples(memory, places, tuple(bounds.tolist()), memory.take(places).tobytes())


def _is_dense(tensor: Any) -> bool:
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or not tensor.nbytes:
        return False
    axes = sorted(range(tensor.dim()), key=lambda axis: -tensor.stride(axis))
    return bool(tensor.permute(axes).is_contiguous())


def _words(tensor: Any, share: int) -> Array:
    """Addresses int64[N] of the words of a tensor that are read; the outer ones may hold bytes beside it."""
    start, size = tensor.data_ptr(), tensor.nbytes
    first, last = start // _WORD, -(-(start + size) // _WORD)
    is_whole = size <= (_WHOLE_PARAMETER if isinstance(tensor, torch.nn.Parameter) else _WHOLE_BUFFER)
    count = last - first if is_whole else min(share, last - first)
    return np.unique(np.linspace(first, last - 1, count).astype(np.int64)) * _WORD


class _Memory:
    """Memory of the process as numpy takes it."""

    def __init__(self, address: int, count: int) -> None:
        self.__array_interface__ = {"data": (address, True), "shape": (count,), "typestr": "<u4", "version": 3}


def _memory_words(address: int, count: int) -> Array:
    return np.asarray(_Memory(address, count)) if count else np.empty(0, np.uint32)
