import numpy as np
import pytest

from nnadapter.drivers import Reason
from tests.converters.single_node import check, floats, reason


@pytest.mark.parametrize("shape", [(5, 6, 7), (8, 3, 7), (2, 9, 10), (4, 7, 1)])
def test_center_crop_pad(shape):
    check("CenterCropPad", 18, [floats(5, 6, 7), np.array(shape)], constant=[1], tolerance=0)


@pytest.mark.parametrize("axes", [[0, 2], [-1, 1]])
def test_center_crop_pad_of_some_axes(axes):
    check("CenterCropPad", 18, [floats(5, 6, 7), np.array([9, 2])], {"axes": axes}, constant=[1], tolerance=0)


def test_computed_shape_is_refused():
    result = reason("CenterCropPad", 18, [floats(5, 6), np.array([3, 3])])
    assert result in (Reason.NOT_CONSTANT, Reason.DYNAMIC_SHAPE)
