"""Dequantized constants, which stay constant through nodes that only move elements."""

import numpy as np
import pytest

from tests.converters.quantized_group import RESULT, Group, bias, compare, picture, weights

X, W, ALONG = picture(1, 4, 7, 6), weights(6, 4, 3, 3), weights(6, 4, 3, 3, axis=0)
ROWS = picture(5, 30)


def products(group):
    """Check the graph's results, and return its products with the data types that they read."""
    model = group.converted_whole()
    compare(group, model, optimized=True)
    results = [
        operation for operation in model.operations if operation.type in ("CONV_2D", "FULLY_CONNECTED", "MAT_MUL")
    ]
    return [(each.type, *(model.type_of(operand).dtype.value for operand in each.inputs)) for each in results]


@pytest.mark.parametrize("w", [W, ALONG])
@pytest.mark.parametrize("place", [1, 2])
def test_identity_preserves_quantization(w, place):
    group = Group("Conv", [X, w, bias(X, w)], RESULT, constants=(1, 2)).moved(place, "Identity")
    assert products(group) == [("CONV_2D", "uint8", "int8", "int32")]


def test_transposed_matrix_stays_constant():
    w = weights(8, 30)
    group = Group("Gemm", [ROWS, w, bias(ROWS, w)], RESULT, constants=(1, 2)).moved(1, "Transpose", perm=[1, 0])
    assert products(group) == [("FULLY_CONNECTED", "uint8", "int8", "int32")]


def test_reshaped_bias_stays_constant():
    values, *remaining = bias(X, W)
    group = Group("Conv", [X, W, (values.reshape(2, 3), *remaining)], RESULT, constants=(1, 2))
    group.constants["shape"] = np.array([6])
    group.moved(2, "Reshape", "shape")
    assert products(group) == [("CONV_2D", "uint8", "int8", "int32")]


def test_transposed_per_axis_weights_are_dequantized():
    group = Group("Gemm", [ROWS, weights(8, 30, axis=0)], RESULT, constants=(1,)).moved(1, "Transpose", perm=[1, 0])
    assert products(group) == [("MAT_MUL", "float32", "float32")]


def test_computed_bias_is_not_constant():
    w = bias(X, W)
    group = Group("Conv", [X, W, w], RESULT, constants=(1, 2)).moved(2, "Neg")
    model = group.converted_whole()
    (result,) = [operation for operation in model.operations if operation.type == "CONV_2D"]
    assert model.operands[result.inputs[2]].value is None
