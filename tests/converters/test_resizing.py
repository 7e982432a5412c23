import numpy as np
import pytest

from nnadapter.drivers import Reason
from tests.converters.single_node import check, floats, opsets, reason
from tests.every import for_every_pair

_COORDINATES = ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"]
_SCALES = [(1, 1, 2, 3), (1, 1, 0.6, 0.5), (1, 1, 1.7, 0.8), (1, 1, 1.2, 1.15)]
"""The last pair keeps all sizes: ONNX Runtime returns the input."""


def _scales(*values):
    return np.array(values, np.float32)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("scales", [(1, 1, 2, 3), (1, 1, 1.5, 1), (1, 1, 1.2, 1.15)])
def test_upsample(scales, mode):
    check("Upsample", 7, [floats(2, 3, 4, 5)], {"scales": [float(s) for s in scales], "mode": mode}, tolerance=1e-5)
    check("Upsample", 9, [floats(2, 3, 4, 5), _scales(*scales)], {"mode": mode}, constant=[1], tolerance=1e-5)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("scales", [*_SCALES, (1, 1, 1, 1)])
def test_first_resize(scales, mode):
    check("Resize", 10, [floats(2, 3, 4, 5), _scales(*scales)], {"mode": mode}, constant=[1], tolerance=1e-5)


def _inputs(opset, scales, sizes=None):
    """Version 11 needs every input; in later ones the region and the scales are optional."""
    filler = np.zeros(0, np.float32) if opset < 13 else None
    return [floats(2, 3, 4, 5), filler, filler if scales is None else scales, *([] if sizes is None else [sizes])]


def _check(opset, attributes, scales=None, sizes=None, tolerance=1e-5):
    inputs = _inputs(opset, scales, sizes)
    constant = [index for index, value in enumerate(inputs) if index and value is not None]
    return check("Resize", opset, inputs, attributes, constant=constant, tolerance=tolerance)


@for_every_pair(
    opset=opsets("Resize", 11),
    scales=_SCALES,
    coordinates=_COORDINATES,
    nearest_mode=["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"],
)
def test_nearest_by_scales(opset, scales, coordinates, nearest_mode):
    attributes = {"coordinate_transformation_mode": coordinates, "nearest_mode": nearest_mode}
    _check(opset, attributes, _scales(*scales), tolerance=0)


@pytest.mark.parametrize("coordinates", _COORDINATES)
@pytest.mark.parametrize("scales", _SCALES)
@pytest.mark.parametrize("opset", opsets("Resize", 11))
def test_linear_by_scales(opset, scales, coordinates):
    _check(opset, {"coordinate_transformation_mode": coordinates, "mode": "linear"}, _scales(*scales))


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("sizes", [(2, 3, 8, 10), (2, 3, 3, 7), (2, 3, 1, 1)])
@pytest.mark.parametrize("opset", opsets("Resize", 11))
def test_by_sizes(opset, sizes, mode):
    _check(opset, {"mode": mode}, sizes=np.array(sizes))


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_symmetric_half_pixels(mode):
    attributes = {"coordinate_transformation_mode": "half_pixel_symmetric", "mode": mode}
    _check(19, attributes, _scales(1, 1, 0.6, 1.3))


@pytest.mark.parametrize("policy", ["stretch", "not_larger", "not_smaller"])
@pytest.mark.parametrize("opset", opsets("Resize", 18))
def test_some_axes_with_their_aspect_ratio(opset, policy):
    _check(opset, {"axes": [2, 3], "keep_aspect_ratio_policy": policy}, sizes=np.array([7, 6]))


def test_some_axes_by_scales():
    _check(18, {"axes": [3, 2], "mode": "linear"}, _scales(2, 1.5))


@pytest.mark.parametrize(
    "attributes",
    [
        {"mode": "cubic"},
        {"coordinate_transformation_mode": "tf_crop_and_resize"},
        {"mode": "linear", "antialias": 1},
    ],
)
def test_refused_attributes(attributes):
    inputs = [floats(1, 1, 4, 4), None, _scales(1, 1, 0.5, 0.5)]
    if "crop" in attributes.get("coordinate_transformation_mode", ""):
        inputs[1] = _scales(0, 0, 0, 0, 1, 1, 1, 1)
    constant = [index for index in (1, 2) if inputs[index] is not None]
    assert reason("Resize", 18, inputs, attributes, constant=constant) is Reason.UNSUPPORTED_ATTRIBUTE


def test_computed_scales_are_refused():
    inputs = [floats(1, 1, 4, 4), None, _scales(1, 1, 2, 2)]
    assert reason("Resize", 13, inputs) in (Reason.NOT_CONSTANT, Reason.DYNAMIC_SHAPE)
