"""Memory shared between processes: array offsets, and visibility of writes."""

from __future__ import annotations

import ctypes
import mmap
import os
import warnings

import numpy as np
import pytest

from nnadapter.drivers.arenas import Arenas
from nnadapter.drivers.shared_memory import mapped, place_of, shared_bytes


def beyond_the_end(array: np.ndarray, nbytes: int) -> np.ndarray:
    """Return the last `nbytes` bytes and as many after them, without reading."""
    address = array.ctypes.data + -(-array.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE - nbytes
    return np.frombuffer((ctypes.c_byte * (2 * nbytes)).from_address(address), np.uint8)


def test_place_of_an_array_within_a_block() -> None:
    first, second = shared_bytes(1000), shared_bytes(3 * mmap.PAGESIZE)
    for whole in (first, second):
        start = place_of(whole)
        assert start is not None and start.offset == 0 and start.block.address == whole.ctypes.data
        for part in (whole[8:], whole[-4:], whole[100:200].view(np.float32).reshape(5, 5)):
            assert place_of(part) == (start.block, part.ctypes.data - whole.ctypes.data)


def test_noncontiguous_and_foreign_arrays_have_no_place() -> None:
    whole = shared_bytes(mmap.PAGESIZE)
    for array in (np.zeros(4), whole[::2], beyond_the_end(whole, 8)):
        assert place_of(array) is None


def test_unreferenced_block_is_closed() -> None:
    whole = shared_bytes(1000)
    place = place_of(whole)
    assert place is not None
    descriptor = place.block.descriptor
    del whole, place
    with pytest.raises(OSError):
        os.fstat(descriptor)


@pytest.mark.parametrize("system", ["its own", "without memfd"])
def test_writes_are_visible_in_another_mapping(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if system == "without memfd":
        monkeypatch.delattr(os, "memfd_create", raising=False)
    with Arenas(shared=True).acquire(1000) as arena:
        place = place_of(arena.bytes)
        assert place is not None
        theirs = mapped(os.dup(place.block.descriptor), 1000, writable=False)
        arena.bytes[:3] = 1, 2, 3
        assert theirs[:3] == b"\1\2\3"
        with pytest.raises(TypeError):
            theirs[0] = 1
        mapped(os.dup(place.block.descriptor), 1000, writable=True)[:2] = b"\7\10"
        assert arena.bytes[:3].tolist() == [7, 8, 3]


def test_descriptor_with_too_few_bytes_is_not_mapped() -> None:
    place = place_of(shared_bytes(mmap.PAGESIZE))
    assert place is not None
    descriptor = os.dup(place.block.descriptor)
    with pytest.raises(ValueError, match=f"has {mmap.PAGESIZE} bytes, expected at least {mmap.PAGESIZE + 1}"):
        mapped(descriptor, mmap.PAGESIZE + 1, writable=False)
    with pytest.raises(OSError):  # closed nevertheless
        os.fstat(descriptor)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_process_does_not_share_the_memory() -> None:
    whole = shared_bytes(1000)
    whole[:] = 5
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks while threads run
        child = os.fork()
    if not child:
        try:
            is_apart = place_of(whole) is None and not whole.any()
            whole[:] = 7
            os._exit(0 if is_apart else 2)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert (whole == 5).all()
