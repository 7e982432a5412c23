from __future__ import annotations

import math
import sys
import warnings

import numpy as np
import onnxruntime
import pytest
from onnx import parser

import nnadapter as nna
from nnadapter.errors import DriverWarning, ExecutionError, FallbackWarning, InvalidModelError, InvalidOptionError

PRIVATE = parser.parse_model(
    """<ir_version: 8, opset_import: ["" : 17, "acme.ops" : 2]>
    g (float[N, 3] x) => (float[N, 3] y) {
        a = Relu(x)
        b = acme.ops.Scale<factor = 3.0>(a)
        c = acme.ops.Scale(b, , a)
        d = Add(c, a)
        y = Sigmoid(d)
    }"""
)
ERF = parser.parse_model(
    """<ir_version: 8, opset_import: ["" : 17]>
    g (float[2, 3] x) => (float[2, 3] y) { a = Relu(x)  b = Erf(a)  y = Sigmoid(b) }"""
)
X = np.random.default_rng(1).normal(size=(2, 3)).astype(np.float32)
NO_ERF = ("fake_npu", {"switched_off": ["ERF"]})


def scale(x, middle=None, other=None, *, factor=2.0):
    assert middle is None and not x.flags.writeable
    return x * np.float32(factor) + (0 if other is None else other)


def erf(x):
    return np.vectorize(math.erf)(x).astype(x.dtype)


def register_scale(**details):
    infer = {"infer": lambda types, attributes: types[0]}
    return nna.register_kernel("fake_npu", "Scale", scale, domain="acme.ops", **{**infer, **details})


def runs_as(session):
    return {node.op_type: node.runs_as for node in session.report().nodes}


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_an_op_of_a_private_domain(rows):
    register_scale()
    x = np.resize(X, (rows, 3))
    with nna.InferenceSession(PRIVATE, devices=["fake_npu", "cpu"], options={"fallback": "forbid"}) as session:
        (got,) = session.run(None, {"x": x})
        report = session.report()
    a = np.maximum(x, 0)
    np.testing.assert_allclose(got, 1 / (1 + np.exp(-(a * 3 * 2 + a + a))), rtol=1e-5)
    assert len(report.segments) == 1 and report.coverage.nodes == 1
    assert {node.runs_as for node in report.nodes if node.op_type == "Scale"} == {"kernel scale", "kernel scale #2"}
    assert "kernel scale (" in str(report)


def test_error_without_a_kernel():
    with pytest.raises(InvalidModelError, match=r"'Scale_1' .*supported by no device, not even the CPU"):
        nna.InferenceSession(PRIVATE, devices=["fake_npu", "cpu"]).run(None, {"x": X})


@pytest.mark.parametrize(
    ("details", "reason"),
    [
        ({"infer": None}, "no infer"),
        ({"infer": lambda types, attributes: 1 / 0}, "ZeroDivisionError"),
        ({"until_version": 1}, "versions 1 to 1 of the op, the node has 2"),
    ],
)
def test_error_has_the_reason_that_no_kernel_fits(details, reason):
    register_scale(**details)
    with pytest.raises(InvalidModelError, match=reason):
        nna.InferenceSession(PRIVATE, devices=["fake_npu", "cpu"]).run(None, {"x": X})


def test_an_op_that_the_device_refuses():
    nna.register_kernel("fake_npu", "Erf", erf, name="exact_erf")
    with nna.InferenceSession(ERF, devices=[NO_ERF, "cpu"], options={"fallback": "forbid"}) as session:
        (got,) = session.run(None, {"x": X})
        assert runs_as(session)["Erf"] == "kernel exact_erf"
    expected = onnxruntime.InferenceSession(ERF.SerializeToString()).run(None, {"x": X})
    np.testing.assert_allclose(got, expected[0], rtol=1e-5)


