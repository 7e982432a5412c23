"""Kernels over windows of any rank, compared with the definition."""

from __future__ import annotations

import numpy as np
import pytest

from nnadapter.drivers.fake_npu.kernels import convolution
from nnadapter.errors import InputValueError
from tests.drivers.fake_npu.against_definition import agrees
from tests.drivers.fake_npu.harness import floats, model_of, run_model

_WINDOWS = [
    {},
    {"strides": (1, 2, 3), "pads": (1, 0, 1, 0, 1, 1)},
    {"dilations": (1, 2, 1), "pads": (0, 1, 0, 1, 1, 0)},
    {"strides": (2, 2, 2), "pads": (1, 1, 1, 1, 1, 1), "dilations": (2, 1, 2)},
]
_POOLS = [*_WINDOWS, {"strides": (2, 3, 2), "pads": (0, 1, 1, 1, 0, 1), "ceil_mode": True}]
_VOLUME = {"kernel_shape": (2, 3, 2)}


@pytest.mark.parametrize("attributes", _WINDOWS)
@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("constants", [(), (1, 2)])
def test_convolution_of_volumes(group, attributes, constants):
    arrays = [floats(2, 4, 5, 6, 5), floats(6, 4 // group, 2, 3, 2, seed=1), floats(6, seed=2)]
    agrees("CONV_3D", arrays, {"group": group, **attributes}, tolerance=1e-4, constants=constants)
    agrees("CONV_3D", arrays[:2], {"group": group, **attributes}, tolerance=1e-4, constants=constants[:1])


@pytest.mark.parametrize("slices", [1, 2])
def test_volumes_are_computed_in_blocks(monkeypatch, slices):
    monkeypatch.setattr(convolution, "_BLOCK_BYTES", 0)
    monkeypatch.setattr(convolution, "_BLOCK_ROWS", slices * 9)
    agrees("CONV_3D", [floats(1, 3, 6, 5, 4), floats(2, 3, 2, 3, 2, seed=1)], tolerance=1e-4)


@pytest.mark.parametrize("attributes", [*_WINDOWS, {"strides": (2, 3, 2), "output_padding": (1, 2, 0)}])
@pytest.mark.parametrize("group", [1, 2])
def test_transposed_convolution_of_volumes(group, attributes):
    arrays = [floats(2, 4, 3, 4, 3), floats(4, 3, 2, 3, 2, seed=1), floats(3 * group, seed=2)]
    agrees("CONV_3D_TRANSPOSE", arrays, {"group": group, **attributes}, tolerance=1e-4)


def test_half_precision_is_rounded_once():
    arrays = [floats(1, 2, 3, 3, 3).astype(np.float16), floats(2, 2, 2, 2, 2, seed=1).astype(np.float16)]
    agrees("CONV_3D", arrays, tolerance=1e-3)


@pytest.mark.parametrize("attributes", _POOLS)
def test_pools_of_volumes(attributes):
    x, attributes = floats(2, 2, 6, 7, 5), {**_VOLUME, **attributes}
    agrees("MAX_POOL_3D", [x], attributes)
    for include in (False, True):
        agrees("AVERAGE_POOL_3D", [x], {**attributes, "count_include_pad": include}, tolerance=1e-5)
    for p in (1, 2, 3):
        agrees("LP_POOL_3D", [x], {**attributes, "p": p}, tolerance=1e-5)


@pytest.mark.parametrize("p", [1, 2, 3])
@pytest.mark.parametrize("ceil_mode", [False, True])
def test_p_norms_of_images(ceil_mode, p):
    attributes = {"kernel_shape": (3, 2), "strides": (2, 2), "pads": (1, 0, 1, 1), "ceil_mode": ceil_mode, "p": p}
    agrees("LP_POOL_2D", [floats(2, 3, 7, 6)], attributes, tolerance=1e-5)


@pytest.mark.parametrize("storage_order", ["row_major", "column_major"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "uint8", "int32"])
def test_pools_with_indices(dtype, storage_order):
    numbers = np.random.default_rng(0).integers(0, 3, (2, 2, 5, 6, 4)).astype(dtype)
    attributes = {"storage_order": storage_order}
    for window in _POOLS:
        agrees("MAX_POOL_3D_WITH_INDICES", [numbers], {**_VOLUME, **window, **attributes})
    attributes |= {"kernel_shape": (2, 3), "pads": (1, 1, 0, 1), "strides": (2, 1)}
    agrees("MAX_POOL_2D_WITH_INDICES", [numbers[:, :, 0]], attributes)


def test_lowest_value_is_found_at_the_border():
    lowest = np.full((1, 1, 3, 3), -128, np.int8)
    attributes = {"kernel_shape": (2, 2), "pads": (1, 1, 1, 1), "strides": (2, 2)}
    output, indices = agrees("MAX_POOL_2D_WITH_INDICES", [lowest], attributes)
    assert (output == -128).all()
    assert indices.reshape(-1).tolist() == [0, 1, 3, 4]


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_lowest_value_is_found_with_dilations(dtype):
    lowest = np.full((2, 1, 4, 4), np.iinfo(dtype).min, dtype)
    attributes = {"kernel_shape": (2, 2), "pads": (1, 1, 1, 1), "dilations": (2, 2)}
    _, indices = agrees("MAX_POOL_2D_WITH_INDICES", [lowest], attributes)
    assert indices[0, 0, 0].tolist() == [5, 4, 5, 6]


@pytest.mark.parametrize("dtype", ["float32", "int8", "int32"])
def test_unpooling(dtype):
    x, indices = np.arange(1, 13).reshape(1, 3, 2, 2).astype(dtype), np.random.default_rng(0).permutation(60)[:12]
    agrees("MAX_UNPOOL_2D", [x, indices.reshape(1, 3, 2, 2)], {"output_shape": (4, 5)})


def test_an_index_outside_of_the_unpooled_image_is_an_error():
    model, feeds = model_of("MAX_UNPOOL_2D", [floats(1, 1, 1, 1), np.full((1, 1, 1, 1), 9)], {"output_shape": (3, 3)})
    with pytest.raises(InputValueError, match="9 for an axis of 9"):
        run_model(model, feeds)


@pytest.mark.parametrize(
    ("shape", "image", "kernel", "more"),
    [
        ((2, 12, 9), (4, 5), (2, 3), {"strides": (1, 1), "pads": (0,) * 4, "dilations": (1, 1)}),
        ((2, 8, 12), (6, 6), (2, 2), {"strides": (2, 2), "pads": (1, 1, 0, 1), "dilations": (1, 1)}),
        ((1, 8, 8), (4, 4, 4), (2, 2, 2), {"strides": (2,) * 3, "pads": (0,) * 6, "dilations": (1,) * 3}),
        ((1, 9, 3), (9,), (3,), {"strides": (2,), "pads": (0, 0), "dilations": (2,)}),
    ],
)
def test_col_to_im(shape, image, kernel, more):
    agrees("COL_TO_IM", [floats(*shape)], {"image_shape": image, "kernel_shape": kernel, **more}, tolerance=1e-5)
