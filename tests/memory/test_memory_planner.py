"""Properties of memory planning, compared with the optimum over all orders."""

from __future__ import annotations

from functools import partial
from itertools import permutations
from pathlib import Path

import numpy as np
import onnx.backend.test
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nnadapter as nna
from nnadapter.drivers import arenas
from nnadapter.drivers.arenas import ALIGNMENT, Buffer, neighbors, padded_sizes, place, place_by_time
from nnadapter.drivers.fake_npu import memory
from tests.models import ocr_paths
from tests.work import growth

LIKE_OTHERS = {"light_vgg19", "light_zfnet512"}
"""Larger variants of light_bvlc_alexnet."""
LIGHT = Path(onnx.backend.test.__file__).parent / "data" / "light"
OCR = ocr_paths()
OCR_SHAPES = {
    "det": [(1, 3, *size) for size in ((64, 64), (96, 448), (224, 224), (480, 640), (640, 96), (960, 960))],
    "rec": [(batch, 3, 48, width) for batch, width in ((1, 100), (1, 320), (1, 508), (1, 588), (1, 1000), (6, 320))],
    "cls": [(batch, 3, 48, 192) for batch in range(1, 7)],
}


def lives(most, largest=5000):
    return st.lists(
        st.builds(
            lambda nbytes, first, length: Buffer(nbytes, first, first + length),
            st.integers(0, largest),
            st.integers(0, 20),
            st.integers(0, 8),
        ),
        max_size=most,
    )


def together(one, other):
    return one.first <= other.last and other.first <= one.last


def check(buffers, offsets):
    for index, (buffer, offset) in enumerate(zip(buffers, offsets, strict=True)):
        assert offset % ALIGNMENT == 0
        for other, other_offset in zip(buffers[:index], offsets[:index], strict=True):
            overlap = offset < other_offset + other.nbytes and other_offset < offset + buffer.nbytes
            assert not (together(buffer, other) and overlap and buffer.nbytes and other.nbytes)


def smallest_arena(buffers):
    """Return the optimum, which some order reaches with every buffer at its lowest free offset."""
    sizes = padded_sizes(buffers)
    return min(map(arena_of, permutations(list(zip(buffers, sizes, strict=True)))))


def arena_of(sized):
    placed = []
    for buffer, size in sized:
        offset = 0
        for start, end, other in sorted(placed, key=lambda item: item[:2]):
            if together(buffer, other) and start - offset < size:
                offset = max(offset, end)
            elif together(buffer, other):
                break
        placed.append((offset, offset + size, buffer))
    return max((end for _, end, _ in placed), default=0)


@given(lives(40))
def test_buffers_alive_together_do_not_overlap(buffers):
    placement = place(buffers)
    check(buffers, placement.offsets)
    ends = [offset + buffer.nbytes for offset, buffer in zip(placement.offsets, buffers, strict=True)]
    assert max(ends, default=0) <= placement.arena_bytes
    bound = max(sum(buffer.nbytes for buffer in buffers if buffer.first <= step <= buffer.last) for step in range(30))
    assert bound <= placement.lower_bound_bytes <= placement.arena_bytes


@given(lives(40))
def test_buffers_placed_by_time_do_not_overlap(buffers):
    check(buffers, place_by_time(buffers, padded_sizes(buffers)))


@pytest.mark.parametrize(
    "rows",
    [
        [(16, step, step + 1) for step in range(20)],
        [(16, 0, 0), (32, 1, 1)],
        [(32, 0, 0), (16, 1, 1), (16, 1, 1), (32, 2, 2), (16, 3, 3), (16, 3, 4), (16, 4, 4)],
        [(16, 0, 1), (16, 0, 0), (32, 2, 2)],
        [(64, 0, 0), (48, 0, 3), (32, 0, 0), (16, 0, 3), (32, 1, 3), (64, 2, 3)],
    ],
    ids=["turns", "grown", "split and joined", "joined with the next", "tightest"],
)
def test_placing_by_time_reuses_free_memory(rows):
    """For these rows, an allocator that reuses free memory reaches the lower bound."""
    buffers = [Buffer(64 * size, first, last) for size, first, last in rows]
    offsets = place_by_time(buffers, padded_sizes(buffers))
    check(buffers, offsets)
    at_once = max(sum(each.nbytes for each in buffers if each.first <= step <= each.last) for step in range(30))
    assert max(offset + buffer.nbytes for offset, buffer in zip(offsets, buffers, strict=True)) == at_once


