"""Values quantized to int8 and joined, which the engine multiplies in uint8 with zero points of int8."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnxruntime

from nnadapter import InferenceSession
from nnadapter.drivers.openvino.signed_steps import with_unsigned_steps
from tests.every import for_every

RANGES = {0: (-2, 2), -128: (0, 4), -28: (-1.57, 2.43)}
"""What the zero points are of."""
JOINED = {
    "as they are": "c = Concat<axis = 1>(x, z)",
    "quantized before": """p = QuantizeLinear(x, other, zero)  r = DequantizeLinear(p, other, zero)
    s = QuantizeLinear(z, step, zero)  t = DequantizeLinear(s, step, zero)  c = Concat<axis = 1>(r, t)""",
}
BEHIND = {
    "Conv": "y = Conv(d, f)",
    "padded Conv": "y = Conv<pads = [1, 1, 1, 1]>(d, f)",
    "MaxPool": "m = MaxPool<kernel_shape = [2, 2]>(d)  y = Conv(m, f)",
    "again": "e = Conv(d, f)  h = QuantizeLinear(e, step, zero)  y = DequantizeLinear(h, step, zero)",
}


def model(joined, behind, point, batch="2"):
    weights = ", ".join(map(str, np.random.default_rng(5).integers(-127, 128, 32)))
    text = f"""<ir_version: 8, opset_import: ["": 13]>
    g (float[{batch}, 3, 4, 4] x, float[{batch}, 5, 4, 4] z) => (float[a, b, h, w] y)
    <float step = {{{4 / 255}}}, float other = {{0.0152}}, int8 zero = {{{point}}},
    int8[4, 8, 1, 1] filter = {{{weights}}}, float size = {{0.01}}, int8 origin = {{0}}> {{
        {JOINED[joined]}
        q = QuantizeLinear(c, step, zero)
        d = DequantizeLinear(q, step, zero)
        f = DequantizeLinear(filter, size, origin)
        {BEHIND[behind]}
    }}"""
    return onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text))


@for_every(joined=JOINED, behind=BEHIND, point=RANGES, batch=("2", "N"))
def test_joined_values_of_int8_are_multiplied_as_they_are(joined, behind, point, batch):
    checked, options = model(joined, behind, point, batch), onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    numbers = np.random.default_rng(6)
    feed = {
        name: numbers.uniform(*RANGES[point], (2, size, 4, 4)).astype(np.float32) for name, size in (("x", 3), ("z", 5))
    }
    known = onnxruntime.InferenceSession(checked.SerializeToString(), options)
    with InferenceSession(checked, devices="openvino") as session:
        np.testing.assert_allclose(session.run(None, feed)[0], known.run(None, feed)[0], atol=1.01 * 4 / 255)
        assert {node.device for node in session.report().nodes if node.device} == {"openvino"}


def test_what_is_not_dequantized_keeps_its_type():
    read = model("quantized before", "Conv", 0)
    made = with_unsigned_steps(read)
    types = {info.name: info.type.tensor_type.elem_type for info in made.graph.value_info}
    assert {types[name] for name in "pqs"} == {onnx.TensorProto.UINT8}
    assert onnx.checker.check_model(made, full_check=True) is None
    read.graph.output.append(onnx.helper.make_tensor_value_info("q", onnx.TensorProto.INT8, [2, 8, 4, 4]))
    types = {info.name: info.type.tensor_type.elem_type for info in with_unsigned_steps(read).graph.value_info}
    assert (types["p"], types["q"]) == (onnx.TensorProto.UINT8, onnx.TensorProto.INT8)
    del read.graph.node[:]
    assert with_unsigned_steps(read) is read
