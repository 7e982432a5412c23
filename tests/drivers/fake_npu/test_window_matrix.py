"""Windows as rows of a matrix, against numpy's padding and plain indexing."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nnadapter.drivers.fake_npu.kernels.window_matrix import bind_window_matrix
from nnadapter.drivers.fake_npu.kernels.windows import Window

PAIRS = st.tuples(st.integers(1, 3), st.integers(1, 3))


@pytest.mark.slow
@given(
    size=st.tuples(st.integers(1, 7), st.integers(1, 7)),
    kernel=PAIRS,
    strides=PAIRS,
    dilations=PAIRS,
    pads=st.tuples(*[st.integers(0, 4)] * 4),
    data=st.data(),
)
def test_every_window(size, kernel, strides, dilations, pads, data):
    counts = [
        (size[axis] + pads[axis] + pads[axis + 2] - (kernel[axis] - 1) * dilations[axis] - 1) // strides[axis] + 1
        for axis in range(2)
    ]
    assume(min(counts) >= 1)
    start = data.draw(st.integers(0, counts[0] - 1))
    stop = data.draw(st.integers(start + 1, counts[0]))
    image = np.random.default_rng(0).random((2, *size, 3), np.float32)
    window = Window(kernel_shape=kernel, strides=strides, dilations=dilations, pads=pads)
    windows = np.full((2, stop - start, counts[1], *kernel, 3), np.nan, np.float32)
    for run in bind_window_matrix(image, window, slice(start, stop), windows):
        run()
    padded = np.pad(image, ((0, 0), (pads[0], pads[2]), (pads[1], pads[3]), (0, 0)))
    for row, column, down, across in np.ndindex(stop - start, counts[1], *kernel):
        place = (row + start) * strides[0] + down * dilations[0], column * strides[1] + across * dilations[1]
        np.testing.assert_array_equal(windows[:, row, column, down, across], padded[:, place[0], place[1]])
