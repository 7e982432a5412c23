"""Ops, opsets and types without a kernel in ONNX Runtime: the reference evaluator runs them, and reports show it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import nnadapter as nna
from nnadapter.errors import (
    CompilationError,
    FallbackWarning,
    InvalidInputError,
    InvalidModelError,
    NotDelegatedError,
)
from nnadapter.onnx.onnxruntime_limits import onnxruntime_limits
from tests.models import CHAIN, numbers, parse, run_whole

HEAD = '<ir_version: 10, opset_import: ["" : 17]>'
MIXED = f"""{HEAD} mixed (float[N, 3] x, int16[M] i, int16[M] j) => (float[N, 3] y, int16[M] k, float[M] z) {{
    y = Relu(x)
    l = Max(i, j)
    k = Neg(l)
    f = Cast<to = 1>(k)
    z = Sin(f)
}}"""
"""Max of int16, which ONNX Runtime lacks, between ordinary nodes."""
FEED = {"x": numbers(2, 3), "i": np.array([1, -5, 7], np.int16), "j": np.array([0, 5, 9], np.int16)}
QUIET = nna.Options(fallback="allow")


def is_right(results, feed=FEED):
    largest = np.maximum(feed["i"], feed["j"])
    np.testing.assert_allclose(results[0], np.maximum(feed["x"], 0))
    np.testing.assert_array_equal(results[1], -largest)
    np.testing.assert_allclose(results[2], np.sin(-largest.astype(np.float32)), rtol=1e-5)
    assert results[1].dtype == np.int16


@pytest.mark.parametrize("devices", ["cpu", ["fake_npu", "cpu"], "fake_npu", ["cpu", "reference"], "reference"])
def test_results_are_right_for_every_shape(devices):
    with nna.InferenceSession(parse(MIXED), devices=devices, options=QUIET) as session:
        is_right(session.run(None, FEED))
        other = {"x": numbers(4, 3), "i": np.arange(5, dtype=np.int16), "j": np.zeros(5, np.int16)}
        is_right(session.run(None, other), other)
        assert "reference" in {step.device for step in session.provenance.steps}


def test_report_names_reference_device_and_reason():
    with nna.InferenceSession(parse(MIXED), devices="cpu", options=QUIET) as session:
        session.run(None, FEED)
        report = session.report()
        assert session.devices == ("cpu",) and report.devices == ("cpu", "reference")
    nodes = {node.op_type: node for node in report.nodes}
    assert nodes["Max"].device == "reference" and nodes["Relu"].device == nodes["Sin"].device == "cpu"
    (refusal,) = nodes["Max"].refusals
    assert refusal.device == "cpu" and refusal.reason == "unsupported_operation" and "Max(13)" in refusal.detail
    assert report.coverage.nodes == report.coverage.bytes == 0 and "reference" in str(report)


def test_only_accelerated_nodes_count_as_covered():
    with nna.InferenceSession(parse(MIXED), devices="fake_npu", options=QUIET) as session:
        session.run(None, FEED)
        report = session.report()
    assert report.devices == ("fake_npu", "cpu", "reference")
    away = [node for node in report.nodes if node.device == "fake_npu"]
    assert report.coverage.nodes == len(away) / 5 < 1


def test_reference_device_is_unused_for_supported_models():
    with nna.InferenceSession(parse(CHAIN), devices="cpu") as session:
        feed = {"x": numbers(2, 3)}
        np.testing.assert_array_equal(session.run(None, feed)[0], run_whole(parse(CHAIN), feed)[0])
        assert session.report().devices == ("cpu",)


def test_use_of_the_reference_evaluator_warns():
    session = nna.InferenceSession(parse(MIXED), devices="cpu")
    with session, pytest.warns(FallbackWarning, match=r"1 of 5 nodes run on onnx's reference evaluator.*'Max_1'"):
        session.run(None, FEED)


@pytest.mark.parametrize("devices", ["cpu", ["fake_npu", "cpu"]])
def test_forbidden_fallback_uses_reference_only_if_named(devices):
    forbid = nna.Options(fallback="forbid")
    session = nna.InferenceSession(parse(MIXED), devices=devices, options=forbid)
    with session, pytest.raises(NotDelegatedError, match="name 'reference' as a device"):
        session.run(None, FEED)
    named = [*([devices] if isinstance(devices, str) else devices), "reference"]
    with nna.InferenceSession(parse(MIXED), devices=named, options=forbid) as session:
        is_right(session.run(None, FEED))


def test_model_newer_than_onnx_runtime_runs():
    newest = onnx.defs.onnx_opset_version()
    text = MIXED.replace('"" : 17', f'"" : {newest}').replace("ir_version: 10", f"ir_version: {onnx.IR_VERSION}")
    with nna.InferenceSession(parse(text), devices="cpu", options=QUIET) as session:
        is_right(session.run(None, FEED))
        assert {step.device for step in session.provenance.steps} == {"cpu", "reference"}


TENSORS = ", float[5, 1, 4] x3, float[1, 12, 4] w, float[1, 12, 3] r"


@pytest.mark.parametrize(
    ("node", "words"),
    [
        ("y = Nonsense(x)", "Nonsense"),
        ("y = other.Thing(x)", "other"),
        ("y = Reshape(x, x)", "Reshape"),
        ("y = Relu<wrong = 3>(x)", "wrong"),
        ("y = LSTM(x3, w, r)", "hidden_size"),
        ('y = LSTM<hidden_size = 3, activations = ["Tanh"]>(x3, w, r)', "activation"),
        ('y = LSTM<hidden_size = 3, activations = ["Tanh", "Erf", "Tanh"]>(x3, w, r)', "Erf"),
    ],
)
def test_invalid_model_stays_an_error(node, words):
    text = f'<ir_version: 10, opset_import: ["" : 17, "other" : 1]> bad (float[2] x{TENSORS}) => (y) {{ {node} }}'
    with pytest.raises(InvalidModelError, match=words):
        nna.InferenceSession(onnx.parser.parse_model(text), devices="cpu", options=QUIET)


@pytest.mark.parametrize("devices", ["cpu", "fake_npu"])
@pytest.mark.parametrize(
    "node", ["Add<broadcast = 1, axis = 0>(x, b)", "Pow<broadcast = 1>(x, b)", 'Cast<to = "FLOAT">(x)']
)
def test_old_form_that_the_evaluator_misinterprets_is_refused(node, devices):
    model = onnx.parser.parse_model(
        f'<ir_version: 3, opset_import: ["" : 5]> old (float[2,2] x, float[2] b) => (float[2,2] y) {{ y = {node} }}'
    )
    with pytest.raises(InvalidModelError):
        nna.InferenceSession(model, devices=devices, options=QUIET)


@pytest.mark.parametrize(
    ("attributes", "shape", "aligned"),
    [("broadcast = 1", "3", (3,)), ("broadcast = 1, axis = 1", "3", (3,)), ("broadcast = 1", "1", (1,))],
)
def test_old_form_with_numpy_broadcasting_is_computed(attributes, shape, aligned):
    head = '<ir_version: 3, opset_import: ["" : 6]>'
    model = parse(f"{head} old (float[2,3] x, float[{shape}] b) => (float[2,3] y) {{ y = Add<{attributes}>(x, b) }}")
    x, b = numbers(2, 3), numbers(*aligned)
    with nna.InferenceSession(model, devices="cpu", options=QUIET) as session:
        np.testing.assert_array_equal(session.run(None, {"x": x, "b": b})[0], x + b)


@pytest.mark.parametrize("devices", ["cpu", "fake_npu"])
def test_value_of_unknown_rank_is_computed(devices):
    model = parse(f"{HEAD} g (double[3,4] x, int64[r] s) => (double[3,4] y) {{ a = Reshape(x, s) y = Softplus(a) }}")
    x = numbers(3, 4).astype(np.float64)
    with nna.InferenceSession(model, devices=devices, options=QUIET) as session:
        (found,) = session.run(None, {"x": x, "s": np.array([3, 4])})
    np.testing.assert_allclose(found, np.log1p(np.exp(x)), rtol=1e-6)


def test_failing_device_falls_back_to_reference():
    text = f"{HEAD} g (uint16[2] i, uint16[2] j) => (uint16[2] k) {{ k = Max(i, j) }}"
    feed = {"i": np.array([1, 9], np.uint16), "j": np.array([3, 4], np.uint16)}
    with nna.InferenceSession(parse(text), devices=("trial", {"fault": "compute"}), options=QUIET) as session:
        np.testing.assert_array_equal(session.run(None, feed)[0], [3, 9])
        assert session.provenance.steps[0].device == "reference"


RECURRENT = "float[2, 1, 4] x, float[1, 12, 4] w, float[1, 12, 3] r"
NO_NODES_OF_ONNX = {
    "y = Clip<min = 3.0>(x)": "float[2, 4] x",
    "y = Elu<alfa = 3.0>(x)": "float[2, 4] x",
    "y = Relu<leak = 1.0>(x)": "float[2, 4] x",
    "y = Softplus(x, x)": "float[2, 4] x",
    "y, z = Relu(x)": "float[2, 4] x",
    "y = ReduceMean<axes = [1], noop_with_empty_axes = 1>(x)": "float[2, 4] x",
    "y = Softmax<axis = 1.0>(x)": "float[2, 4] x",
    "y = Softmax<axis = 7>(x)": "float[2, 4] x",
    "y = LayerNormalization<axis = 9>(x, s)": "float[2, 4] x, float[4] s",
    "y = LSTM(x, w, r)": RECURRENT,
    "c = Constant<value_floats = [1.0]>() d = LayerNormalization<axis = 9>(c, c) y = Add(x, d)": "float[2, 4] x",
    "c = Constant<value_float = 1.0>() d = Relu<leak = 1.0>(c) y = Add(x, d)": "float[2, 4] x",
}


@pytest.mark.slow
@pytest.mark.parametrize("devices", [["fake_npu", "reference"], "reference", "fake_npu", "cpu"])
@pytest.mark.parametrize("body", NO_NODES_OF_ONNX)
def test_invalid_node_is_refused_on_every_device(body, devices):
    model = onnx.parser.parse_model(f"{HEAD} g ({NO_NODES_OF_ONNX[body]}) => (float[n] y) {{ {body} }}")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    with pytest.raises(
        (InvalidModelError, CompilationError), match=r"ONNX Runtime|contradicts itself|is not valid ONNX"
    ):
        nna.InferenceSession(model, devices=devices, options=QUIET)


def test_meaningless_attribute_value_is_refused_by_onnx_runtime():
    text = '<ir_version: 10, opset_import: ["" : 21]> g (float[2] x) => (float[2] y) { y = Gelu<approximate = "?">(x) }'
    for devices in (["fake_npu", "reference"], "reference"):
        with nna.InferenceSession(onnx.parser.parse_model(text), devices=devices, options=QUIET) as session:
            (node,) = session.report().nodes
            assert node.device == "cpu" and {refusal.reason for refusal in node.refusals} == {"invalid_node"}
            with pytest.raises(InvalidInputError, match="approximation_algorithm"):
                session.run(None, {"x": numbers(2)})


@pytest.mark.parametrize("devices", [["fake_npu", "reference"], "fake_npu", "cpu"])
def test_invalid_nodes_that_onnx_runtime_accepts_run_there(devices):
    model = parse(f"{HEAD} g (float[2, 4] x) => (float[2, 4] y) {{ y = Celu<alpha = 0.0>(x) }}")
    feed = {"x": numbers(2, 4)}
    with nna.InferenceSession(model, devices=devices, options=QUIET) as session:
        np.testing.assert_array_equal(session.run(None, feed)[0], run_whole(model, feed)[0])
        assert [node.device for node in session.report().nodes] == ["cpu"]


@pytest.mark.skipif(
    onnxruntime_limits()[0][""] >= onnx.defs.onnx_opset_version(), reason="ONNX Runtime knows every opset of onnx"
)
@pytest.mark.parametrize("devices", ["fake_npu", ["fake_npu", "reference"], "reference"])
def test_invalid_node_newer_than_onnx_runtime_is_named(devices):
    newest = f'<ir_version: {onnx.IR_VERSION}, opset_import: ["" : {onnx.defs.onnx_opset_version()}]>'
    text = f'{newest} g (uint8[4] x) => (uint8[4] y) {{ y = BitShift<direction = "SIDEWAYS">(x, x) }}'
    with pytest.raises(
        InvalidModelError, match=r"^node 'BitShift_0' \(BitShift\) is not valid ONNX.*direction.*again$"
    ):
        nna.InferenceSession(onnx.parser.parse_model(text), devices=devices, options=QUIET)
