"""Recurrent states: openvino keeps the nodes around an unsupported layer."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper

import nnadapter as nna
from tests.models import numbers, parse, run_whole

HYBRID = """<ir_version: 10, opset_import: ["" : 17, "com.microsoft" : 1]> g
(float[b, t, 8] x, float[b, 24, 2] past_conv, float[b, 2, 4, 4] past_state,
 float[8, 24] into, float[24, 1, 3] filter, float[8, 2] fading, float[8, 8] out)
=> (float[b, t, 8] y, float[b, 24, 2] conv, float[b, 2, 4, 4] state)
<float[2] none = {0, 0}, float[2] fast = {-0.5, -1}, float[4] scale = {1, 2, 1, 0.5}> {
    mixed = MatMul (x, into)
    turned = Transpose <perm = [0, 2, 1]> (mixed)
    seen, conv = com.microsoft.CausalConvWithState <activation = "silu"> (turned, filter, , past_conv)
    rows = Transpose <perm = [0, 2, 1]> (seen)
    query, key, value = Split <axis = 2> (rows)
    gate = MatMul (x, fading)
    decay, rate = com.microsoft.LinearAttentionGate (gate, none, fast, gate)
    made, state = com.microsoft.LinearAttention <q_num_heads = 2, kv_num_heads = 2>
        (query, key, value, past_state, decay, rate)
    normal = com.microsoft.GatedRMSNorm (made, scale, x)
    y = MatMul (normal, out)
}"""
DEVICES = {  # part of each device's ops; openvino supports function bodies
    "openvino": {"MatMul", "Conv", "Div"},
    "fake_npu": {"MatMul", "LinearAttention"},
}


def hybrid():
    model = parse(HYBRID)
    inputs, weights = model.graph.input[:3], model.graph.input[3:]
    for seed, info in enumerate(weights):
        sizes = [dimension.dim_value for dimension in info.type.tensor_type.shape.dim]
        model.graph.initializer.append(numpy_helper.from_array(numbers(*sizes, seed=seed), info.name))
    del model.graph.input[len(inputs) :]
    return model


@pytest.mark.parametrize("device", DEVICES)
def test_decoder_with_states_needs_few_plans(device):
    model, past = hybrid(), [np.zeros((2, 24, 2), np.float32), np.zeros((2, 2, 4, 4), np.float32)]
    with nna.InferenceSession(model, devices=device, options=nna.Options(fallback="allow")) as session:
        for length in (4, 1, 1, 3, 7, 1):
            feed = {"x": numbers(2, length, 8, seed=length), "past_conv": past[0], "past_state": past[1]}
            results = session.run(None, feed)
            for got, expected in zip(results, run_whole(model, feed), strict=True):
                np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
            past = results[1:]
        report = session.report()
    assert report.plans.compiled <= 3, report.plans
    op_types = {node.op_type for node in report.nodes if node.device == device}
    assert op_types >= DEVICES[device], op_types


MEASURED = """<ir_version: 10, opset_import: ["" : 17]> g
(float[n, t] x, float[n, p] past, float[n, 1] factor) => (float[n, a] y) {
    raised = Exp (x)
    bent = Erf (raised)
    seen = Concat <axis = 1> (past, bent)
    size = Shape (seen)
    factors = Expand (factor, size)
    halved = Sqrt (factors)
    y = Mul (seen, halved)
}"""


def test_step_may_need_sizes_of_later_values():
    model, devices = parse(MEASURED), [("openvino", {"switched_off": "Erf"})]
    with nna.InferenceSession(model, devices=devices, options=nna.Options(fallback="allow")) as session:
        for steps, past_length in ((3, 4), (1, 7), (1, 8), (5, 2), (1, 9)):
            feed = {"x": numbers(2, steps), "past": numbers(2, past_length), "factor": abs(numbers(2, 1))}
            np.testing.assert_allclose(session.run(None, feed)[0], run_whole(model, feed)[0], rtol=1e-5, atol=1e-6)
        report = session.report()
    assert report.plans.compiled <= 2 and report.plans.served_shapes_text == "one plan for all input shapes", (
        report.plans
    )
    assert {node.op_type for node in report.nodes if node.device == "cpu"} == {"Erf"}
