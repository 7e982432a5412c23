"""Data-dependent sizes inside a segment."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import onnx
import onnx.parser
import pytest

import nnadapter as nna
from nnadapter.errors import ExecutionError
from tests.drivers.openvino.harness import computed, context, model_of
from tests.models import parse, run_whole

DETECTION = parse("""<ir_version: 10, opset_import: ["" : 18]>
g (float[1, 50, 4] boxes, float[1, 3, 50] scores) => (float[k, 4] found, float[k] best)
<int64 most = {10}, float overlap = {0.5}, float least = {0.9}, int64 box = {2}, float[1] half = {0.5},
 int64[2] flat = {-1, 4}, int64[2] both = {0, 1}> {
    certain = Sigmoid (scores)
    kept = NonMaxSuppression (boxes, certain, most, overlap, least)
    at = Gather <axis = 1> (kept, box)
    rows = Reshape (boxes, flat)
    picked = Gather (rows, at)
    found = Mul (picked, half)
    by_class = ReduceMean <keepdims = 0> (certain, both)
    best = Gather (by_class, at)
}""")
SELECTION = parse("""<ir_version: 10, opset_import: ["" : 18]>
g (float[5, 7] x, float limit) => (float[k] y, int64[k, 2] at, float[m] means) <int64[1] last = {-1}> {
    is_large = Less (limit, x)
    found = NonZero (is_large)
    at = Transpose (found)
    values = GatherND (x, at)
    grown = Exp (values)
    count = Shape (grown)
    same = Reshape (grown, count)
    y = Sqrt (same)
    means = ReduceSum (same, last)
}""")


def detections(seed):
    generator = np.random.default_rng(seed)
    corners = generator.random((1, 50, 2), np.float32) * 10
    boxes = np.concatenate([corners, corners + generator.random((1, 50, 2), np.float32) * 4], 2)
    return {"boxes": boxes, "scores": generator.standard_normal((1, 3, 50)).astype(np.float32) * 2}


def devices_of(session):
    return {node.name: node.device for node in session.report().nodes if node.state == "runs"}


def test_selected_boxes_stay_in_the_segment():
    with nna.InferenceSession(DETECTION, devices="openvino", options=nna.Options(fallback="forbid")) as session:
        feeds = [detections(seed) for seed in range(4)]
        feeds.append(feeds[0] | {"scores": np.full((1, 3, 50), -9, np.float32)})  # no detections
        for feed in (*feeds, feeds[0]):
            for got, expected in zip(session.run(None, feed), run_whole(DETECTION, feed), strict=True):
                np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
                assert got.shape == expected.shape
        assert set(devices_of(session).values()) == {"openvino"} and len(session.report().segments) == 1


def test_nonzero_stays_in_the_segment():
    x = np.random.default_rng(0).standard_normal((5, 7)).astype(np.float32)
    with nna.InferenceSession(SELECTION, devices="openvino", options=nna.Options(fallback="forbid")) as session:
        for limit in (0.0, 1.0, 9.0, -9.0, 0.5):
            feed = {"x": x, "limit": np.array(limit, np.float32)}
            for got, expected in zip(session.run(None, feed), run_whole(SELECTION, feed), strict=True):
                np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
                assert got.dtype == expected.dtype and got.shape == expected.shape
        assert set(devices_of(session).values()) == {"openvino"}


@pytest.mark.parametrize(
    ("nodes", "detail"),
    [
        ("c = Concat <axis = 0> (b, b)", "Concat is not among the ops verified with data-dependent sizes"),
        ("r = Unsqueeze (b, one) c = Add (b, r)", "Add of dynamic sizes on different axes"),
    ],
)
def test_ops_that_fail_on_empty_inputs_are_refused(nodes, detail):
    model = onnx.shape_inference.infer_shapes(
        model_of(
            "(float[6] x) => (float c) <int64[1] all = {-1}, int64[1] one = {1}> "
            f"{{ i = NonZero (x) j = Transpose (i) b = GatherND (x, j) {nodes} }}"
        )
    )
    *accepted, refused = context().supported(model)
    assert all(accepted) and not refused and detail in refused.detail and refused.reason == "data_dependent_shape"


def test_expand_to_an_empty_size():
    model = parse("""<ir_version: 10, opset_import: ["" : 18]>
    g (float[n] x, float[1] s, float u) => (float[k] a, float[k] b, bool[k] c, float[k] d)
    <int64[1] one = {1}, int64[1] two = {2}, int64[1] no = {0}, float[1] three = {3}> {
        found = NonZero (x) sizes = Shape (found) k = Slice (sizes, one, two, no)
        filled = ConstantOfShape <value = float[1] {3}> (k) repeated = Expand (three, k)
        a = Mul (filled, s) b = Add (u, repeated) same = Identity (filled) c = Less (same, s) d = Exp (filled)
    }""")
    with nna.InferenceSession(model, devices=["openvino", "cpu"]) as session:
        for x in ([0, 1, 2], [0, 0], [0], [1], [0, 0, 0]):
            feed = {"x": np.array(x, np.float32), "s": np.array([2], np.float32), "u": np.array(5, np.float32)}
            for got, expected in zip(session.run(None, feed), run_whole(model, feed), strict=True):
                assert got.shape == expected.shape
                np.testing.assert_allclose(got, expected, rtol=1e-5)
        assert {devices_of(session)[name] for name in ("Exp_9", "ConstantOfShape_3")} == {"openvino"}


def convolution(attributes, filter_size):
    """Build a convolution over as many positions as the input has positive numbers."""
    model = model_of(
        "(float[9] x, float[9, 3] table) => (float[1, 4, m] y) <int64[1] no = {0}> {"
        "  large = Relu (x) found = NonZero (large) at = Squeeze (found, no) rows = Gather (table, at)"
        "  turned = Transpose <perm = [1, 0]> (rows) picture = Unsqueeze (turned, no)"
        f" wide = Conv {attributes} (picture, filter) bent = LeakyRelu (wide) y = Add (wide, bent) }}"
    )
    weights = np.random.default_rng(1).standard_normal((4, 3, filter_size)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "filter"))
    return onnx.shape_inference.infer_shapes(model)


@pytest.mark.parametrize(
    ("attributes", "filter_size"),
    [
        ("", 1),
        ("<pads = [1, 1]>", 3),
        ("<pads = [2, 2], dilations = [2]>", 3),
        ("<pads = [1, 1], strides = [2]>", 3),
        ("<pads = [0, 2]>", 3),
    ],
)
def test_convolution_over_data_dependent_and_empty_sizes(attributes, filter_size):
    model, table = convolution(attributes, filter_size), np.random.default_rng(2).random((9, 3), np.float32)
    opened = context()
    assert all(opened.supported(model))
    for count in (9, 5, 1, 0, 2):
        x = np.array([1] * count + [-1] * (9 - count), np.float32)
        if count:
            (y,), (expected,) = computed(opened, model, [x, table]), run_whole(model, {"x": x, "table": table})
            np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)
        else:  # ONNX Runtime refuses an empty convolution; some strides fail here as well
            with suppress(ExecutionError):
                (y,) = computed(opened, model, [x, table])
                assert y.shape == (1, 4, 0)


@pytest.mark.parametrize(
    ("attributes", "filter_size"),
    [("<pads = [1, 0]>", 1), ("<pads = [2, 1]>", 3), ('<auto_pad = "SAME_UPPER">', 3)],
)
def test_convolution_with_output_for_empty_input_is_refused(attributes, filter_size):
    model = convolution(attributes, filter_size)
    refused = [verdict for verdict in context().supported(model) if not verdict]
    assert "Conv with windows of only padding" in refused[0].detail


@pytest.mark.parametrize("reduction", ["none", "add"])
def test_scatter_at_data_dependent_positions(reduction):
    model = onnx.shape_inference.infer_shapes(
        model_of(
            "(float[9] x, float[9] y) => (float[9] z) {"
            "  large = Relu (x) found = NonZero (large) at = Transpose (found) some = GatherND (x, at)"
            f' grown = Exp (some) z = ScatterND <reduction = "{reduction}"> (y, at, grown) }}'
        )
    )
    opened, y = context(), np.random.default_rng(3).random(9, np.float32)
    assert all(opened.supported(model))
    for count in (9, 4, 0, 1):
        x = np.roll(np.array([1.5] * count + [-1] * (9 - count), np.float32), count)
        (result,), (expected,) = computed(opened, model, [x, y]), run_whole(model, {"x": x, "y": y})
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


def test_devices_with_static_shapes_refuse():
    with nna.InferenceSession(SELECTION, devices="fake_npu", options=nna.Options(fallback="allow")) as session:
        on_host = [node for node in session.report().nodes if node.device == "cpu"]
        assert any("data_dependent_shape" in str(node) for node in on_host)


def test_only_shape_of_untyped_value_runs_elsewhere():
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 17, "com.microsoft" : 1]>
    g (float[n, 3, 3] x) => (float[a, b, c] y, float[n, 3, 3] z) {
        turned = com.microsoft.Inverse (x)
        size = Shape (turned)
        e = Exp (x)
        y = Reshape (e, size)
        z = Tanh (e)
    }""")
    with nna.InferenceSession(model, devices="openvino") as session:
        for rows in (1, 2, 3):
            feed = {"x": np.random.default_rng(rows).random((rows, 3, 3), np.float32)}
            for got, expected in zip(session.run(None, feed), run_whole(model, feed), strict=True):
                np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
        names = {node.op_type: node.device for node in session.report().nodes}
        refusals = [refusal.detail for node in session.report().nodes for refusal in node.refusals]
    assert (names["Exp"], names["Tanh"]) == ("openvino", "openvino") and "driver failed" not in str(refusals)
    assert "value 'turned' of Shape has no type; add it to value_info" in refusals


