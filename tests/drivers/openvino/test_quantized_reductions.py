"""Quantized reductions with three dimensions and a batch: zero points were read out of bounds."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnxruntime

from nnadapter import InferenceSession
from tests.every import for_every_value

FOLLOWING = {
    "nothing": "y = Identity(m)",
    "quantized": "b = QuantizeLinear(m, t, z)  y = DequantizeLinear(b, t, z)",
    "quantized, a difference": "b = QuantizeLinear(m, t, z)  e = DequantizeLinear(b, t, z)  y = Sub(d, e)",
    "quantized, a sum": "b = QuantizeLinear(m, t, z)  e = DequantizeLinear(b, t, z)  y = Add(e, k)",
    "a sum": "y = Add(m, k)",
}
STEP = 0.02


@for_every_value(op_type=("Mean", "Sum", "Max", "Min", "L1", "L2"), axis=(1, 2), following=FOLLOWING)
def test_quantized_reductions_use_their_zero_points(op_type, axis, following):
    """LayerNormalization written in parts has these."""
    text = f"""<ir_version: 8, opset_import: ["": 18]> g (float[4, 3, 5] x) => (float[a, b, c] y)
    <float s = {{0.0485}}, float t = {{{STEP}}}, uint8 z = {{128}}, int64[1] axes = {{{axis}}}, float k = {{1.5}}> {{
        q = QuantizeLinear(x, s, z)  d = DequantizeLinear(q, s, z)
        m = Reduce{op_type}(d, axes)
        {FOLLOWING[following]}
    }}"""
    checked = onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text))
    feed = {"x": np.random.default_rng(1).standard_normal((4, 3, 5)).astype(np.float32) * 2}
    oracle = onnxruntime.InferenceSession(checked.SerializeToString())
    with InferenceSession(checked, devices="openvino") as session:
        np.testing.assert_allclose(session.run(None, feed)[0], oracle.run(None, feed)[0], atol=1.01 * STEP)
