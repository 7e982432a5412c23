"""Copies by runs against numpy's own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnadapter.drivers.fake_npu.kernels.copying import bind_copies, bind_copy


@st.composite
def pieces(draw):
    """A transposed and sliced view of a larger array."""
    rank = draw(st.integers(1, 4))
    dtype = draw(st.sampled_from(["bool", "int8", "float32", "int64"]))
    sizes = [draw(st.sampled_from([0, 1, 2, 3, 7, 20])) for _ in range(rank)]
    steps = [draw(st.sampled_from([1, 1, 2, -1])) for _ in range(rank)]
    whole = np.random.default_rng(0).integers(0, 2, [2 * size + 1 for size in sizes]).astype(dtype)
    view = whole[tuple(slice(None, None, step) for step in steps)][tuple(slice(size) for size in sizes)]
    return view.transpose(draw(st.permutations(range(rank))))


@given(pieces(), st.data())
def test_every_element_is_copied_and_no_other(source, data):
    margin = data.draw(st.sampled_from([0, 1]))
    target = np.full([size + margin for size in source.shape], 3).astype(source.dtype)
    expected = target.copy()
    inside = tuple(slice(size) for size in source.shape)
    expected[inside] = source
    bind_copy(source, target[inside])()
    np.testing.assert_array_equal(target, expected)


@pytest.mark.parametrize("channels", [1, 3, 24, 300])
def test_pixels_side_by_side(channels):
    one, other = (np.random.default_rng(seed).random((20, 30, channels), dtype=np.float32) for seed in (0, 1))
    out = np.empty((20, 30, 2 * channels), np.float32)
    bind_copies([(one, out[..., :channels]), (other, out[..., channels:])])()
    np.testing.assert_array_equal(out, np.concatenate([one, other], -1))


def test_repeated_elements():
    source = np.broadcast_to(np.arange(60, dtype=np.float32).reshape(20, 1, 3), (20, 2, 3))
    out = np.empty((20, 2, 3), np.float32)
    bind_copy(source, out)()
    np.testing.assert_array_equal(out, source)
