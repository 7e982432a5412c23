"""Nearest pixels and overlapping taps, compared with ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

import nnadapter as nna
from tests.models import HEAD, numbers, parse, run_whole


def on_fake_npu(model, feed):
    with nna.InferenceSession(model, devices="fake_npu", options=nna.Options(fallback="forbid")) as session:
        return session.run(None, feed)[0]


@pytest.mark.slow
@pytest.mark.parametrize("rounding", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
@pytest.mark.parametrize("mode", ["asymmetric", "half_pixel", "pytorch_half_pixel", "align_corners"])
def test_nearest_pixels_equal_onnxruntime(mode, rounding):
    for size in (2, 3, 6, 7, 9, 10, 28):
        x = np.arange(size, dtype=np.float32).reshape(1, 1, 1, size)
        for result in (1, 2, 3, 5, 8, 14, 28):
            attributes = f'mode = "nearest", coordinate_transformation_mode = "{mode}", nearest_mode = "{rounding}"'
            model = parse(f"""{HEAD}
            g (float[1, 1, 1, {size}] x) => (float[1, 1, 1, {result}] y) <int64[4] s = {{1, 1, 1, {result}}}> {{
                y = Resize<{attributes}>(x, , , s)
            }}""")
            np.testing.assert_array_equal(
                on_fake_npu(model, {"x": x}), run_whole(model, {"x": x})[0], f"{size}, {result}"
            )


@pytest.mark.parametrize(("kernel", "stride", "dilation"), [(2, 2, 2), (2, 3, 3), (3, 3, 3), (2, 2, 1), (1, 2, 3)])
def test_overlapping_taps_of_a_transposed_convolution_are_added(kernel, stride, dilation):
    width = 4 * stride + dilation * (kernel - 1) + 1
    model = parse(f"""{HEAD} g (float[1, 2, 5, 5] x) => (float[1, 3, 5, {width}] y) {{
        w = Constant<value = float[2, 3, 1, {kernel}] {{{", ".join(map(str, range(1, 6 * kernel + 1)))}}}>()
        y = ConvTranspose<strides = [1, {stride}], dilations = [1, {dilation}], kernel_shape = [1, {kernel}]>(x, w)
    }}""")
    x = numbers(1, 2, 5, 5)
    np.testing.assert_allclose(on_fake_npu(model, {"x": x}), run_whole(model, {"x": x})[0], rtol=1e-5, atol=1e-4)
