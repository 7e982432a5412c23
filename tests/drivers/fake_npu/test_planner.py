"""Laws of memory planning."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnadapter.drivers.fake_npu import planner
from nnadapter.drivers.fake_npu.planner import ALIGNMENT, Buffer, place

BUFFERS = st.lists(
    st.builds(
        lambda nbytes, first, length: Buffer(nbytes, first, first + length),
        st.integers(0, 5000),
        st.integers(0, 20),
        st.integers(0, 8),
    ),
    max_size=40,
)


def check(buffers, offsets):
    for index, (buffer, offset) in enumerate(zip(buffers, offsets, strict=True)):
        assert offset % ALIGNMENT == 0
        for other, other_offset in zip(buffers[:index], offsets[:index], strict=True):
            alive_together = buffer.first <= other.last and other.first <= buffer.last
            overlap = offset < other_offset + other.nbytes and other_offset < offset + buffer.nbytes
            assert not (alive_together and overlap and buffer.nbytes and other.nbytes)


@given(BUFFERS)
@settings(max_examples=200, deadline=None)
def test_buffers_alive_together_do_not_overlap(buffers):
    placement = place(buffers)
    check(buffers, placement.offsets)
    ends = [offset + buffer.nbytes for offset, buffer in zip(placement.offsets, buffers, strict=True)]
    assert max(ends, default=0) <= placement.arena_bytes
    steps = range(30)
    bound = max(sum(buffer.nbytes for buffer in buffers if buffer.first <= step <= buffer.last) for step in steps)
    assert bound <= placement.lower_bound_bytes <= placement.arena_bytes


@pytest.mark.parametrize("strategy", ["_by_time", "_by_size"])
@given(buffers=BUFFERS)
@settings(max_examples=100, deadline=None)
def test_both_ways_are_right(strategy, buffers):
    sizes = [-(-buffer.nbytes // ALIGNMENT) * ALIGNMENT for buffer in buffers]
    check(buffers, getattr(planner, strategy)(buffers, sizes))


def test_a_chain_needs_two_buffers():
    placement = place([Buffer(1000, step, step + 1) for step in range(100)])
    assert placement.arena_bytes == placement.lower_bound_bytes == 2048


def test_many_buffers_are_placed_quickly():
    chain = [Buffer(1000 + step % 7, step, step + 1 + step % 5) for step in range(20000)]
    started = time.perf_counter()
    place(chain)
    place([Buffer(100, step, 20000) for step in range(20000)])
    assert time.perf_counter() - started < 5
