"""What ONNX Runtime has no kernel, opset or type for runs on the reference evaluator, and the report says so."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import nnadapter as nna
from nnadapter.errors import FallbackWarning, InvalidModelError, NotDelegatedError
from tests.models import CHAIN, numbers, parse, run_whole

HEAD = '<ir_version: 10, opset_import: ["" : 17]>'
MIXED = f"""{HEAD} mixed (float[N, 3] x, int16[M] i, int16[M] j) => (float[N, 3] y, int16[M] k, float[M] z) {{
    y = Relu(x)
    l = Max(i, j)
    k = Neg(l)
    f = Cast<to = 1>(k)
    z = Sin(f)
}}"""
"""ONNX Runtime has no Max of int16; nothing before or after it is out of the ordinary."""
FEED = {"x": numbers(2, 3), "i": np.array([1, -5, 7], np.int16), "j": np.array([0, 5, 9], np.int16)}
QUIET = nna.Options(fallback="allow")


def is_right(results, feed=FEED):
    largest = np.maximum(feed["i"], feed["j"])
    np.testing.assert_allclose(results[0], np.maximum(feed["x"], 0))
    np.testing.assert_array_equal(results[1], -largest)
    np.testing.assert_allclose(results[2], np.sin(-largest.astype(np.float32)), rtol=1e-5)
    assert results[1].dtype == np.int16


@pytest.mark.parametrize("devices", ["cpu", ["fake_npu", "cpu"], "fake_npu", ["cpu", "reference"], "reference"])
def test_the_result_is_right_for_every_shape(devices):
    with nna.InferenceSession(parse(MIXED), devices=devices, options=QUIET) as session:
        is_right(session.run(None, FEED))
        other = {"x": numbers(4, 3), "i": np.arange(5, dtype=np.int16), "j": np.zeros(5, np.int16)}
        is_right(session.run(None, other), other)
        assert "reference" in {step.device for step in session.provenance.steps}


def test_the_report_names_it_and_the_reason():
    with nna.InferenceSession(parse(MIXED), devices="cpu", options=QUIET) as session:
        session.run(None, FEED)
        report = session.report()
        assert session.devices == ("cpu",) and report.devices == ("cpu", "reference")
    nodes = {node.op_type: node for node in report.nodes}
    assert nodes["Max"].device == "reference" and nodes["Relu"].device == nodes["Sin"].device == "cpu"
    (refusal,) = nodes["Max"].refusals
    assert refusal.device == "cpu" and refusal.reason == "unsupported_operation" and "Max(13)" in refusal.detail
    assert report.coverage.nodes == report.coverage.bytes == 0 and "reference" in str(report)


def test_accelerated_nodes_alone_count_as_covered():
    with nna.InferenceSession(parse(MIXED), devices="fake_npu", options=QUIET) as session:
        session.run(None, FEED)
        report = session.report()
    assert report.devices == ("fake_npu", "cpu", "reference")
    away = [node for node in report.nodes if node.device == "fake_npu"]
    assert report.coverage.nodes == len(away) / 5 < 1


def test_models_that_load_do_not_see_it():
    with nna.InferenceSession(parse(CHAIN), devices="cpu") as session:
        feed = {"x": numbers(2, 3)}
        np.testing.assert_array_equal(session.run(None, feed)[0], run_whole(parse(CHAIN), feed)[0])
        assert session.report().devices == ("cpu",)


def test_it_is_warned_of():
    session = nna.InferenceSession(parse(MIXED), devices="cpu")
    with session, pytest.warns(FallbackWarning, match=r"1 of 5 nodes run on onnx's reference evaluator.*'Max_1'"):
        session.run(None, FEED)


@pytest.mark.parametrize("devices", ["cpu", ["fake_npu", "cpu"]])
def test_forbidden_fallback_takes_it_only_if_named(devices):
    forbid = nna.Options(fallback="forbid")
    session = nna.InferenceSession(parse(MIXED), devices=devices, options=forbid)
    with session, pytest.raises(NotDelegatedError, match="name 'reference' as a device"):
        session.run(None, FEED)
    named = [*([devices] if isinstance(devices, str) else devices), "reference"]
    with nna.InferenceSession(parse(MIXED), devices=named, options=forbid) as session:
        is_right(session.run(None, FEED))


def test_a_model_newer_than_onnx_runtime_runs():
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
def test_a_wrong_model_stays_wrong(node, words):
    text = f'<ir_version: 10, opset_import: ["" : 17, "other" : 1]> bad (float[2] x{TENSORS}) => (y) {{ {node} }}'
    with pytest.raises(InvalidModelError, match=words):
        nna.InferenceSession(onnx.parser.parse_model(text), devices="cpu", options=QUIET)


def test_a_failing_device_is_replaced_by_what_takes_the_nodes():
    text = f"{HEAD} g (uint16[2] i, uint16[2] j) => (uint16[2] k) {{ k = Max(i, j) }}"
    feed = {"i": np.array([1, 9], np.uint16), "j": np.array([3, 4], np.uint16)}
    with nna.InferenceSession(parse(text), devices=("trial", {"fault": "compute"}), options=QUIET) as session:
        np.testing.assert_array_equal(session.run(None, feed)[0], [3, 9])
        assert session.provenance.steps[0].device == "reference"
