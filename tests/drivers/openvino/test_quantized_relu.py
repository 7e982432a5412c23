"""Quantized products, rectified and scaled by negative numbers, which the engine moved inside the rectifier."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnxruntime

from nnadapter import InferenceSession
from nnadapter.drivers.openvino import quantized_workarounds, read
from tests.every import for_every_value

PRODUCTS = {"Conv": "p = Conv(d, f)", "scaled": "o = Conv(d, f)  p = Mul(o, two)", "MatMul": "p = MatMul(d, g)"}
RECTIFIERS = {"Relu": "r = Relu(p)", "LeakyRelu": "r = LeakyRelu<alpha = 0.1>(p)"}
NEGATED = {
    "Mul": "y = Mul(r, k)",
    "Mul by what is dequantized": "n = DequantizeLinear(m, ws, wz)  y = Mul(r, n)",
    "Div": "y = Div(r, k)",
    "Neg": "y = Neg(r)",
    "Add and Neg": "a = Add(r, one)  y = Neg(a)",
    "Sub": "a = Sub(one, r)  y = LeakyRelu<alpha = 0.2>(a)",
    "BatchNormalization": "y = BatchNormalization(r, v, v, v, one_each)",
}


def model(product, rectifier, negated, size):
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[N, 2, {size}, 2] x) => (float[N, 2, {size}, 2] y)
    <float s = {{0.03}}, uint8 z = {{128}}, float ws = {{0.01}}, int8 wz = {{0}}, float one = {{1}}, float two = {{2}},
    int8[2, 2, 1, 1] w = {{100, -90, 70, 120}}, int8[2, 2] h = {{100, -90, 70, 120}}, int8[2, 1, 1] m = {{-80, 120}},
    float[2, 1, 1] k = {{-0.9, 2.1}}, float[2] v = {{-0.9, 2.1}}, float[2] one_each = {{1, 1}}> {{
        q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)
        f = DequantizeLinear(w, ws, wz)  g = DequantizeLinear(h, ws, wz)  {product}  {rectifier}  {negated}
    }}"""
    return onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text))


@for_every_value(product=PRODUCTS, rectifier=RECTIFIERS, negated=NEGATED, size=("H", "3"))
def test_products_are_rectified_before_negative_factors(product, rectifier, negated, size):
    parsed = model(PRODUCTS[product], RECTIFIERS[rectifier], NEGATED[negated], size)
    oracle = onnxruntime.InferenceSession(parsed.SerializeToString())
    with InferenceSession(parsed, devices="openvino") as session:
        for rows in (2, 1, 3):
            feed = {"x": np.random.default_rng(rows).standard_normal((rows, 2, 3, 2)).astype(np.float32)}
            np.testing.assert_allclose(session.run(None, feed)[0], oracle.run(None, feed)[0], atol=0.1)


def test_positive_factors_need_no_step(monkeypatch):
    monkeypatch.setattr(
        quantized_workarounds, "_has_room", lambda: True
    )  # products need no step either, on any processor

    def steps(negated):
        ops = read(model(PRODUCTS["Conv"], RECTIFIERS["Relu"], negated, "3")).get_ops()
        return sum(op.get_type_name() == "Maximum" for op in ops)

    assert (steps("y = Mul(r, two)"), steps("y = Neg(r)"), steps("y = Sub(r, one)")) == (0, 1, 0)
