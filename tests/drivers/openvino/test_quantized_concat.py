"""Quantized Concat: the engine reorders both, which crashed the process or used wrong zero points."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnxruntime

from nnadapter import InferenceSession, Options
from nnadapter.drivers.openvino import read
from tests.every import for_every_value

RANGES = {0: (-2, 2), -128: (0, 4), -28: (-1.57, 2.43)}
"""Range of each zero point."""
JOINED = {
    "as they are": "c = Concat<axis = 1>(x, z)",
    "quantized before": """p = QuantizeLinear(x, other, zero)  r = DequantizeLinear(p, other, zero)
    s = QuantizeLinear(z, step, zero)  t = DequantizeLinear(s, step, zero)  c = Concat<axis = 1>(r, t)""",
}
FOLLOWING = {
    "Conv": "y = Conv(d, f)",
    "padded Conv": "y = Conv<pads = [1, 1, 1, 1]>(d, f)",
    "MaxPool": "m = MaxPool<kernel_shape = [2, 2]>(d)  y = Conv(m, f)",
    "again": "e = Conv(d, f)  h = QuantizeLinear(e, step, zero)  y = DequantizeLinear(h, step, zero)",
}


def model(joined, following, point, batch="2"):
    weights = ", ".join(map(str, np.random.default_rng(5).integers(-127, 128, 32)))
    text = f"""<ir_version: 8, opset_import: ["": 13]>
    g (float[{batch}, 3, 4, 4] x, float[{batch}, 5, 4, 4] z) => (float[a, b, h, w] y)
    <float step = {{{4 / 255}}}, float other = {{0.0152}}, int8 zero = {{{point}}},
    int8[4, 8, 1, 1] filter = {{{weights}}}, float size = {{0.01}}, int8 origin = {{0}}> {{
        {JOINED[joined]}
        q = QuantizeLinear(c, step, zero)
        d = DequantizeLinear(q, step, zero)
        f = DequantizeLinear(filter, size, origin)
        {FOLLOWING[following]}
    }}"""
    return onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text))


@for_every_value(joined=JOINED, following=FOLLOWING, point=RANGES, batch=("2", "N"))
def test_products_of_joined_int8_values(joined, following, point, batch):
    checked, options = model(joined, following, point, batch), onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    numbers = np.random.default_rng(6)
    feed = {
        name: numbers.uniform(*RANGES[point], (2, size, 4, 4)).astype(np.float32) for name, size in (("x", 3), ("z", 5))
    }
    oracle = onnxruntime.InferenceSession(checked.SerializeToString(), options)
    with InferenceSession(checked, devices="openvino") as session:
        np.testing.assert_allclose(session.run(None, feed)[0], oracle.run(None, feed)[0], atol=1.01 * 4 / 255)
        assert {node.device for node in session.report().nodes if node.device} == {"openvino"}


def test_values_without_dequantize_keep_their_type():
    checked = model("quantized before", "Conv", 0)
    checked.graph.output.append(onnx.helper.make_tensor_value_info("q", onnx.TensorProto.INT8, [2, 8, 4, 4]))
    numbers = np.random.default_rng(6)
    feed = {name: numbers.uniform(-2, 2, (2, size, 4, 4)).astype(np.float32) for name, size in (("x", 3), ("z", 5))}
    expected = onnxruntime.InferenceSession(checked.SerializeToString()).run(["q"], feed)[0].astype(int)
    with InferenceSession(checked, devices="openvino") as session:
        (got,) = session.run(["q"], feed)
    assert got.dtype == np.int8 and np.abs(got - expected).max() <= 1


def test_model_without_concat_is_unchanged():
    joined = model("as they are", "Conv", 0)
    plain = onnx.ModelProto.FromString(joined.SerializeToString())
    plain.graph.node[0].CopyFrom(onnx.helper.make_node("Pad", ["x", "pads"], ["c"]))
    plain.graph.initializer.append(onnx.numpy_helper.from_array(np.array([0, 0, 0, 0, 0, 5, 0, 0]), "pads"))
    kinds = [[operator.get_type_name() for operator in read(item).get_ops()] for item in (joined, plain)]
    assert [item.count("Subtract") for item in kinds] == [1, 2]  # one for the filter, one for the values


TWICE = ("", "e = Mul(d, k)", "e = Add(d, k)", "e = Neg(d)", "e = Identity(d)", "e = BatchNormalization(d, v, v, v, v)")
KINDS = (("int8", 0), ("int8", -20), ("uint8", 128))


@for_every_value(
    kind=KINDS, middle=TWICE, joined=("c = Concat<axis = 1>(x, x)", "j = Concat<axis = 1>(x, x)  c = Relu(j)")
)
def test_joined_values_quantized_twice_do_not_crash(kind, middle, joined):
    """DenseNet has this: Mul and Add after a Concat."""
    text = f"""<ir_version: 10, opset_import: ["" : 19]> g (float[N, 2, 4, 4] x) => (float[N, 4, 4, 4] y)
    <float s = {{0.05}}, {kind[0]} z = {{{kind[1]}}}, float t = {{0.04}}, float[4, 1, 1] k = {{1, 2, 1, 2}},
    float[4] v = {{1, 2, 0.5, 2}}> {{
        {joined}
        q = QuantizeLinear (c, s, z)
        d = DequantizeLinear (q, s, z)
        {middle}
        r = QuantizeLinear ({"e" if middle else "d"}, t, z)
        y = DequantizeLinear (r, t, z)
    }}"""
    checked = onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text))
    feed = {"x": np.random.default_rng(2).standard_normal((2, 2, 4, 4)).astype(np.float32)}
    with InferenceSession(checked, devices="openvino", options=Options(isolate=True)) as session:
        (result,) = session.run(None, feed)
        assert not session.report().incidents
    oracle = onnxruntime.InferenceSession(checked.SerializeToString())
    np.testing.assert_allclose(result, oracle.run(None, feed)[0], atol=0.05)
