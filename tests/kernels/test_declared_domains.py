"""Nodes without a converter, delegated unchanged to a device that declares their domain."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

import nnadapter as nna
from nnadapter.drivers import DeviceInfo, Reason, TableDriver, Unsupported, lowers, registry
from nnadapter.errors import InvalidModelError
from nnadapter.ir.operations import CustomCall

X = np.array([[1.0, -2.0, 3.0], [0.5, 4.0, -6.0]], np.float32)


class DomainDriver(TableDriver):
    info = DeviceInfo(name="declaring", vendor="Acme")
    domains = ("com.acme",)

    @lowers("RELU")
    def relu(self, operation):
        return lambda x: np.maximum(x, 0)

    @lowers("CUSTOM")
    def custom(self, operation):
        call = CustomCall.of(operation.attributes)
        if call.op_type != "Scale":
            return Unsupported(Reason.UNSUPPORTED_OPERATION, f"no {call.op_type} here")
        factor = np.float32(call.attributes["factor"])
        return lambda x: [x * factor]


@pytest.fixture(autouse=True)
def declaring(tmp_path, monkeypatch):
    info = tmp_path / "declaring-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: declaring\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[nnadapter.drivers]\ndeclaring = {__name__}:DomainDriver\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    registry.refresh()
    yield
    monkeypatch.undo()
    registry.refresh()


def model(op_type="Scale", stated="<float[N, 3] b>", domain="com.acme"):
    return parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 17, "{domain}": 1]>
        g (float[N, 3] x) => (float[N, 3] y) {stated} {{
            a = Relu(x)
            b = {domain}.{op_type}<factor = 3.0>(a)
            y = Relu(b)
        }}"""
    )


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_node_is_delegated_unchanged_with_declared_types(rows):
    x = np.resize(X, (rows, 3))
    with nna.InferenceSession(model(), devices=["declaring", "cpu"], options={"fallback": "forbid"}) as session:
        (got,) = session.run(None, {"x": x})
        assert len(session.report().segments) == 1
    np.testing.assert_array_equal(got, np.maximum(x, 0) * 3)


def test_one_session_runs_at_several_shapes():
    with nna.InferenceSession(model(), devices=["declaring", "cpu"]) as session:
        for rows in (2, 3, 2, 7):
            x = np.resize(X, (rows, 3))
            np.testing.assert_array_equal(session.run(None, {"x": x})[0], np.maximum(x, 0) * 3)


@pytest.mark.parametrize(
    ("parsed", "devices", "reason"),
    [
        (model(stated=""), ["declaring", "cpu"], "does not state types and shapes of the outputs of com.acme::Scale"),
        (model("Other"), ["declaring", "cpu"], "no Other here"),
        (model(domain="org.other"), ["declaring", "cpu"], "supported by no device"),
        (model(), ["null", "cpu"], "supported by no device"),
    ],
)
def test_undelegated_nodes_are_an_error(parsed, devices, reason):
    with pytest.raises(InvalidModelError, match=reason):
        nna.InferenceSession(parsed, devices=devices).run(None, {"x": X})


def test_device_with_kernels_still_gets_unchanged_nodes():
    """A kernel takes only its own op; the device takes the others unchanged."""
    kernel = nna.register_kernel("declaring", "Other", lambda x, *, factor: x - factor, domain="com.acme")
    text = """<ir_version: 10, opset_import: ["": 17, "com.acme": 1]>
        g (float[N, 3] x) => (float[N, 3] y) <float[N, 3] a, float[N, 3] b> {
            a = com.acme.Scale<factor = 3.0>(x)
            b = com.acme.Other<factor = 1.0>(a)
            y = com.acme.Scale<factor = 2.0>(b)
        }"""
    parsed = parser.parse_model(text)
    with nna.InferenceSession(parsed, devices=["declaring", "cpu"], options={"fallback": "forbid"}) as session:
        np.testing.assert_array_equal(session.run(None, {"x": X})[0], (X * 3 - 1) * 2)
        assert [node.runs_as for node in session.report().nodes] == [
            "CUSTOM 0",
            "kernel <lambda>",
            "CUSTOM 2 (program 2)",
        ]
    nna.unregister_kernel(kernel)


def test_device_without_the_domain_gets_no_nodes():
    with nna.InferenceSession(model(), devices=["null", "declaring", "cpu"]) as session:
        session.run(None, {"x": X})
        on = {node.op_type: node.device for node in session.report().nodes}
    assert on["Scale"] == "declaring"


def test_node_with_a_converter_is_converted(monkeypatch):
    monkeypatch.setattr(DomainDriver, "domains", ("com.microsoft",))
    parsed = parser.parse_model(
        """<ir_version: 10, opset_import: ["": 17, "com.microsoft": 1]>
        g (float[2, 3] x) => (float[2, 3] y) { a = Relu(x)  y = com.microsoft.Gelu(a) }"""
    )
    with nna.InferenceSession(parsed, devices=["declaring", "cpu"]) as session:
        session.run(None, {"x": X})
        on = {node.op_type: node.device for node in session.report().nodes}
    assert on["Gelu"] == "cpu"
