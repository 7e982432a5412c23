import numpy as np
import pytest

from nnadapter.drivers import Reason
from tests.converters.single_node import check, floats, opsets, reason


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("exclusive", [0, 1])
@pytest.mark.parametrize("reverse", [0, 1])
def test_cum_prod(axis, exclusive, reverse):
    inputs = [floats(3, 4), np.array(axis)]
    check("CumProd", 26, inputs, {"exclusive": exclusive, "reverse": reverse}, constant=[1])


def test_invalid_cum_prod_is_refused():
    assert reason("CumProd", 26, [floats(3, 4), np.array(0)]) is Reason.NOT_CONSTANT
    assert reason("CumProd", 26, [floats(3, 4), np.array(2)], constant=[1]) is Reason.INVALID_NODE
    assert reason("CumProd", 26, [floats(3, 4), np.array([0, 1])], constant=[1]) is Reason.INVALID_NODE


@pytest.mark.parametrize("axis", [None, 0, 1, 2, -1])
@pytest.mark.parametrize("opset", opsets("Hardmax"))
def test_hardmax(opset, axis):
    x = np.random.default_rng(0).integers(0, 3, (2, 3, 4)).astype(np.float32)
    if axis == -1 and opset < 11:
        return
    check("Hardmax", opset, [x], {} if axis is None else {"axis": axis}, tolerance=0)
