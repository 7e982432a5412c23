import numpy as np
import pytest

from nnadapter.drivers.arenas import ALIGNMENT, Arenas
from nnadapter.errors import OutOfMemoryError


def test_released_arena_is_reused() -> None:
    arenas = Arenas()
    with arenas.acquire(1000) as first:
        assert first.bytes.size >= 1000
        assert first.bytes.ctypes.data % ALIGNMENT == 0
    with arenas.acquire(10) as second:
        assert second is first


def test_arena_has_one_user_at_a_time() -> None:
    arenas = Arenas()
    with arenas.acquire(1000) as first, arenas.acquire(1000) as second:
        assert not np.shares_memory(first.bytes, second.bytes)


def test_reused_arena_has_one_user_at_a_time() -> None:
    arenas = Arenas()
    with arenas.acquire(1000) as first:
        pass
    with arenas.acquire(1000) as again, arenas.acquire(1000) as other:
        assert again is first
        assert not np.shares_memory(again.bytes, other.bytes)
        assert arenas.used_bytes == 0


def test_larger_arena_replaces_a_smaller_one() -> None:
    arenas = Arenas()
    with arenas.acquire(1000) as small:
        pass
    with arenas.acquire(small.bytes.size + 1) as large:
        assert large.bytes.size > small.bytes.size
    with arenas.acquire(1000) as again:
        assert again is large


@pytest.mark.parametrize("nbytes", [1 << 52, 1 << 62, 1 << 70])
def test_excessive_size_is_an_out_of_memory_error(nbytes: int) -> None:
    arenas = Arenas()
    with pytest.raises(OutOfMemoryError, match=r"bytes of working memory.*use smaller inputs"), arenas.acquire(nbytes):
        pass
