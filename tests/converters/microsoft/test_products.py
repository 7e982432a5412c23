from __future__ import annotations

import numpy as np
import pytest

from nnadapter.drivers import Reason
from tests.converters.microsoft.function_node import check, refusal
from tests.converters.single_node import floats


@pytest.mark.parametrize("turned", range(16))
def test_fused_matmul(turned):
    names = ("transA", "transB", "transBatchA", "transBatchB")
    flags = {name: turned >> place & 1 for place, name in enumerate(names)}
    left, right = floats(2, 3, 4, 5), floats(2, 3, 5, 6, seed=1)
    for letter, array in (("A", left), ("B", right)):
        if flags[f"trans{letter}"]:
            array = array.swapaxes(-1, -2)
        if flags[f"transBatch{letter}"]:
            array = np.moveaxis(array, -2, 0)
        left, right = (array, right) if letter == "A" else (left, array)
    check("FusedMatMul", [left.copy(), right.copy()], {**flags, "alpha": 0.5}, opsets=(13,))


@pytest.mark.parametrize(("shapes", "flags"), [([(4,), (4, 3)], {"transA": 1}), ([(2, 4), (4,)], {"transB": 1})])
def test_vectors_are_not_transposed(shapes, flags):
    check("FusedMatMul", [floats(*shape, seed=seed) for seed, shape in enumerate(shapes)], flags, opsets=(13,))


@pytest.mark.parametrize(
    "attributes",
    [{}, {"activation": "Relu", "alpha": 0.5, "transB": 1}, {"activation": "LeakyRelu", "activation_alpha": 0.3}],
)
@pytest.mark.parametrize("bias", [True, False])
def test_fused_gemm(attributes, bias):
    right = floats(4, 3, seed=1)
    inputs = [floats(2, 4), right.T.copy() if "transB" in attributes else right, floats(3) if bias else None]
    check("FusedGemm", inputs, {"activation": "Sigmoid", **attributes}, opsets=(13,))


def test_unknown_activation_is_named():
    verdict = refusal("FusedGemm", [floats(2, 4), floats(4, 3)], {"activation": "Swirl"})
    assert (
        verdict.reason is Reason.UNSUPPORTED_ATTRIBUTE and "'Swirl'" in verdict.detail and "LeakyRelu" in verdict.detail
    )


def test_attributes_are_checked_against_the_schema():
    verdict = refusal("FusedMatMul", [floats(2, 4), floats(4, 3)], {"transC": 1})
    assert verdict.reason is Reason.INVALID_NODE
    assert verdict.detail.startswith(
        "attribute 'transC' is not defined by FusedMatMul of schema version 1, which has alpha,"
    )