@given(lives(20))
def test_neighbors_are_those_alive_together(buffers):
    expected = [
        {other for other in range(len(buffers)) if other != index and together(buffers[index], buffers[other])}
        for index in range(len(buffers))
    ]
    assert [set(found) for found in neighbors(buffers)] == expected
    assert sum(map(len, expected)) // 2 <= arenas._pairs(buffers)


@given(lives(5, 500))
def test_arena_is_between_optimum_and_lower_bound(buffers):
    placement = place(buffers)
    assert placement.lower_bound_bytes <= smallest_arena(buffers) <= placement.arena_bytes


def test_optimum_is_nearly_always_found():
    generator = np.random.default_rng(0)
    found = 0
    for _ in range(200):
        rows = generator.integers([1, 0, 0], [9, 7, 4], (5, 3)).tolist()
        buffers = [Buffer(64 * size, first, first + length) for size, first, length in rows]
        found += place(buffers).arena_bytes == smallest_arena(buffers)
    assert found >= 198


def test_a_chain_needs_two_buffers():
    placement = place([Buffer(1000, step, step + 1) for step in range(100)])
    assert placement.arena_bytes == placement.lower_bound_bytes == 2048


def test_1200_overlapping_buffers_lie_in_the_arena():
    buffers = [Buffer(64 * (1 + index % 3), 0, 1) for index in range(1200)]
    placement = place(buffers)
    ends = [offset + buffer.nbytes for offset, buffer in zip(placement.offsets, buffers, strict=True)]
    assert max(ends) == placement.arena_bytes == placement.lower_bound_bytes == 64 * 2400


def test_gaps_of_heuristic_orders_are_repaired():
    rows = [(2, 5, 5), (4, 2, 3), (3, 4, 7), (3, 3, 5)]  # the first three heuristic orders all leave a gap
    buffers = [Buffer(64 * size, first, last) for size, first, last in rows]
    sizes = padded_sizes(buffers)
    tries = [arena for _, arena in arenas._tries(buffers, sizes, arenas.alive(buffers, sizes), 16)]
    assert min(tries[:3]) > place(buffers).lower_bound_bytes == place(buffers).arena_bytes


@pytest.mark.sweep
@pytest.mark.parametrize(
    "buffers",
    [
        lambda count: [Buffer(1000 + step % 7, step, step + 1 + step % 5) for step in range(count)],
        lambda count: [Buffer(1000 * (1 + step * 7919 % 97), step, step + 40 + step % 20) for step in range(count)],
        lambda count: [Buffer(100, step, count) for step in range(count)],
    ],
    ids=["chain", "mixed", "all at the end"],
)
def test_many_buffers_are_placed_with_linear_work(buffers):
    assert growth(lambda count: partial(place, buffers(count)), 2500) < 12


@pytest.mark.sweep
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=pytest.mark.sweep if path.stem in LIKE_OTHERS else ())
        for path in [*OCR, *sorted(LIGHT.glob("*.onnx"))]
    ],
    ids=lambda path: path.stem,
)
def test_networks_stay_near_the_lower_bound(path):
    shapes = next((shapes for kind, shapes in OCR_SHAPES.items() if path in OCR and kind in path.stem), [None])
    for shape in shapes:
        report = nna.partition_report(path, "fake_npu", shape and {"x": shape})
        assert all(0 <= segment.facts["arena_over_bound_percent"] <= 10 for segment in report.segments)


@pytest.mark.parametrize(("arena", "bound", "percent"), [(110, 100, 10), (100, 100, 0), (0, 0, 0)])
def test_percentage_above_the_bound(arena, bound, percent):
    assert memory.MemoryPlan((), arena, bound).arena_over_bound_percent == percent
