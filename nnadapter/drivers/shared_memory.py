"""Shared memory: blocks that another process can map.

A block is a memfd, or an unlinked file on systems without memfd. It is freed with its last mapping. A memfd is sealed,
because reads beyond the end would kill this process if a peer could shrink it. In a forked child, blocks become
private, empty memory, so two processes never compute in one block.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
from bisect import bisect_right
from contextlib import suppress
from itertools import count
from typing import Any, NamedTuple, Self
from weakref import WeakValueDictionary, finalize

import numpy as np

from nnadapter.errors import OutOfMemoryError
from nnadapter.ir.operand import Array
from nnadapter.process.resources import register_after_fork

_numbers = count(1)


class Block(mmap.mmap):
    """Shared bytes, freed with the last reference to the block or its arrays.

    Raises:
        OutOfMemoryError: there is no memory.
    """

    descriptor: int
    number: int
    nbytes: int
    address: int

    def __new__(cls, nbytes: int) -> Self:
        rounded = max(-(-nbytes // mmap.PAGESIZE), 1) * mmap.PAGESIZE
        descriptor = -1
        try:
            descriptor = _descriptor(rounded)
            self = super().__new__(cls, descriptor, rounded)
        except (OSError, OverflowError, ValueError) as error:
            if descriptor >= 0:
                os.close(descriptor)
            raise OutOfMemoryError(
                f"cannot allocate {nbytes} bytes of shared memory; use smaller inputs, or close other programs"
            ) from error
        finalize(self, os.close, descriptor)
        self.descriptor, self.nbytes, self.number = descriptor, rounded, next(_numbers)
        self.address = int(np.frombuffer(self, np.uint8).__array_interface__["data"][0])
        _all[self.address] = self
        return self

    def array(self, offset: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        return np.ndarray(shape, dtype, self, offset)


class Place(NamedTuple):
    """Position in shared memory."""

    block: Block
    offset: int


_all: WeakValueDictionary[int, Block] = WeakValueDictionary()
_block_number_by_address: dict[int, int] = {}
_starts: list[list[int]] = [[]]
"""Sorted addresses of blocks; the inner list is never changed but replaced, so lookups need no lock."""


def shared_bytes(nbytes: int) -> Array:
    """Return new page-aligned shared bytes that `place_of` finds."""
    block = Block(nbytes)
    _block_number_by_address[block.address] = block.number
    finalize(block, _forget, block.address)
    _starts[0] = sorted(_block_number_by_address)
    return block.array(0, (nbytes,), np.dtype(np.uint8))


def place_of(array: Array) -> Place | None:
    """Return the position in shared memory; None for other memory and arrays with gaps."""
    starts = _starts[0]
    if not starts:
        return None
    address: int = array.__array_interface__["data"][0]
    position = bisect_right(starts, address) - 1
    block = _all.get(starts[position]) if position >= 0 else None
    if block is None or address + array.nbytes > block.address + block.nbytes or not array.flags.c_contiguous:
        return None
    return Place(block, address - block.address)


def mapped(descriptor: int, nbytes: int, *, writable: bool) -> mmap.mmap:
    """Map a block of another process by its descriptor, and close the descriptor."""
    try:
        if os.fstat(descriptor).st_size < nbytes:
            size = os.fstat(descriptor).st_size
            raise ValueError(f"a shared block has {size} bytes, expected at least {nbytes}")
        return mmap.mmap(descriptor, nbytes, prot=mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0))
    finally:
        os.close(descriptor)


def _descriptor(nbytes: int) -> int:
    if not hasattr(os, "memfd_create"):
        with tempfile.TemporaryFile() as file:
            file.truncate(nbytes)
            return os.dup(file.fileno())
    import fcntl

    descriptor = os.memfd_create("nnadapter", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, nbytes)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _forget(address: int) -> None:
    _block_number_by_address.pop(address, None)
    _starts[0] = sorted(_block_number_by_address)


def _make_private() -> None:
    """Replace the pages of blocks by private, empty pages; runs in a forked child."""
    _block_number_by_address.clear()
    _starts[0] = []
    with suppress(AttributeError, OSError):  # C library without these symbols: blocks stay shared
        place = ctypes.CDLL(None).mmap
        place.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
        place.restype = ctypes.c_void_p
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_FIXED
        for block in list(_all.values()):
            place(block.address, block.nbytes, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    _all.clear()


_MAP_FIXED = 0x10


class _Blocks:
    after_fork = staticmethod(_make_private)


_BLOCKS = _Blocks()
register_after_fork(_BLOCKS)
