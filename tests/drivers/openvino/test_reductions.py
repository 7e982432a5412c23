"""Reductions over one of three dimensions with constants per channel, which the engine misreads."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnxruntime

from nnadapter import InferenceSession
from nnadapter.drivers.openvino import read
from tests.every import for_every, for_every_value

CONSTANTS = """float[1, 3] flat = {-4.5, 2, 3}, float[1, 3, 1] deep = {-4.5, 2, 3}, float[3] each = {1, 2, 3},
float[3] spread = {4, 5, 6}, int64[1] last = {-1}, int64[1] first = {0}, float half = {0.5}"""
REDUCED = {
    "flat": "m = {}<keepdims = 0>(x, last)",
    "deep": "m = {}(x, last)",
}
OPS = ("ReduceSum", "ReduceMean", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare")
POOLS = ("GlobalAveragePool", "GlobalMaxPool")
FOLLOWING = (
    "y = Add(m, {0})",
    "y = Sub({0}, m)",
    "y = Div(m, {0})",
    "a = Relu(m)  b = Mul(a, half)  y = Mul(b, {0})",
)
NORMALIZED = "y = BatchNormalization(m, each, each, each, spread)"
NORM = "m = ReduceMean(x, last)  d = Sub(x, m)  s = Mul(d, d)  v = ReduceMean(s, last)  r = Sqrt(v)  y = Div(d, r)"


def model(nodes, batch="N"):
    graph = f"g (float[{batch}, 3, 4] x) => (float y) <{CONSTANTS}> {{ {nodes} }}"
    parsed = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> {graph}')
    parsed.graph.output[0].type.tensor_type.ClearField("shape")
    return onnx.shape_inference.infer_shapes(parsed)


def check(nodes, batch="N"):
    parsed = model(nodes, batch)
    oracle = onnxruntime.InferenceSession(parsed.SerializeToString())
    with InferenceSession(parsed, devices="openvino") as session:
        for count in (batch,) if batch != "N" else (1, 3, 2):
            feed = {"x": np.random.default_rng(count).uniform(0.5, 2, (count, 3, 4)).astype(np.float32)}
            np.testing.assert_allclose(session.run(None, feed)[0], oracle.run(None, feed)[0], rtol=1e-4, atol=1e-4)
        assert {node.device for node in session.report().nodes} == {"openvino"}


@for_every_value(op=OPS, following=FOLLOWING, constant=REDUCED)
def test_constants_per_channel_after_a_reduction_apply_to_every_batch(op, following, constant):
    check(f"{REDUCED[constant].format(op)}  {following.format(constant)}")


@for_every(following=FOLLOWING, constant=REDUCED)
def test_constants_per_channel_after_a_static_reduction_apply_to_every_batch(following, constant):
    check(f"{REDUCED[constant].format(OPS[0])}  {following.format(constant)}", batch=2)


@for_every(pool=POOLS, following=(FOLLOWING[0].format("deep"), NORMALIZED))
def test_constants_per_channel_after_a_global_pool_apply_to_every_batch(pool, following):
    check(f"m = {pool}(x)  {following}")


def test_other_reductions_are_unchanged():
    def ranks(nodes):
        reductions = [op for op in read(model(nodes)).get_ops() if op.get_type_name().startswith("Reduce")]
        return [op.get_input_partial_shape(0).rank.get_length() for op in reductions]

    assert ranks(NORM) == [3, 3]
    assert ranks("m = ReduceMean(x, last)  y = Mul(m, half)") == [3]
    assert ranks("m = ReduceMean(x, last)  y = Mul(m, deep)") == [4]


def test_a_constant_per_channel_after_a_reduction_of_the_first_dimension():
    for batch in (2, "N"):
        for op_type in ("ReduceMean", "ReduceSum"):
            check(f"m = {op_type}(x, first) y = Add(m, deep)", batch)
