from math import prod

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnadapter.ir.passes import FROM_NCHW, View


def apply_view(view, array):
    return array.reshape(view.shape).transpose(view.perm)


@st.composite
def factorizations(draw, size):
    factors = []
    while size > 1 and len(factors) < 5:
        divisors = [each for each in range(2, size + 1) if size % each == 0]
        factors.append(draw(st.sampled_from(divisors)))
        size //= factors[-1]
    factors += [size] if size > 1 else []
    return tuple(draw(st.permutations(factors + [1] * draw(st.integers(0, 2)))))


@pytest.mark.slow
@given(st.data(), st.sampled_from([1, 4, 6, 12, 24]))
def test_view_equals_numpy(data, size):
    shape = data.draw(factorizations(size))
    array = np.arange(size).reshape(shape)
    view, expected = View(0, shape, tuple(range(len(shape)))), array
    for _ in range(data.draw(st.integers(1, 4))):
        perm = tuple(data.draw(st.permutations(range(expected.ndim))))
        view, expected = view.transposed(perm), expected.transpose(perm)
        dimensions = data.draw(factorizations(size))
        reshaped = view.reshaped(dimensions)
        if reshaped is not None:
            view, expected = reshaped, expected.reshape(dimensions)
    assert view.dimensions == expected.shape
    np.testing.assert_array_equal(apply_view(view, array), expected)
    if view.is_identity:
        np.testing.assert_array_equal(array.ravel(), expected.ravel())


def test_pixels_are_merged_and_split_without_moving():
    view = View(0, (2, 4, 5, 3), (0, 3, 1, 2)).reshaped((2, 3, 20))
    assert view is not None
    assert (view.shape, view.perm) == ((2, 20, 3), (0, 2, 1))
    back = view.reshaped((2, 3, 4, 5))
    assert back is not None
    assert back.transposed(FROM_NCHW).is_identity


def test_channels_and_pixels_cannot_be_merged():
    assert View(0, (2, 4, 5, 3), (0, 3, 1, 2)).reshaped((2, 60)) is None


def test_empty_operands_have_no_reshaped_view():
    assert View(0, (0, 4, 5, 3), (0, 3, 1, 2)).reshaped((0, 3, 20)) is None
    assert prod(View(0, (0, 3), (0, 1)).reshaped((3, 0)).dimensions) == 0
