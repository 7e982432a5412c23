"""If, Loop and Scan with captured values, sequences, optionals and strings, in segments of several devices."""

from __future__ import annotations

import numpy as np
import pytest

import nnadapter as nna
from tests.models import numbers, parse, run_whole

HEAD = '<ir_version: 10, opset_import: ["" : 18]>'
IF = """(bool c, float[2, 3] x) => (float[2, 3] y) {
    a = Relu(x)
    b = If(c) <
        then_branch = t () => (float[2, 3] p) { p = Add(a, x) },
        else_branch = e () => (float[2, 3] q) { q = Neg(a) }
    >
    y = Exp(b)
}"""
LOOP = """(int64 n, float[3] x) => (float[3] y, float[m, 3] all, int64[m] counts, float[m, 1, 3] tall) {
    a = Relu(x)
    z = Neg(a)
    on = Constant<value = bool {1}>()
    l, all, counts, tall = Loop(n, on, z) <body = b (int64 i, bool go, float[3] s)
            => (bool go_on, float[3] t, float[3] each, int64 count, float[1, 3] high) {
        go_on = Identity(go)
        t = Add(s, a)
        each = Identity(t)
        count = Identity(i)
        zero = Constant<value = int64[1] {0}>()
        high = Unsqueeze(t, zero)
    }>
    y = Exp(l)
}"""
SCAN = """(float[4, 3] x, float[3] s) => (float[3] y, float[4, 3] all) {
    a = Relu(x)
    w = Neg(s)
    l, all = Scan<num_scan_inputs = 1, body = b (float[3] h, float[3] v) => (float[3] g, float[3] each) {
        m = Mul(v, w)
        g = Add(h, m)
        each = Identity(g)
    }>(w, a)
    y = Exp(l)
}"""
SEQUENCES = """(float[2, 3] x, int64 p) => (seq(float[2, 3]) s, float[2, 3] y) {
    a = Relu(x)
    b = Neg(a)
    s = SequenceConstruct(a, b, x)
    c = SequenceAt(s, p)
    y = Exp(c)
}"""
OPTIONAL = """(float[2, 3] x) => (bool h, bool e, float[2, 3] y) {
    a = Relu(x)
    o = Optional(a)
    n = Optional<type = float[2, 3]>()
    h = OptionalHasElement(o)
    e = OptionalHasElement(n)
    g = OptionalGetElement(o)
    y = Exp(g)
}"""
TEXTS = """(string[3] t, float[3] x) => (string[3] u, string[3] v, float[3] y) {
    u = Identity(t)
    k = Constant<value = string[3] {"a", "b", "c"}>()
    c = Greater(x, x)
    v = Where(c, t, k)
    y = Relu(x)
}"""
CASES = {
    "if": (IF, {"c": np.array(True), "x": numbers(2, 3)}),
    "else": (IF, {"c": np.array(False), "x": numbers(2, 3)}),
    "loop": (LOOP, {"n": np.array(4), "x": numbers(3)}),
    "no loop": (LOOP, {"n": np.array(0), "x": numbers(3)}),
    "scan": (SCAN, {"x": numbers(4, 3), "s": numbers(3, seed=1)}),
    "sequences": (SEQUENCES, {"x": numbers(2, 3), "p": np.array(1)}),
    "optionals": (OPTIONAL, {"x": numbers(2, 3)}),
    "texts": (TEXTS, {"t": np.array(["ä", "", "語"], object), "x": numbers(3)}),
}


def model(text):
    return parse(f"{HEAD} g {text}")


def agree(got, expected):
    for mine, theirs in zip(got, expected, strict=True):
        if isinstance(theirs, list):
            assert isinstance(mine, list)
            agree(mine, theirs)
        elif theirs.dtype == object:
            np.testing.assert_array_equal(mine, theirs)
        else:
            assert mine.dtype == theirs.dtype
            np.testing.assert_allclose(mine, theirs, rtol=1e-5)


