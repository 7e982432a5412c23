import numpy as np
import pytest

from nnadapter.drivers import Reason
from tests.converters.single_node import check, floats, opsets, reason
from tests.every import for_every_pair


def _types(conversion):
    return [operation.type for operation in conversion.model.operations]


@pytest.mark.parametrize(
    "shapes", [((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((2, 1, 3, 4), (5, 4, 2)), ((4,), (4, 2)), ((3, 4), (4,))]
)
@pytest.mark.parametrize("opset", opsets("MatMul"))
def test_mat_mul(opset, shapes):
    check("MatMul", opset, [floats(*shapes[0]), floats(*shapes[1], seed=1)], tolerance=1e-5)


def test_mat_mul_of_integers():
    check("MatMul", 13, [np.arange(6, dtype=np.int32).reshape(2, 3), np.ones((3, 2), np.int32)], tolerance=0)


@for_every_pair(
    opset=opsets("Gemm"),
    constant=[[], [1, 2]],
    scales=[{}, {"alpha": 0.5, "beta": 2.0}, {"beta": 0.0}, {"beta": 0.5}],
    addend=[(5,), (1, 5), (1,), (), (3, 1), (3, 5)],
)
def test_gemm(opset, constant, scales, addend):
    inputs = [floats(3, 4), floats(5, 4, seed=1), floats(*addend, seed=2)]
    check("Gemm", opset, inputs, {"transB": 1, **scales}, constant=constant, tolerance=1e-5)


@pytest.mark.parametrize("transposed", [(0, 0), (0, 1), (1, 0), (1, 1)])
@pytest.mark.parametrize("addend", [True, False])
def test_gemm_transposed(transposed, addend):
    first, second = floats(3, 4), floats(4, 5, seed=1)
    inputs = [first.T.copy() if transposed[0] else first, second.T.copy() if transposed[1] else second]
    inputs += [floats(5, seed=2)] if addend else []
    check("Gemm", 13, inputs, {"transA": transposed[0], "transB": transposed[1]}, constant=[1], tolerance=1e-5)


def test_gemm_becomes_fully_connected_with_constant_weights():
    inputs = [floats(3, 4), floats(5, 4, seed=1), floats(1, 5, seed=2)]
    assert _types(check("Gemm", 13, inputs, {"transB": 1, "beta": 2.0}, constant=[1, 2])) == ["FULLY_CONNECTED"]
    assert _types(check("Gemm", 13, inputs, {"transB": 1})) == ["MAT_MUL", "ADD"]


def test_gemm_of_integers():
    inputs = [np.arange(6, dtype=np.int32).reshape(2, 3), np.ones((2, 3), np.int32), np.ones(2, np.int32)]
    check("Gemm", 13, inputs, {"transB": 1, "alpha": 2.0}, tolerance=0)
    assert reason("Gemm", 13, inputs, {"transB": 1, "alpha": 0.5}) is Reason.UNSUPPORTED_ATTRIBUTE
