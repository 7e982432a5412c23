"""Quantized products with several readers: with dynamic shapes the engine scaled them twice."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnxruntime

from nnadapter import InferenceSession
from tests.every import for_every_value

PRODUCTS = {
    "Conv": ("N, 8, H, W", "8, 8, 3, 3", "c = Conv<pads = [1, 1, 1, 1]>(d, f)"),
    "Conv in groups": ("N, 8, H, W", "8, 1, 3, 3", "c = Conv<pads = [1, 1, 1, 1], group = 8>(d, f)"),
    "Conv with a bias": ("N, 8, H, W", "8, 8, 1, 1", "c = Conv(d, f, b)"),
    "MatMul": ("N, H, 8", "8, 8", "c = MatMul(d, f)"),
}
READERS = {
    "an output": ("y = Relu(c)", "c"),
    "a sum": ("r = Tanh(c)  y = Add(c, r)", ""),
    "itself": ("y = Add(c, c)", ""),
    "behind Identity": ("i = Identity(c)  y = Relu(i)  u = Neg(i)", "u"),
    "quantized": ("r = QuantizeLinear(c, t, z)  y = DequantizeLinear(r, t, z)", "c"),
    "quantized, a sum": ("r = QuantizeLinear(c, t, z)  e = DequantizeLinear(r, t, z)  y = Add(c, e)", ""),
}
STEP = 0.03


@for_every_value(product=PRODUCTS, reader=READERS, kind=(("int8", 0), ("uint8", 128)))
def test_products_of_quantized_values_are_scaled_once(product, reader, kind):
    shape, weights, node = PRODUCTS[product]
    body, also = READERS[reader]
    numbers = np.random.default_rng(1)
    filled = ", ".join(map(str, numbers.integers(-40, 40, np.prod(list(map(int, weights.split(",")))))))
    text = f"""<ir_version: 8, opset_import: ["": 17]> g (float[{shape}] x) => (y)
    <float s = {{0.05}}, float t = {{{STEP}}}, {kind[0]} z = {{{kind[1]}}}, float h = {{0.01}},
    int8[{weights}] w = {{{filled}}}, float[8] b = {{0, 1, 2, 3, 4, -1, -2, 0.5}}> {{
        q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)
        f = DequantizeLinear(w, h)
        {node}
        {body}
    }}"""
    checked = onnx.parser.parse_model(text)
    checked.graph.output.extend(onnx.ValueInfoProto(name=name) for name in filter(None, [also]))
    oracle = onnxruntime.InferenceSession(checked.SerializeToString())
    with InferenceSession(checked, devices="openvino") as session:
        for sizes in ((2, 4, 5), (3, 5, 4), (1, 6, 6)):
            rows, height, width = sizes
            x = numbers.standard_normal((rows, 8, height, width) if "W" in shape else (rows, height, 8))
            feed = {"x": x.astype(np.float32)}
            for got, expected in zip(session.run(None, feed), oracle.run(None, feed), strict=True):
                np.testing.assert_allclose(got, expected, atol=1.01 * STEP)
        assert {node.device for node in session.report().nodes if node.device} == {"openvino"}
