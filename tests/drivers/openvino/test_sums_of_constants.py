"""Sums of small and large constants: the engine folds them and loses the small ones."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnx.shape_inference
import onnxruntime

from nnadapter import InferenceSession
from tests.every import for_every, for_every_value

FORMS = {
    "1 minus, times": "a = Sub(one, m) c = Mul(a, C) y = Add(c, b)",
    "minus 1, times": "a = Sub(m, one) c = Mul(a, D) y = Add(c, b)",
    "negated": "n = Neg(m) a = Add(n, one) c = Mul(a, C) y = Add(c, b)",
    "divided": "a = Sub(one, m) c = Div(a, tiny) y = Add(c, b)",
    "times, plus": "a = Mul(m, D) c = Add(a, C) y = Add(c, b)",
    "minus a constant": "a = Sub(one, m) c = Mul(a, C) y = Sub(c, b)",
    "from a constant": "a = Sub(one, m) c = Mul(a, C) y = Sub(b, c)",
    "scaled twice": "a = Sub(one, m) c = Mul(a, C) d = Mul(c, eighth) y = Add(d, b)",
    "product beyond all numbers": "a = Mul(m, C) y = Mul(a, eight)",
    "quotient beyond all numbers": "a = Mul(m, C) y = Div(a, eighth)",
    "added and taken away": "a = Add(m, C) y = Sub(a, C)",
    "added and taken away, and a third": "a = Add(m, C) d = Add(a, D) y = Add(d, b)",
    "in another shape": "a = Sub(one, m) c = Mul(a, C) d = Reshape(c, shape) y = Add(d, b3)",
    "with an axis more": "a = Sub(one, m) c = Mul(a, C) d = Unsqueeze(c, axis) y = Add(d, b3)",
    "several readers": "a = Sub(one, m) c = Mul(a, C) d = Add(c, b) e = Mul(c, eighth) f = Add(d, e) y = Add(f, b)",
    "negated behind": "a = Sub(one, m) c = Mul(a, C) d = Neg(c) y = Add(d, b)",
    "taken away, and scaled": "a = Add(m, C) d = Add(a, D) y = Mul(d, b)",
    "computed in between": "a = Sub(one, m) c = Mul(a, C) d = Add(c, x) y = Add(d, b)",
}
LARGE = (3.4028235e38, 1e9, 1e4)


def model_of(form: str, large: float, rows: str) -> onnx.ModelProto:
    constants = f"""<float one = {{1}}, float C = {{{-large}}}, float D = {{{large}}},
    float tiny = {{{-max(1 / large, 1e-37)}}}, float eighth = {{0.125}}, float eight = {{8}},
    int64[3] shape = {{1, -1, 4}}, int64[1] axis = {{0}},
    float[4] b = {{0.1, 0.2, -0.3, 7}}, float[1, 1, 4] b3 = {{0.1, 0.2, -0.3, 7}}>"""
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[{rows}, 4] m, float[{rows}, 4] x) => (float y)
    {constants} {{ {form} }}"""
    model = onnx.parser.parse_model(text)
    read = {name for node in model.graph.node for name in node.input}
    for tensor in [initializer for initializer in model.graph.initializer if initializer.name not in read]:
        model.graph.initializer.remove(tensor)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return onnx.shape_inference.infer_shapes(model)


@for_every_value(form=FORMS, large=LARGE, rows=("2", "N"))
def test_small_constants_are_not_lost_next_to_large_ones(form, large, rows):
    model, options = model_of(FORMS[form], large, rows), onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    oracle = onnxruntime.InferenceSession(model.SerializeToString(), options)
    feed = {"m": np.array([[1, 1, 0, 1], [1, 0, 1, 1]], np.float32), "x": np.full((2, 4), 0.5, np.float32)}
    with InferenceSession(model, devices="openvino") as session:
        np.testing.assert_allclose(session.run(None, feed)[0], oracle.run(None, feed)[0], rtol=1e-6)
        assert {step.device for step in session.provenance.steps} == {"openvino"}


def test_rounding_by_a_large_constant():
    """Adding and subtracting 1.5 * 2^23 rounds to integers, halves to even."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]> g (float[7] x) => (float[7] y)
    <float C = {12582912}> { a = Add(x, C) y = Sub(a, C) }""")
    numbers = np.array([-2.5, -1.4, -0.5, 0.2, 0.5, 1.5, 2.7], np.float32)
    with InferenceSession(model, devices="openvino") as session:
        np.testing.assert_array_equal(session.run(None, {"x": numbers})[0], np.rint(numbers))


@for_every(added=("5000", "8388608"), rows=("3", "N"))
def test_nan_stays_nan(added, rows):
    model = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 17]> g (float[{rows}] x) => (float[{rows}] y)
    <float C = {{{added}}}, float b = {{0.1}}> {{ a = Add(x, C) y = Add(a, b) }}""")
    numbers = np.array([np.nan, 1, np.inf], np.float32)
    with InferenceSession(model, devices="openvino") as session:
        result = session.run(None, {"x": numbers})[0]
    np.testing.assert_allclose(result, numbers + np.float32(added) + np.float32(0.1), rtol=1e-6)


def test_large_numbers_are_centered_before_they_are_scaled():
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]> g (float[3] x) => (float[3] y)
    <float mean = {1000000}, float deviation = {3}> { a = Sub(x, mean) y = Div(a, deviation) }""")
    numbers = np.array([1000000, 1000001, 999999.5], np.float32)
    with InferenceSession(model, devices="openvino") as session:
        result = session.run(None, {"x": numbers})[0]
    np.testing.assert_allclose(result, (numbers - np.float32(1e6)) / np.float32(3), rtol=1e-6)


def test_bias_is_not_lost_next_to_a_mask():
    """T5's attention has a constant bias and a mask of large constants."""
    generator = np.random.default_rng(0)
    bias = generator.standard_normal((1, 2, 5, 5)).astype(np.float32)
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 17]> g
    (float[1, 2, 5, 8] q, float[1, 2, 8, 5] k, int64[1, 5] attention_mask) => (float[1, 2, 5, 5] y)
    <float one = {1}, float least = {-3.4028235e38}, int64[2] axes = {1, 2}> {
        t = Cast<to = 1>(attention_mask)
        w = Unsqueeze(t, axes)  a = Sub(one, w)  m = Mul(a, least)  b = Add(bias, m)
        s = MatMul(q, k)  c = Add(s, b)  y = Softmax<axis = -1>(c)
    }""")
    model.graph.initializer.append(onnx.numpy_helper.from_array(bias, "bias"))
    oracle = onnxruntime.InferenceSession(model.SerializeToString())
    with InferenceSession(model, devices="openvino") as session:
        for mask in ([1, 1, 1, 1, 1], [1, 1, 1, 0, 0]):
            feed = {
                "q": generator.standard_normal((1, 2, 5, 8)).astype(np.float32),
                "k": generator.standard_normal((1, 2, 8, 5)).astype(np.float32),
                "attention_mask": np.array([mask]),
            }
            np.testing.assert_allclose(session.run(None, feed)[0], oracle.run(None, feed)[0], atol=1e-6)
