"""Dequantized constants: folded only for devices that do not support DequantizeLinear."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

import nnadapter as nna
from tests.models import numbers, parse

PRODUCT = """<ir_version: 10, opset_import: ["": 21]> g (float[n,2] x) => (float[n,2] y)
<int8[2,2] q = {3, -100, 127, 9}, float[2] t = {0.1, 0.02}, int8[2] v = {0, 0}> {
    a = Relu (x)
    w = DequantizeLinear <axis = 0> (q, t, v)
    turned = Transpose (w)
    m = MatMul (a, turned)
    y = NODE
}"""
WITHOUT = ("fake_npu", {"switched_off": "DEQUANTIZE"})


def opened(device, node="Relu (m)"):
    options = nna.Options(fallback="allow")
    return nna.InferenceSession(parse(PRODUCT.replace("NODE", node)), devices=[device, "cpu"], options=options)


def state_of(report, op_type):
    return next((node.state, node.device) for node in report.nodes if node.op_type == op_type)


def checked(session, rows=3, node="Relu (m)"):
    x = numbers(rows, 2, seed=rows)
    (expected,) = ReferenceEvaluator(parse(PRODUCT.replace("NODE", node))).run(None, {"x": x})
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, rtol=1e-5, atol=1e-5)
    return session.report()


def test_device_without_dequantize_gets_float_weights():
    with opened(WITHOUT) as session:
        for rows in (3, 1, 7):
            report = checked(session, rows)
    assert state_of(report, "DequantizeLinear")[0] == state_of(report, "Transpose")[0] == "folded"
    assert [segment.device for segment in report.segments] == ["fake_npu"]


def test_device_with_dequantize_gets_integer_weights():
    with opened("fake_npu") as session:
        report = checked(session)
    assert state_of(report, "DequantizeLinear") == ("runs", "fake_npu")


def test_readers_on_the_host_get_integer_weights():
    with opened(("fake_npu", {"switched_off": "DEQUANTIZE,MAT_MUL,FULLY_CONNECTED,TRANSPOSE"})) as session:
        report = checked(session)
    assert state_of(report, "DequantizeLinear") == ("runs", "cpu") and state_of(report, "MatMul")[1] == "cpu"


def test_constant_with_two_readers():
    with opened(WITHOUT, "Add (m, w)") as session:
        checked(session, 2, "Add (m, w)")


def test_openvino_gets_floats_for_a_miscomputed_integer_form():
    pytest.importorskip("openvino")
    text = PRODUCT.replace("turned = Transpose (w)\n", "").replace("turned", "w").replace("NODE", "Relu (m)")
    x = numbers(3, 2)
    with nna.InferenceSession(parse(text), devices="openvino") as session:
        (y,) = session.run(None, {"x": x})
        report = session.report()
    np.testing.assert_allclose(y, ReferenceEvaluator(parse(text)).run(None, {"x": x})[0], rtol=1e-5, atol=1e-5)
    assert state_of(report, "DequantizeLinear")[0] == "folded" and report.coverage.nodes == 1
