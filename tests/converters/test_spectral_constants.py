import numpy as np
import pytest

from nnadapter.drivers import Reason
from tests.converters.single_node import check, reason

_WINDOWS = ["BlackmanWindow", "HammingWindow", "HannWindow"]


@pytest.mark.parametrize("size", [1, 2, 9, 400])
@pytest.mark.parametrize("periodic", [0, 1])
@pytest.mark.parametrize("op_type", _WINDOWS)
def test_window(op_type, periodic, size):
    if size == 1 and not periodic:
        return  # 0 / 0 by definition
    check(op_type, 17, [np.array(size)], {"periodic": periodic}, constant=[0], tolerance=1e-6)


@pytest.mark.parametrize("op_type", _WINDOWS)
def test_window_of_another_data_type(op_type):
    check(op_type, 17, [np.array(10, np.int32)], {"output_datatype": 11}, constant=[0], tolerance=1e-6)


def test_window_of_unknown_size_is_refused():
    assert reason("HannWindow", 17, [np.array(10)]) in (Reason.NOT_CONSTANT, Reason.DYNAMIC_SHAPE)


@pytest.mark.parametrize("numbers", [(8, 16, 8192, 0, 4096), (40, 512, 16000, 20, 8000), (80, 400, 16000, 0, 7600)])
def test_mel_weight_matrix(numbers):
    *whole, low, high = numbers
    inputs = [*(np.array(number) for number in whole), np.array(low, np.float32), np.array(high, np.float32)]
    check("MelWeightMatrix", 17, inputs, constant=range(5), tolerance=1e-5)


def test_mel_weight_matrix_of_impossible_numbers_is_refused():
    inputs = [np.array(8), np.array(16), np.array(8192), np.array(9, np.float32), np.array(3, np.float32)]
    assert reason("MelWeightMatrix", 17, inputs, constant=range(5)) is Reason.INVALID_NODE