@pytest.mark.parametrize("overrides", [False, True])
def test_kernel_runs_refused_ops_unless_it_overrides(overrides):
    nna.register_kernel("fake_npu", "Erf", erf, overrides=overrides)
    with nna.InferenceSession(ERF, devices="fake_npu") as session:
        assert (runs_as(session)["Erf"] == "kernel erf") is overrides


def test_earlier_device_keeps_its_op():
    nna.register_kernel("trial", "Erf", erf, overrides=True)
    with nna.InferenceSession(ERF, devices=["fake_npu", "trial"], options={"fallback": "allow"}) as session:
        assert all(node.device == "fake_npu" for node in session.report().nodes)


def test_kernel_inside_an_expanded_function():
    """fake_npu without ERF refuses the GELU; once expanded, the kernel computes its Erf."""
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (float[2, 3] x) => (float[2, 3] y)
        <float two = {1.4142135}, float one = {1.0}, float half = {0.5}> {
            a = Div(x, two)  b = Erf(a)  c = Add(b, one)  d = Mul(x, c)  y = Mul(d, half)
        }"""
    )
    nna.register_kernel("fake_npu", "Erf", erf)
    with nna.InferenceSession(model, devices=[NO_ERF], options={"fallback": "forbid"}) as session:
        (got,) = session.run(None, {"x": X})
        assert len(session.report().segments) == 1
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": X})
    np.testing.assert_allclose(got, expected[0], rtol=1e-5, atol=1e-6)


def test_kernel_inputs_have_the_declared_layout():
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["a" : 1]>
        g (float[1, 2, 3, 4] x) => (float[1, 2, 3, 4] y) { y = a.Channels(x) }"""
    )
    nhwc = nna.KernelType(layout="NHWC", precision="float32")

    def channels(x):
        assert x.shape == (1, 3, 4, 2) and x.flags.c_contiguous
        return x * np.array([1, 10], np.float32)

    details = {"domain": "a", "infer": lambda types, attributes: types}
    nna.register_kernel("fake_npu", "Channels", channels, inputs=[nhwc], outputs=[nhwc], **details)
    x = np.arange(24, dtype=np.float32).reshape(1, 2, 3, 4)
    with nna.InferenceSession(model, devices="fake_npu") as session:
        (got,) = session.run(None, {"x": x})
    np.testing.assert_array_equal(got, x * np.array([1, 10], np.float32).reshape(1, 2, 1, 1))


def mutate(x, **_):
    x[0] = 1
    return x


BAD = {
    "raises": (lambda x, **_: {}[1], "raised KeyError: 1"),
    "ends the process": (lambda x, **_: sys.exit(3), "raised SystemExit: 3"),
    "writes": (mutate, "may not write to its inputs"),
    "shape": (lambda x, **_: x[:1], r"returned float32\[1, 3\] for"),
    "dtype": (lambda x, **_: x.astype(np.float64), r"returned float64\[2, 3\] for"),
    "count": (lambda x, **_: (x, x), "returned 2 outputs, expected 1"),
    "kind": (lambda x, **_: [x.tolist()], "returned list for"),
}


@pytest.mark.parametrize("name", BAD)
def test_failing_kernel_is_named_and_falls_back_to_the_cpu(name):
    function, reason = BAD[name]
    nna.register_kernel("fake_npu", "Erf", function, name="faulty")
    with (
        nna.InferenceSession(ERF, devices=[NO_ERF, "cpu"]) as session,
        pytest.warns(FallbackWarning, match=rf"kernel 'faulty' of Erf {reason}|kernel 'faulty' of Erf .*{reason}"),
    ):
        (got,) = session.run(None, {"x": X})
    assert session.provenance.fell_back
    expected = onnxruntime.InferenceSession(ERF.SerializeToString()).run(None, {"x": X})
    np.testing.assert_allclose(got, expected[0], rtol=1e-6)


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("fallback", ["allow", "forbid"])
def test_error_without_fallback_names_the_kernel(name, fallback):
    function, reason = BAD[name]
    infer = {"infer": lambda types, attributes: types[0]}
    nna.register_kernel("fake_npu", "Scale", function, domain="acme.ops", name="faulty", **infer)
    session = nna.InferenceSession(PRIVATE, devices=["fake_npu", "cpu"], options={"fallback": fallback})
    with pytest.raises(ExecutionError, match=rf"kernel 'faulty' of acme.ops::Scale .*{reason}"):
        session.run(None, {"x": X[:2]})


