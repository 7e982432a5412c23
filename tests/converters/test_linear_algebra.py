import numpy as np
import pytest

from nnadapter.drivers import Reason
from tests.converters.single_node import check, floats, opsets, reason, reason_by_type


@pytest.mark.parametrize("k", [None, 0, 1, -2, 5, -5])
@pytest.mark.parametrize("upper", [0, 1])
@pytest.mark.parametrize("constant", [True, False])
def test_trilu(constant, upper, k):
    inputs = [floats(2, 3, 4)] if k is None else [floats(2, 3, 4), np.array(k)]
    conversion = check("Trilu", 14, inputs, {"upper": upper}, constant=[1] * (constant and k is not None), tolerance=0)
    known = constant or k is None
    assert ("TRILU" in {operation.type for operation in conversion.model.operations}) is known


def test_trilu_of_integers_by_a_vector_of_one_number():
    check("Trilu", 14, [np.arange(12).reshape(3, 4), np.array([1])], tolerance=0)


def test_trilu_of_vectors_is_refused():
    assert reason_by_type("Trilu", 14, ["float32[3]", "int64[]"], "float32[3]") is Reason.INVALID_NODE
    assert reason_by_type("Trilu", 14, ["float32[3]"], "float32[3]") is Reason.INVALID_NODE
    assert reason("Trilu", 14, [floats(3, 4), np.array([1, 2])], constant=[1]) is Reason.INVALID_NODE


@pytest.mark.parametrize("shape", [(3, 3), (2, 5, 4, 4), (1, 1)])
@pytest.mark.parametrize("opset", opsets("Det"))
def test_det(opset, shape):
    check("Det", opset, [floats(*shape)], tolerance=1e-5)


def test_det_of_nonsquare_matrices_is_refused():
    assert reason_by_type("Det", 22, ["float32[3, 4]"], "float32[]") is Reason.INVALID_NODE


@pytest.mark.parametrize("opset", opsets("Einsum"))
@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("ij , jk", [(2, 3), (3, 4)]),
        ("bij,bjk->bik", [(5, 2, 3), (5, 3, 4)]),
        ("...ii->...i", [(2, 3, 3)]),
        ("ii", [(3, 3)]),
        ("i,i", [(4,), (4,)]),
        ("...ij,...jk", [(2, 3, 4), (2, 4, 5)]),
        ("bA,ab->aA", [(2, 3), (4, 2)]),
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
        ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)]),
    ],
)
def test_einsum(opset, equation, shapes):
    inputs = [floats(*shape, seed=seed) for seed, shape in enumerate(shapes)]
    check("Einsum", opset, inputs, {"equation": equation}, tolerance=1e-5)


def test_einsum_without_inputs_is_refused():
    assert reason_by_type("Einsum", 12, [], "float32[]", {"equation": "->"}) is Reason.INVALID_NODE
