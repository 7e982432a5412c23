"""Inputs with NaN: ONNX Runtime's rule if it has one, otherwise our own."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import onnxruntime
import pytest

import nnadapter as nna
from tests.converters.single_node import make

LENGTH = 5
PLACES = [places for count in range(LENGTH + 1) for places in combinations(range(LENGTH), count)]
VALUES = np.array([[2, 7, 2, 7, -1], [-np.inf, -np.inf, 3, np.inf, np.inf]], np.float32)


def lines():
    """Return lines with NaN at every combination of places, [count, LENGTH]."""
    results = []
    for places in PLACES:
        for values in VALUES:
            line = values.copy()
            line[list(places)] = np.nan
            results.append(line)
    return np.stack(results)


def both(op_type, x, attributes=None, outputs=1, opset=13):
    contents = make(op_type, opset, [x], attributes, outputs=outputs).SerializeToString()
    session = onnxruntime.InferenceSession(contents, providers=["CPUExecutionProvider"])
    ours = nna.InferenceSession(contents, devices="fake_npu", options=nna.Options(fallback="forbid"))
    return session.run(None, {"x0": x}), ours.run(None, {"x0": x})


@pytest.mark.parametrize("op_type", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("axis", [0, 1])
def test_positions_of_extremes(op_type, last, axis):
    x = lines() if axis else np.ascontiguousarray(lines().T)
    (expected,), (result,) = both(op_type, x, {"axis": axis, "select_last_index": last})
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("dilation", [1, 2])
def test_pooling_with_indices(dilation):
    x = lines()[:, None]
    attributes = {"kernel_shape": [2], "dilations": [dilation]}
    for expected, result in zip(*both("MaxPool", x, attributes, outputs=2), strict=True):
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("op_type", ["Relu", "LeakyRelu", "HardSigmoid", "Sign", "Softmax", "Neg"])
def test_element_by_element(op_type):
    x = np.where(np.isinf(lines()), 1, lines()).astype(np.float32)
    (expected,), (result,) = both(op_type, x)
    np.testing.assert_allclose(result, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("op_type", "x", "attributes"),
    [
        ("ReduceMax", lines(), {"axes": [1], "keepdims": 0}),
        ("ReduceMin", lines(), {"axes": [1], "keepdims": 0}),
        ("MaxPool", lines()[:, None], {"kernel_shape": [LENGTH]}),
        ("GlobalMaxPool", lines()[:, None], {}),
    ],
)
def test_extremes_without_a_rule_are_nan(op_type, x, attributes):
    _, (result,) = both(op_type, x, attributes)
    np.testing.assert_array_equal(np.isnan(result).reshape(-1), np.isnan(lines()).any(axis=1))


def test_hardmax_without_a_rule_selects_the_first():
    x = lines()[np.isnan(lines()).any(axis=1)]
    _, (result,) = both("Hardmax", x, {"axis": 1})
    np.testing.assert_array_equal(result.argmax(axis=1), np.isnan(x).argmax(axis=1))
    np.testing.assert_array_equal(result.sum(axis=1), 1)


@pytest.mark.parametrize("largest", [0, 1])
def test_top_k_without_a_rule_includes_nan(largest):
    x = lines()
    model = make("TopK", 11, [x, np.array([LENGTH])], {"axis": 1, "largest": largest}, constant=(1,), outputs=2)
    options = nna.Options(fallback="forbid")
    session = nna.InferenceSession(model.SerializeToString(), devices="fake_npu", options=options)
    values, indices = session.run(None, {"x0": x})
    ascending = np.sort(x, axis=1)
    np.testing.assert_array_equal(values, ascending[:, ::-1] if largest else ascending)
    np.testing.assert_array_equal(np.take_along_axis(x, indices, 1), values)
