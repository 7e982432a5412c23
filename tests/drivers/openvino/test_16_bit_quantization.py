"""Values quantized to 16 bits and dequantized: the engine drops both, and their saturation."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnxruntime

from nnadapter import InferenceSession
from nnadapter.drivers.openvino import read
from tests.every import for_every, for_every_value

PRODUCERS = {
    "nothing": "b = Identity(x)",
    "Mul": "b = Mul(x, half)",
    "MatMul": "b = MatMul(x, square)",
    "Conv": "b = Conv(x, filter)",
    "MaxPool": "b = MaxPool<kernel_shape = [2, 2]>(x)",
    "Relu": "b = Relu(x)",
    "Softmax": "b = Softmax(x)",
    "quantized": "r = QuantizeLinear(x, coarse, origin)  t = DequantizeLinear(r, coarse, origin)  b = Mul(t, half)",
}
TYPES = {"uint16": (0, 32768), "int16": (0, -32768)}
STEP = 1e-5
FEED = {"x": np.random.default_rng(3).standard_normal((2, 3, 4, 4)).astype(np.float32)}


def model(producer, dtype, point, batch, end="y = Sigmoid(d)"):
    numbers = ", ".join(f"{value:.3f}" for value in np.random.default_rng(4).standard_normal(48))
    square = ", ".join(numbers.split(", ")[:16])
    text = f"""<ir_version: 10, opset_import: ["": 21]> g (float[{batch}, 3, 4, 4] x) => (float[a, b, c, e] y)
    <float step = {{{STEP}}}, {dtype} point = {{{point}}}, float half = {{0.5}}, float[4, 4] square = {{{square}}},
    float[4, 3, 2, 2] filter = {{{numbers}}}, float coarse = {{0.02}}, int8 origin = {{0}}> {{
        {PRODUCERS[producer]}
        q = QuantizeLinear(b, step, point)
        d = DequantizeLinear(q, step, point)
        {end}
    }}"""
    return onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text))


def check(checked):
    oracle = onnxruntime.InferenceSession(checked.SerializeToString())
    with InferenceSession(checked, devices="openvino") as session:
        np.testing.assert_allclose(session.run(None, FEED)[0], oracle.run(None, FEED)[0], atol=2 * STEP)
        assert {node.device for node in session.report().nodes} == {"openvino"}


@for_every_value(producer=PRODUCERS, dtype=TYPES, kind=(0, 1), batch=("2", "N"))
def test_16_bit_quantization_saturates(producer, dtype, kind, batch):
    check(model(producer, dtype, TYPES[dtype][kind], batch))


@for_every(dtype=TYPES, end=("y = Identity(d)", "y = Clip(d, half)", "y = ReduceMean(d)"))
def test_16_bit_quantization_before_other_ops(dtype, end):
    check(model("Mul", dtype, 0, "2", end))


def test_infinite_scale_has_no_bounds():
    text = """<ir_version: 10, opset_import: ["": 21]> g (float[2] x) => (float[2] y) <uint16 point = {0}> {
        q = QuantizeLinear(x, step, point)
        y = DequantizeLinear(q, step, point)
    }"""
    endless = onnx.parser.parse_model(text)
    endless.graph.initializer.append(onnx.numpy_helper.from_array(np.array(np.inf, np.float32), "step"))
    types = {operator.get_type_name() for operator in read(onnx.shape_inference.infer_shapes(endless)).get_ops()}
    assert "FakeQuantize" in types and "Maximum" not in types