def test_shape_of_unranked_value_runs_elsewhere_at_all_sizes():
    """The loop's state has no known rank, and OpenVINO refuses ShapeOf for that."""
    model = parse("""<ir_version: 10, opset_import: ["" : 18]>
    g (float[n, 4] x) => (float[a, b] y) <int64[1] first = {0}, int64 zero = {0}, float half = {0.5}> {
        rows = Shape (x)
        times = Gather (rows, zero)
        start = ReduceMax <keepdims = 0> (x, first)
        last, all = Loop (times, , start) <body = step (int64 i, bool go, float[] state)
                                                  => (bool on, float[] next, float[] at) {
            on = Identity (go)
            halved = Mul (state, half)
            row = Gather (x, i)
            next = Add (halved, row)
            at = Tanh (next)
        }>
        sizes = Shape (all)
        count = Gather (sizes, zero)
        real = Cast <to = 1> (count)
        y = Mul (all, real)
    }""")
    with nna.InferenceSession(model, devices="openvino") as session:
        for rows in (5, 2, 7, 3):
            feed = {"x": np.random.default_rng(rows).standard_normal((rows, 4)).astype(np.float32)}
            np.testing.assert_allclose(session.run(None, feed)[0], run_whole(model, feed)[0], rtol=1e-5, atol=1e-6)
        report = session.report()
    assert report.plans.compiled == 2 and report.plans.served_shapes_text == "one plan for all input shapes", (
        report.plans
    )
    refusals = [refusal.detail for node in report.nodes for refusal in node.refusals]
    assert "value 'all' of Shape has no rank; add it to value_info" in refusals, refusals


def test_convolution_of_untyped_value_runs_elsewhere():
    text = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
    g (float[1, 1, 4, 4] x) => (float[a, b, c, d] y)
    <float[1, 1, 3, 3] w = {1, 1, 1, 1, 1, 1, 1, 1, 1}, float s = {0.1}, uint16 z = {7}> {
        q = com.microsoft.QuantizeLinear (x, s, z)
        u = com.microsoft.DequantizeLinear (q, s, z)
        y = Conv (u, w)
    }"""
    feed = {"x": np.ones((1, 1, 4, 4), np.float32)}
    with nna.InferenceSession(parse(text), devices="openvino", options=nna.Options(fallback="allow")) as session:
        np.testing.assert_allclose(session.run(None, feed)[0], np.full((1, 1, 2, 2), 9), rtol=1e-5)
        assert not session.report().incidents
