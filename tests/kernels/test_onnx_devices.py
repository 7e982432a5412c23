"""Kernels on devices that take ONNX."""

from __future__ import annotations

import math

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

import nnadapter as nna
from nnadapter.errors import ExecutionError, FallbackWarning, InvalidModelError
from nnadapter.ir import DataType, OperandType
from nnadapter.ir.operations import CUSTOM, CustomCall

PRIVATE = parser.parse_model(
    """<ir_version: 8, opset_import: ["" : 17, "acme.ops" : 2]>
    g (float[N, 3] x) => (float[N, 3] y)
    <float[3] w = {1, 2, 3}> {
        a = Relu(x)
        b = acme.ops.Scale<factor = 3.0>(a)
        c = acme.ops.Scale(b, , w)
        d = Add(c, a)
        y = Sigmoid(d)
    }"""
)
ROUNDED = parser.parse_model(
    """<ir_version: 8, opset_import: ["" : 17]>
    g (float[2, 3] x) => (float[2, 3] y) { a = Relu(x)  b = Erf(a)  c = Mul(b, a)  y = Sigmoid(c) }"""
)
X = np.random.default_rng(1).normal(size=(2, 3)).astype(np.float32)
SAME = {"infer": lambda types, attributes: types[0]}
FORBID = {"fallback": "forbid"}


def scale(x, middle=None, other=None, *, factor=2.0):
    assert middle is None and not x.flags.writeable
    return x * np.float32(factor) + (0 if other is None else other)


def erf(x):
    return np.vectorize(math.erf)(x).astype(x.dtype)


@pytest.fixture
def scaling():
    return nna.register_kernel("openvino", "Scale", scale, domain="acme.ops", **SAME)


def expected_of(x):
    a = np.maximum(x, 0)
    return 1 / (1 + np.exp(-(a * 6 + np.array([1, 2, 3], np.float32) + a)))


def test_an_op_of_a_private_domain(scaling):
    with nna.InferenceSession(PRIVATE, devices=["openvino", "cpu"], options=FORBID) as session:
        for rows in (2, 1, 5, 2):
            x = np.resize(X, (rows, 3))
            np.testing.assert_allclose(session.run(None, {"x": x})[0], expected_of(x), rtol=1e-5)
        report = session.report()
    assert len(report.segments) == 1 and report.coverage.nodes == 1
    assert {node.runs_as for node in report.nodes if node.op_type == "Scale"} == {"kernel scale", "kernel scale #2"}
    assert "custom kernels of 'openvino' compute some nodes" in " ".join(str(report).split())


def test_supported_op_runs_on_the_device_unless_the_kernel_overrides():
    expected = onnxruntime.InferenceSession(ROUNDED.SerializeToString()).run(None, {"x": X})[0]
    for overrides in (False, True):
        kernel = nna.register_kernel("openvino", "Erf", erf, overrides=overrides)
        with nna.InferenceSession(ROUNDED, devices="openvino", options=FORBID) as session:
            np.testing.assert_allclose(session.run(None, {"x": X})[0], expected, rtol=1e-5)
            runs_as = {node.op_type: node.runs_as for node in session.report().nodes}
        assert (runs_as["Erf"] == "kernel erf") is overrides
        nna.unregister_kernel(kernel)


def test_error_has_the_reason_that_no_kernel_fits():
    nna.register_kernel("openvino", "Scale", scale, domain="acme.ops", until_version=1, **SAME)
    with pytest.raises(InvalidModelError, match="versions 1 to 1 of the op, the node has 2"):
        nna.InferenceSession(PRIVATE, devices=["openvino", "cpu"]).run(None, {"x": X})


def test_failing_kernel_is_named_and_falls_back_to_the_cpu():
    nna.register_kernel("openvino", "Erf", lambda x: x[:1], name="faulty", overrides=True)
    with (
        nna.InferenceSession(ROUNDED, devices=["openvino", "cpu"]) as session,
        pytest.warns(FallbackWarning, match=r"kernel 'faulty' of Erf returned float32\[1, 3\] for"),
    ):
        (got,) = session.run(None, {"x": X})
    expected = onnxruntime.InferenceSession(ROUNDED.SerializeToString()).run(None, {"x": X})
    np.testing.assert_allclose(got, expected[0], rtol=1e-6)