@pytest.mark.parametrize("devices", [["fake_npu", "cpu"], ["null", "cpu"], ["fake_npu", "reference"]])
@pytest.mark.parametrize("name", CASES)
def test_results_equal_onnx_runtime(name, devices):
    text, feed = CASES[name]
    if devices[0] == "null":
        devices = [("null", {}), "cpu"] if name == "texts" else ["cpu"]
    with nna.InferenceSession(model(text), devices=devices, options=nna.Options(fallback="allow")) as session:
        got, expected = session.run(None, feed), run_whole(model(text), feed)
        if devices[0] == ("null", {}):
            got, expected = got[:2], expected[:2]  # null computes zeros
        agree(got, expected)
        assert not session.provenance.fell_back


@pytest.mark.parametrize("name", ["if", "loop", "scan"])
def test_nodes_around_control_flow_are_delegated(name):
    text = CASES[name][0].replace("b = If(c)", "m = ReduceMax<keepdims = 0>(x) d = Cast<to = 9>(m) b = If(d)")
    report = nna.partition_report(model(text), "fake_npu")
    node = next(node for node in report.nodes if node.op_type in ("If", "Loop", "Scan"))
    assert node.device == "cpu" and node.refusals[0].reason == "control_flow"
    assert "Add x1" in node.refusals[0].detail
    assert any(body.op_types.get("Add") == 1 for body in node.bodies)
    # Outputs of Loop have no shape before it runs.
    around = {"Relu"} if name == "loop" else {"Relu", "Exp"}
    assert {other.op_type for other in report.nodes if other.device == "fake_npu"} >= around
    assert all(not other.bodies for other in report.nodes if other is not node)


def test_unfed_optional_is_empty():
    text = "(optional(float[2]) o) => (bool h) { h = OptionalHasElement(o) }"
    for devices in ("fake_npu", "reference"):
        with nna.InferenceSession(model(text), devices=devices, options=nna.Options(fallback="allow")) as session:
            assert not session.run(None, {"o": None})[0]
            assert session.run(None, {"o": numbers(2)})[0]


GENERATION = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]> g
(int64[n, t] ids, int32[1] most, int32[1] least, float[1] penalty) => (int32[n, m] sequences, float[n, m, 2] y)
<float[3, 2] kinds = {1, 2, -1, -2, 5, 6}> {
    texts = Cast <to = 6> (ids)
    sequences = com.microsoft.GreedySearch <eos_token_id = 3, pad_token_id = 3, decoder = d
        (int32[b, s] input_ids, int32[b, s] position_ids, int32[b, a] attention_mask, float[2, b, 1, p, 2] past_0)
        => (float[b, s, 4] logits, float[2, b, 1, a, 2] present_0)
        <float[4, 4] next = {0, 9, 1, 2, 1, 0, 9, 2, 8, 1, 2, 0, 0, 1, 2, 9},
         float[2, 1, 1, 1, 2] places = {1, 2, 3, 4}, int64[3] axes = {0, 2, 4}> {
            logits = Gather (next, input_ids)
            real = Cast <to = 1> (input_ids)
            row = Unsqueeze (real, axes)
            new = Mul (row, places)
            present_0 = Concat <axis = 3> (past_0, new)
        }> (texts, most, least, penalty)
    rows = Gather (kinds, sequences)
    y = Relu (rows)
}"""


@pytest.mark.parametrize("device", ["fake_npu", "openvino"])
def test_generation_runs_its_decoder_on_the_cpu(device):
    whole, steps = parse(GENERATION), np.array([7], np.int32)
    with nna.InferenceSession(whole, devices=device, options=nna.Options(fallback="allow")) as session:
        for ids in ([[0, 1], [2, 0]], [[2, 2, 1]]):
            feed = {"ids": np.array(ids), "most": steps, "least": steps, "penalty": np.ones(1, np.float32)}
            agree(session.run(None, feed), run_whole(whole, feed))
        (node,) = (node for node in session.report().nodes if node.op_type == "GreedySearch")
    assert node.device == "cpu" and node.bodies[0].op_types["Gather"] == 1
    if device == "fake_npu":
        assert node.refusals[0].reason == "control_flow"
        assert "GreedySearch runs another graph" in node.refusals[0].detail
