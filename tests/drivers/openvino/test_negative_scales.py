"""Values scaled by negative numbers per channel, then quantized: wrong with dynamic shapes."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnxruntime

from nnadapter import InferenceSession
from tests.every import for_every, for_every_value

NEGATED = {
    "Mul": "m = Mul(x, k)",
    "Div": "m = Div(x, k)",
    "Mul and Add": "a = Mul(x, k)  m = Add(a, k)",
    "Sub and Mul": "a = Sub(one, x)  m = Mul(a, p)",
    "Neg and Mul": "a = Neg(x)  m = Mul(a, p)",
    "Identity between": "a = Mul(x, k)  m = Identity(a)",
    "BatchNormalization": "m = BatchNormalization(x, v, v, v, r)",
    "quantized before": "b = QuantizeLinear(x, s, z)  d = DequantizeLinear(b, s, z)  m = Mul(d, k)",
}
STEP = 0.03


@for_every_value(negated=NEGATED, kind=(("int8", 0), ("int8", -128), ("uint8", 128), ("uint8", 0)))
def test_values_quantized_after_negative_factors_keep_their_sign(negated, kind):
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[N, 2, H, 5] x) => (float[a, b, c, d] y)
    <float s = {{{STEP}}}, {kind[0]} z = {{{kind[1]}}}, float[2, 1, 1] k = {{0.9, -2.1}},
    float[2, 1, 1] p = {{0.9, 2.1}}, float one = {{1}}, float[2] v = {{0.9, -2.1}}, float[2] r = {{1, 2}}> {{
        {NEGATED[negated]}
        q = QuantizeLinear(m, s, z)
        y = DequantizeLinear(q, s, z)
    }}"""
    checked = onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text))
    oracle, numbers = onnxruntime.InferenceSession(checked.SerializeToString()), np.random.default_rng(1)
    with InferenceSession(checked, devices="openvino") as session:
        for rows, height in ((1, 4), (2, 5), (3, 3)):
            feed = {"x": numbers.standard_normal((rows, 2, height, 5)).astype(np.float32)}
            np.testing.assert_allclose(session.run(None, feed)[0], oracle.run(None, feed)[0], atol=1.01 * STEP)


CONV = """c = QuantizeLinear(x, s, z)  d = DequantizeLinear(c, s, z)  w = DequantizeLinear(weights, ws, wz)
        v = Conv(d, w)  e = QuantizeLinear(v, s, low)  f = DequantizeLinear(e, s, low)"""
JOINED = {
    "Sub, turned and joined": f"""{CONV}  a = Sub(k, f)
        b = Transpose<perm = [0, 1, 3, 2]>(a)  g = Transpose<perm = [0, 1, 3, 2]>(b)  m = Concat<axis = 1>(g, d)""",
    "Sub, quantized and joined": f"""{CONV}  a = Sub(k, f)  h = QuantizeLinear(a, coarse, low)
        i = DequantizeLinear(h, coarse, low)  j = QuantizeLinear(i, s, low)  l = DequantizeLinear(j, s, low)
        m = Concat<axis = 1>(l, d)""",
    "Mul by what is dequantized": f"{CONV}  n = DequantizeLinear(minus, ws, wz)  m = Mul(f, n)",
}


@for_every(joined=JOINED)
def test_signs_are_kept_before_joins(joined):
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[N, 3, H, W] x) => (float[a, b, c, d] y)
    <float s = {{0.05}}, float coarse = {{0.1}}, float ws = {{0.0053}}, int8 z = {{-1}}, int8 low = {{-108}},
    int8 wz = {{0}}, int8[2, 3, 1, 1] weights = {{25, 21, 127, 111, 35, -125}},
    int8[2, 1, 1] minus = {{127, -127}}, float[2, 1, 1] k = {{1.055, -0.697}}> {{
        {JOINED[joined]}
        q = QuantizeLinear(m, s, low)  t = DequantizeLinear(q, s, low)  y = Relu(t)
    }}"""
    checked = onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text))
    options, numbers = onnxruntime.SessionOptions(), np.random.default_rng(1)
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    oracle = onnxruntime.InferenceSession(checked.SerializeToString(), options)
    with InferenceSession(checked, devices="openvino") as session:
        for shape in ((2, 3, 5, 2), (2, 3, 8, 1), (1, 3, 1, 1), (1, 3, 9, 1), (1, 3, 1, 1)):
            for _ in range(4):
                feed = {"x": 1.5 * numbers.standard_normal(shape).astype(np.float32)}
                np.testing.assert_allclose(session.run(None, feed)[0], oracle.run(None, feed)[0], atol=0.11)