def test_a_compiled_file_and_a_cache(scaling, tmp_path):
    path = tmp_path / "scaled.compiled"
    options = {"cache_dir": tmp_path / "cache"}
    nna.compile(PRIVATE, path, devices=["openvino", "cpu"], input_shapes={"x": (2, 3)})
    for _ in range(2):
        with nna.InferenceSession(path) as session:
            np.testing.assert_allclose(session.run(None, {"x": X})[0], expected_of(X), rtol=1e-5)
        with nna.InferenceSession(PRIVATE, devices=["openvino", "cpu"], options=options) as session:
            np.testing.assert_allclose(session.run(None, {"x": X})[0], expected_of(X), rtol=1e-5)
            report = str(session.report())
    assert "cache: hit" in report


def test_compare(scaling):
    report = nna.compare(ROUNDED, devices=["openvino", "cpu"], feeds=[{"x": X}])
    assert report.agrees


def test_exported_segments_have_the_original_nodes(tmp_path):
    nna.register_kernel("openvino", "Erf", erf, overrides=True)
    nna.partition_report(ROUNDED, devices="openvino", save_segments=tmp_path)
    (path,) = tmp_path.iterdir()
    assert [node.op_type for node in onnx.load(path).graph.node] == ["Relu", "Erf", "Mul", "Sigmoid"]


def test_built_model_and_its_serialized_program(scaling):
    type_ = OperandType(DataType.FLOAT32, (2, 3))
    call = CustomCall(domain="acme.ops", op_type="Scale", since_version=1, present=(0,), outputs=(type_,))
    builder = nna.ModelBuilder()
    (relu,) = builder.add_operation("RELU", [builder.add_input("x", type_)])
    (result,) = builder.add_operation(CUSTOM, [relu], call.to_attributes())
    model = builder.finish([*builder.add_operation("ADD", [result, relu])])
    with nna.Device.acquire("openvino") as device, nna.Context(device) as context:
        blob = nna.Compilation(context, model).serialize()
        for compilation in (nna.Compilation(context, model), nna.Compilation.deserialize(context, blob)):
            with nna.Execution(compilation) as execution:
                execution.set_inputs([X])
                np.testing.assert_allclose(execution.compute()[0], 3 * np.maximum(X, 0), rtol=1e-6)


def test_a_single_operation_on_tensors():
    nna.register_kernel("openvino", "Add", lambda a, b: a + b + 100, overrides=True)
    tensor = nna.tensor(X, device="openvino")
    np.testing.assert_array_equal((tensor + tensor).numpy(), X + X + 100)
    np.testing.assert_allclose((tensor * tensor).numpy(), X * X, rtol=1e-6)


def test_third_party_driver_that_takes_onnx():
    nna.register_kernel("onnxform", "Erf", erf)
    model = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]> g (float[2, 3] x) => (float[2, 3] y) { y = Erf(x) }'
    )
    with nna.InferenceSession(model, devices="onnxform", options=FORBID) as session:
        np.testing.assert_allclose(session.run(None, {"x": X})[0], erf(X), rtol=1e-6)


def test_values_with_data_dependent_shapes_pass_between_pieces():
    model = parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17, "acme.ops" : 1]>
        g (float[2, 3] x) => (float[2, 3] y, int64[2, K] z) {
            a = acme.ops.Scale(x)
            z = NonZero(a)
            y = Relu(a)
        }"""
    )
    nna.register_kernel("openvino", "Scale", scale, domain="acme.ops", **SAME)
    with nna.InferenceSession(model, devices=["openvino", "cpu"]) as session:
        got, places = session.run(None, {"x": np.maximum(X, 0)})
    np.testing.assert_array_equal(got, 2 * np.maximum(X, 0))
    np.testing.assert_array_equal(places, np.nonzero(np.maximum(X, 0)))


def test_error_without_fallback_names_the_kernel():
    nna.register_kernel("openvino", "Scale", lambda x, *_, **__: 1 / 0, domain="acme.ops", name="faulty", **SAME)
    session = nna.InferenceSession(PRIVATE, devices=["openvino", "cpu"], options={"fallback": "allow"})
    with pytest.raises(ExecutionError, match=r"kernel 'faulty' of acme.ops::Scale raised ZeroDivisionError"):
        session.run(None, {"x": X})