def test_kernel_results_share_no_memory():
    results = []

    def function(x, **_):
        results.append(x)
        return x

    infer = {"infer": lambda types, attributes: types[0]}
    nna.register_kernel("fake_npu", "Same", function, domain="a", **infer)
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["a" : 1]> g (float[3] x) => (float[3] y) {y = a.Same(x)}'
    )
    with nna.InferenceSession(model, devices="fake_npu") as session:
        x = np.ones(3, np.float32)
        (got,) = session.run(None, {"x": x})
        got[:] = 7
    assert (x == 1).all() and (results[0] == 1).all()


@pytest.mark.parametrize("device", ["cpu", "cpu:0", "reference"])
def test_fallback_devices_have_no_kernels(device):
    with pytest.raises(InvalidOptionError, match=f"device '{device}', which is the fallback of other devices; "):
        nna.register_kernel(device, "Erf", erf)


def test_a_long_chain_of_private_ops_is_planned_once():
    rows = "\n".join(f"x{at + 1} = a.Next(x{at})" for at in range(300))
    text = f'<ir_version: 8, opset_import: ["a" : 1]> g (float[2] x0) => (float[2] x300) {{ {rows} }}'
    calls = []

    def infer(types, attributes):
        calls.append(1)
        return types[0]

    nna.register_kernel("fake_npu", "Next", lambda x: x + 1, domain="a", infer=infer)
    with warnings.catch_warnings(), nna.InferenceSession(parser.parse_model(text), devices="fake_npu") as session:
        (got,) = session.run(None, {"x0": np.zeros(2, np.float32)})
    assert (got == 300).all() and len(calls) <= 300 * 16


@pytest.mark.parametrize("sizes", ["2, 3", "N, 3"])
@pytest.mark.parametrize(
    "body", ["{ a = Relu(x)  y = acme.Twice(a) }", "<float[SIZES] b> { b = acme.Twice(x)  y = Relu(b) }"]
)
def test_kernel_without_infer_uses_types_of_the_model(sizes, body):
    text = '<ir_version: 8, opset_import: ["" : 17, "acme" : 1]> g (float[SIZES] x) => (float[SIZES] y) ' + body
    nna.register_kernel("fake_npu", "Twice", lambda x: x * 2, domain="acme")
    with nna.InferenceSession(parser.parse_model(text.replace("SIZES", sizes)), devices="fake_npu") as session:
        (got,) = session.run(None, {"x": X})
    np.testing.assert_array_equal(got, np.maximum(X, 0) * 2)


def test_kernel_result_that_contradicts_the_model():
    text = '<ir_version: 8, opset_import: ["acme" : 1]> g (float[2, 3] x) => (float[3, 2] y) { y = acme.Twice(x) }'
    nna.register_kernel("fake_npu", "Twice", lambda x: x * 2, domain="acme")
    session = nna.InferenceSession(parser.parse_model(text), devices="fake_npu")
    with pytest.raises(ExecutionError, match=r"returned float32\[2, 3\]"):
        session.run(None, {"x": X})


def test_failing_infer_is_reported_on_fallback():
    nna.register_kernel("fake_npu", "Erf", erf, name="faulty", infer=lambda types, attributes: 1 / 0)
    with (
        pytest.warns(DriverWarning, match="kernel 'faulty': its infer failed: ZeroDivisionError"),
        nna.InferenceSession(ERF, devices=[NO_ERF, "cpu"], options={"fallback": "allow"}) as session,
    ):
        session.run(None, {"x": X})
