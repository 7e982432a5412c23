"""Kernels that sample images between pixels, compared with the definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnadapter.errors import InputValueError
from tests.drivers.fake_npu.against_definition import agrees
from tests.drivers.fake_npu.harness import floats, model_of, run, run_model


def _grid(*shape):
    return np.random.default_rng(1).uniform(-1.9, 1.9, shape).astype(np.float32)


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_grid_sample(mode, padding_mode, align_corners):
    attributes = {"mode": mode, "padding_mode": padding_mode, "align_corners": align_corners}
    agrees("GRID_SAMPLE", [floats(2, 3, 5, 7), _grid(2, 4, 3, 2)], attributes, tolerance=1e-4)
    agrees("GRID_SAMPLE", [floats(2, 3, 1, 2), _grid(2, 4, 3, 2)], attributes, tolerance=1e-4)
    if mode != "cubic":
        agrees("GRID_SAMPLE", [floats(1, 2, 3, 4, 5), _grid(1, 2, 2, 3, 3)], attributes, tolerance=1e-4)


@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
def test_nan_positions_do_not_crash(mode):
    grid = np.array([[[[np.nan, 0.0], [np.inf, 0.0], [-np.inf, 1e30]]]], np.float32)
    result = run("GRID_SAMPLE", [floats(1, 2, 4, 4), grid], {"mode": mode})
    assert result.shape == (1, 2, 1, 3)


@given(st.floats(-30, 30, width=32), st.integers(1, 6))
def test_reflected_positions_lie_inside(place, size):
    """Pixel centers map to themselves; positions beyond the outer centers repeat the border pixel."""
    image = np.arange(size, dtype=np.float32).reshape(1, 1, 1, size)
    grid = np.array([[[[(2 * place + 1) / size - 1, 0]]]], np.float32)
    result = run("GRID_SAMPLE", [image, grid], {"padding_mode": "reflection"})
    turned = abs((place + 0.5 + size) % (2 * size) - size) - 0.5
    np.testing.assert_allclose(result, np.clip(turned, 0, size - 1).reshape(1, 1, 1, 1), atol=1e-4)


@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("shape", [(3, 4), (2, 5, 3)])
def test_identity_grid_returns_the_image(shape, align_corners):
    axes = len(shape)
    theta = np.eye(axes, axes + 1, dtype=np.float32)[None]
    (grid,) = agrees("AFFINE_GRID", [theta], {"output_shape": shape, "align_corners": align_corners}, tolerance=1e-6)
    x = floats(1, 2, *shape)
    np.testing.assert_allclose(run("GRID_SAMPLE", [x, grid], {"align_corners": align_corners}), x, atol=1e-5)


def test_affine_grid_of_any_matrices():
    agrees("AFFINE_GRID", [floats(3, 2, 3)], {"output_shape": (4, 5)}, tolerance=1e-5)


_REGIONS = np.array([[0, 0, 7, 5], [2.5, 1.25, 9.75, 6.5], [-4, -3, 20, 12], [5, 5, 2, 2]], np.float32)


@pytest.mark.parametrize("half_pixel", [False, True])
@pytest.mark.parametrize("sampling_ratio", [0, 1, 3])
@pytest.mark.parametrize("mode", ["avg", "max"])
def test_roi_align(mode, sampling_ratio, half_pixel):
    attributes = {"output_shape": (3, 2), "spatial_scale": 0.75, "sampling_ratio": sampling_ratio, "mode": mode}
    arrays = [floats(2, 3, 8, 10), _REGIONS, np.array([0, 1, 1, 0])]
    agrees("ROI_ALIGN", arrays, {**attributes, "half_pixel": half_pixel}, tolerance=1e-4)


@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_max_roi_pool(scale):
    regions = np.concatenate([np.array([[0], [1], [1], [0]], np.float32), _REGIONS], 1)
    agrees("MAX_ROI_POOL", [floats(2, 3, 8, 10), regions], {"output_shape": (3, 4), "spatial_scale": scale})


def test_regions_of_missing_images_are_errors():
    model, feeds = model_of("ROI_ALIGN", [floats(2, 1, 4, 4), _REGIONS[:1], np.array([2])], {"output_shape": (1, 1)})
    with pytest.raises(InputValueError, match="2 for an axis of 2"):
        run_model(model, feeds)


def test_nan_regions_are_errors():
    regions = np.array([[0, 0, 1, 1], [0, np.nan, 1, 1]], np.float32)
    model, feeds = model_of("ROI_ALIGN", [floats(1, 1, 4, 4), regions, np.zeros(2, int)], {"output_shape": (1, 1)})
    with pytest.raises(InputValueError, match="region 1 is"):
        run_model(model, feeds)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("mask", [True, False])
@pytest.mark.parametrize("groups", [(1, 1), (2, 1), (1, 2), (2, 4)])
def test_deformable_convolution(groups, mask, bias):
    group, offset_group = groups
    arrays = [floats(2, 4, 5, 6), floats(6, 4 // group, 3, 2, seed=1), floats(2, 12 * offset_group, 3, 5, seed=2)]
    arrays += [floats(6, seed=3) if bias else None, floats(2, 6 * offset_group, 3, 5, seed=4) if mask else None]
    attributes = {"pads": (1, 0, 1, 1), "strides": (2, 1), "dilations": (1, 2)}
    agrees("DEFORMABLE_CONV_2D", arrays, {**attributes, "group": group, "offset_group": offset_group}, tolerance=1e-4)


def test_deformable_convolution_without_offsets_is_a_convolution():
    x, weight = floats(1, 3, 6, 5), floats(4, 3, 3, 3, seed=1)
    result = run("DEFORMABLE_CONV_2D", [x, weight, np.zeros((1, 18, 4, 3), np.float32)])
    np.testing.assert_allclose(result, run("CONV_2D", [x, weight], constants=(1,)), atol=1e-4)
