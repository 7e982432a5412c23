"""DynamicQuantizeLSTM: equal to the LSTM of its dequantized weights, and close to ONNX Runtime's kernel."""

from __future__ import annotations

import numpy as np
import pytest

from nnadapter.drivers import Reason
from nnadapter.ir.definition import by_definition
from tests.converters.microsoft.function_node import check, converted, model_of, onnxruntime_results, refusal
from tests.converters.single_node import floats
from tests.models import largest_int8

ROUNDED = 0.05
"""Largest error from rounding inputs and states to 8 bits."""


def quantized(weight, per_column):
    scale = np.abs(weight).max((1,) if per_column else (1, 2)) / largest_int8()
    spread = scale[:, None, :] if per_column else scale[:, None, None]
    return np.rint(weight / spread).astype(np.int8), scale.astype(np.float32), np.zeros(scale.shape, np.int8)


@pytest.mark.parametrize("per_column", [False, True])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_lstm(direction, per_column):
    count = 2 if direction == "bidirectional" else 1
    (w, *w_parameters), (r, *r_parameters) = (
        quantized(floats(count, size, 24, seed=size) / 3, per_column) for size in (5, 6)
    )
    x, bias, state = floats(4, 2, 5), floats(count, 48), floats(count, 2, 6) / 2
    inputs = [x, w, r, bias, None, state, state, None, *w_parameters, *r_parameters]
    attributes = {"hidden_size": 6, "direction": direction}
    keywords = {"constant": (1, 2, 3, 8, 9, 10, 11), "outputs": 3}
    check("DynamicQuantizeLSTM", inputs, attributes, tolerance=ROUNDED, opsets=(14, 23), **keywords)
    reals = [
        (weight * parameters[0].reshape(count, 1, -1)).transpose(0, 2, 1).astype(np.float32)
        for weight, parameters in ((w, w_parameters), (r, r_parameters))
    ]
    plain = model_of("LSTM", [x, *reals, bias, None, state, state], attributes, domain="", outputs=3)
    feeds = {"x0": x, "x5": state, "x6": state}
    conversion = converted(model_of("DynamicQuantizeLSTM", inputs, attributes, **keywords), feeds)[1]
    ordered = [feeds[conversion.model.operands[index].name] for index in conversion.model.inputs]
    expected = onnxruntime_results(plain, {**feeds, "x1": reals[0], "x2": reals[1], "x3": bias})
    for got, want in zip(by_definition(conversion.model, ordered), expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_misshaped_scales_are_refused():
    w, scale, zero_point = quantized(floats(1, 5, 24), per_column=False)
    inputs = [floats(4, 2, 5), w, floats(1, 6, 24).astype(np.int8), *[None] * 5]
    parameters = [np.ones(3, np.float32), zero_point, scale, zero_point]
    verdict = refusal("DynamicQuantizeLSTM", [*inputs, *parameters], {"hidden_size": 6}, constant=(1, 2, 8, 9, 10, 11))
    assert verdict.reason is Reason.INVALID_NODE and "3 scales" in verdict.detail
