import numpy as np
import pytest

from nnadapter.drivers import Reason
from tests.converters.single_node import check, expected, floats, make, opsets, reason

_OLD = {"linear": "bilinear", "cubic": "bicubic", "nearest": "nearest"}


def _grid(*shape):
    """Return positions inside and outside the image."""
    return np.random.default_rng(1).uniform(-1.7, 1.7, shape).astype(np.float32)


@pytest.mark.parametrize("align_corners", [0, 1])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
@pytest.mark.parametrize("opset", opsets("GridSample"))
def test_grid_sample(opset, mode, padding_mode, align_corners):
    name = _OLD[mode] if opset < 20 else mode
    attributes = {"mode": name, "padding_mode": padding_mode, "align_corners": align_corners}
    check("GridSample", opset, [floats(2, 3, 4, 6), _grid(2, 3, 5, 2)], attributes, tolerance=2e-4)


@pytest.mark.parametrize("align_corners", [0, 1])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest"])
@pytest.mark.parametrize("opset", opsets("GridSample", 20))
def test_grid_sample_of_volumes(opset, mode, padding_mode, align_corners):
    attributes = {"mode": mode, "padding_mode": padding_mode, "align_corners": align_corners}
    check("GridSample", opset, [floats(2, 2, 3, 4, 5), _grid(2, 2, 3, 2, 3)], attributes, tolerance=2e-4)


def test_cubic_volumes_are_refused():
    inputs = [floats(1, 1, 3, 3, 3), _grid(1, 2, 2, 2, 3)]
    assert reason("GridSample", 20, inputs, {"mode": "cubic"}) is Reason.INVALID_NODE


@pytest.mark.parametrize("align_corners", [0, 1])
@pytest.mark.parametrize("size", [[2, 3, 4, 5], [2, 3, 4, 2, 3]])
def test_affine_grid(size, align_corners):
    axes = len(size) - 2
    inputs = [floats(2, axes, axes + 1), np.array(size)]
    check("AffineGrid", 20, inputs, {"align_corners": align_corners}, constant=[1], tolerance=1e-5)


def test_affine_grid_of_one_aligned_position_is_refused():
    inputs = [floats(1, 2, 3), np.array([1, 1, 1, 3])]
    assert reason("AffineGrid", 20, inputs, {"align_corners": 1}, constant=[1]) is Reason.UNSUPPORTED_ATTRIBUTE


def _regions():
    return np.array([[0, 0, 7, 5], [2.5, 1.25, 9.75, 6.5], [-4, -3, 20, 12], [3, 3, 3.2, 3.1]], np.float32)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("sampling_ratio", [0, 2])
@pytest.mark.parametrize("opset", opsets("RoiAlign"))
def test_roi_align(opset, sampling_ratio, mode):
    inputs = [floats(2, 3, 8, 10), _regions(), np.array([0, 1, 1, 0])]
    attributes = {"output_height": 3, "output_width": 2, "spatial_scale": 0.75, "sampling_ratio": sampling_ratio}
    check("RoiAlign", opset, inputs, {**attributes, "mode": mode}, tolerance=1e-4)


@pytest.mark.parametrize("transformation", ["half_pixel", "output_half_pixel"])
def test_roi_align_coordinates(transformation):
    inputs = [floats(2, 3, 8, 10), _regions(), np.array([0, 1, 1, 0])]
    attributes = {"output_height": 2, "output_width": 2, "coordinate_transformation_mode": transformation}
    check("RoiAlign", 16, inputs, attributes, tolerance=1e-4)


@pytest.mark.parametrize("opset", opsets("MaxRoiPool"))
def test_max_roi_pool(opset):
    regions = np.concatenate([np.array([[0], [1], [1], [0]], np.float32), _regions()], 1)
    attributes = {"pooled_shape": [3, 2], "spatial_scale": 0.5}
    inputs = [floats(2, 3, 8, 10), regions]
    # No runtime has version 22, which only adds data types.
    oracle = expected(make("MaxRoiPool", 7, inputs, attributes), {"x0": inputs[0], "x1": regions})
    check("MaxRoiPool", opset, inputs, attributes, tolerance=0, oracle=oracle)


@pytest.mark.parametrize("with_mask", [True, False])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("opset", opsets("DeformConv"))
def test_deform_conv(opset, with_bias, with_mask):
    attributes = {"pads": [1, 0, 1, 1], "strides": [2, 1], "dilations": [1, 2], "group": 2, "offset_group": 2}
    inputs = [floats(2, 4, 5, 6), floats(6, 2, 3, 2, seed=1), floats(2, 24, 3, 5, seed=2)]
    inputs += [floats(6, seed=3) if with_bias else None, floats(2, 12, 3, 5, seed=4) if with_mask else None]
    check("DeformConv", opset, inputs, attributes, tolerance=1e-4)


def test_regions_of_another_shape_are_refused():
    inputs = [floats(1, 2, 8, 8), floats(3, 5), np.array([0, 0, 0])]
    assert reason("RoiAlign", 16, inputs) in (Reason.INVALID_NODE, Reason.DYNAMIC_SHAPE)
