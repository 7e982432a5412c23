"""`Gradient` gives way to the nodes that compute it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import nnadapter as nna
from nnadapter.errors import InvalidModelError
from tests.models import run_whole

HEAD = '<ir_version: 10, opset_import: ["" : 17, "ai.onnx.preview.training" : 1]>'
A, B = np.array([0.5, 1.5, 2.0]), np.array([0.7, 0.9, -1.2])


def model(body, gradient, outputs="double[3] ga, double[3] gb"):
    nodes = f"{body} {gradient}"
    return onnx.parser.parse_model(f"{HEAD} g (double[3] a, double[3] b) => ({outputs}) {{ {nodes} }}")


GRADIENT = 'ga, gb = ai.onnx.preview.training.Gradient<xs = ["a", "b"], y = "y">(a, b)'


@pytest.mark.parametrize(
    "body",
    [
        "s = Add(a, b) y = Mul(s, a)",
        "s = Sub(a, b) y = Div(s, b)",
        "s = Exp(b) t = Log(a) y = Mul(s, t)",
        "s = Sqrt(a) t = Tanh(b) u = Sigmoid(s) y = Mul(u, t)",
        "s = Sin(a) t = Cos(b) u = Neg(t) v = Relu(b) w = Mul(s, u) y = Add(w, v)",
        "y = Identity(a)",
    ],
)
def test_it_is_the_derivative(body):
    """The oracle is a difference quotient: central, in float64."""
    with nna.InferenceSession(model(body, GRADIENT), devices="cpu", options=nna.Options(fallback="allow")) as session:
        got = session.run(None, {"a": A, "b": B})
    plain = onnx.parser.parse_model(f"{HEAD} g (double[3] a, double[3] b) => (double[3] y) {{ {body} }}")

    def value(a, b):
        return run_whole(plain, {"a": a, "b": b})[0]

    step = 1e-5
    expected = [value(A + step, B) - value(A - step, B), value(A, B + step) - value(A, B - step)]
    for mine, theirs in zip(got, expected, strict=True):
        np.testing.assert_allclose(mine, theirs / (2 * step), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("body", ["y = Ceil(a)", "s = ReduceSum(b) y = Add(a, s)"])
def test_what_has_no_rule_is_refused(body):
    with pytest.raises(InvalidModelError, match="Gradient"):
        nna.InferenceSession(model(body, GRADIENT), devices="fake_npu", options=nna.Options(fallback="allow"))
