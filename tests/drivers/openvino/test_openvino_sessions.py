from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

import nnadapter as nna
from nnadapter.drivers.openvino import operators
from nnadapter.engine import CompiledFile
from nnadapter.errors import CompilationError, FallbackWarning
from nnadapter.ir import DataType
from tests.drivers.openvino.harness import model_of
from tests.models import HEAD, OCR_SHAPES, SANDWICH, numbers, ocr_model, parse, run_whole

EXAMPLES = Path(__file__).parents[3] / "examples"
THREE = [("openvino:CPU", {"switched_off": "Sin,Cos"}), ("fake_npu", {"switched_off": "COS"}), "cpu"]


def test_three_drivers_in_one_plan():
    model, x = parse(SANDWICH), numbers(3, 4)
    with nna.InferenceSession(model, devices=THREE) as session:
        (y,) = session.run(None, {"x": x})
        report = session.report()
    np.testing.assert_allclose(y, run_whole(model, {"x": x})[0], rtol=1e-5, atol=1e-6)
    assert [segment.device for segment in report.segments] == [
        *("openvino:CPU", "fake_npu", "openvino:CPU", "cpu", "openvino:CPU")
    ]
    assert report.switches == 4 and "4 switches between devices" in str(report)


def test_only_nodes_that_fail_to_compile_fall_back(monkeypatch):
    rows = dict(operators.OPERATORS)
    rows["Neg"] = rows["Neg"]._replace(dtypes=frozenset((DataType.UINT8,)))
    monkeypatch.setattr(operators, "OPERATORS", rows)
    monkeypatch.setattr("nnadapter.drivers.openvino.compiler.Asker._query", lambda self, part: None)
    model = model_of("(uint8[4] x) => (uint8[4] y) { a = Identity(x)  b = Identity(a)  c = Max(b, a)  y = Neg(c) }")
    pair = [("openvino:CPU", {}), "reference"]
    with (
        pytest.warns(FallbackWarning, match="failed to compile"),
        nna.InferenceSession(model, devices=pair) as session,
    ):
        (y,) = session.run(None, {"x": np.uint8([1, 2, 3, 4])})
        report = session.report()
    np.testing.assert_array_equal(y, np.negative(np.uint8([1, 2, 3, 4])))
    assert report.coverage.nodes == pytest.approx(0.75)
    assert any("does not compile" in note for note in report.notes)
    with pytest.raises(CompilationError, match="fallback is forbidden"):
        nna.InferenceSession(model, devices=pair, options=nna.Options(fallback="forbid"))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["cls", *(pytest.param(kind, marks=pytest.mark.sweep) for kind in ("det", "rec"))])
def test_networks_run_entirely_on_the_device(kind):
    model = ocr_model(kind)
    with nna.InferenceSession(model, devices="openvino:CPU", options=nna.Options(fallback="forbid")) as session:
        for shape in OCR_SHAPES[kind][:2]:
            x = numbers(*shape)
            (y,) = session.run(None, {"x": x})
            np.testing.assert_allclose(y, run_whole(model, {"x": x})[0], atol=1e-4)
        assert session.report().coverage.nodes == 1


@pytest.mark.slow
def test_a_network_over_two_accelerators():
    model, x = ocr_model("det"), numbers(*OCR_SHAPES["det"][2])
    devices = [("openvino:CPU", {"switched_off": "Resize,Sigmoid,ConvTranspose"}), "fake_npu"]
    with nna.InferenceSession(model, devices=devices, options=nna.Options(fallback="forbid")) as session:
        (y,) = session.run(None, {"x": x})
        assert {segment.device for segment in session.report().segments} == {"openvino:CPU", "fake_npu"}
    np.testing.assert_allclose(y, run_whole(model, {"x": x})[0], atol=1e-4)


@pytest.mark.sweep
@pytest.mark.slow
@pytest.mark.parametrize("devices", ["openvino:CPU", "openvino:CPU,fake_npu"])
def test_rapidocr_reads_the_same_text(devices, tmp_path):
    script = EXAMPLES / "read_text.py"
    picture = min((EXAMPLES / "pictures").glob("*.png"), key=lambda path: path.stat().st_size)
    command = [sys.executable, str(script), str(picture), "-d", devices, "--check", "-o", str(tmp_path)]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert completed.returncode == 0, completed.stderr[-2000:]
    assert "same text as ONNX Runtime: yes" in completed.stdout
    assert completed.stdout.count("100.0% of nodes") == 3


ATTENTION = """<ir_version: 10, opset_import: ["" : 17]> g (float[1, 4, 192] x) => (float[1, 4, 64] y)
<int64[5] packed = {1, 4, 3, 4, 16}, int64[3] whole = {1, 4, 64}, int64[1] first = {0}> {
    parted = Reshape (x, packed)
    turned = Transpose <perm = [2, 0, 3, 1, 4]> (parted)
    q5, k5, v5 = Split <axis = 0> (turned)
    q = Squeeze (q5, first)
    k4 = Squeeze (k5, first)
    v = Squeeze (v5, first)
    k = Transpose <perm = [0, 1, 3, 2]> (k4)
    product = MatMul (q, k)
    weights = Softmax <axis = -1> (product)
    mixed = MatMul (weights, v)
    back = Transpose <perm = [0, 2, 1, 3]> (mixed)
    y = Reshape (back, whole)
}"""


def test_attention_with_as_many_heads_as_tokens():
    model, feed = parse(ATTENTION), {"x": numbers(1, 4, 192)}
    with nna.InferenceSession(model, devices="openvino", options=nna.Options(fallback="allow")) as session:
        np.testing.assert_allclose(session.run(None, feed)[0], run_whole(model, feed)[0], rtol=1e-4, atol=1e-5)


def layers_of_attention(batch, length, heads, width):
    sizes = f"{{{batch}, {length}, {heads}, {width}}}"
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 17]>
        g (float[{batch}, {length}, {heads * width}] x0) => (float[{batch}, {length}, {heads * width}] x2)
        <int64[4] parts = {sizes}, int64[3] whole = {{{batch}, {length}, {heads * width}}}> {{
            {"".join(LAYER.format(at=at, after=at + 1) for at in range(2))}
        }}"""
    )
    for at in range(2):
        for seed, name in enumerate("qkvo"):
            weights = numbers(heads * width, heads * width, seed=4 * at + seed)
            model.graph.initializer.append(onnx.numpy_helper.from_array(weights, f"{name}{at}"))
    return model


LAYER = """
qr{at} = MatMul (x{at}, q{at}) qp{at} = Reshape (qr{at}, parts) qt{at} = Transpose <perm = [0, 2, 1, 3]> (qp{at})
kr{at} = MatMul (x{at}, k{at}) kp{at} = Reshape (kr{at}, parts) kt{at} = Transpose <perm = [0, 2, 3, 1]> (kp{at})
vr{at} = MatMul (x{at}, v{at}) vp{at} = Reshape (vr{at}, parts) vt{at} = Transpose <perm = [0, 2, 1, 3]> (vp{at})
product{at} = MatMul (qt{at}, kt{at}) weights{at} = Softmax <axis = -1> (product{at})
mixed{at} = MatMul (weights{at}, vt{at}) back{at} = Transpose <perm = [0, 2, 1, 3]> (mixed{at})
joined{at} = Reshape (back{at}, whole) out{at} = MatMul (joined{at}, o{at}) x{after} = Add (out{at}, x{at})
"""


@pytest.mark.parametrize("sizes", [(3, 4, 4, 4), (4, 4, 4, 1), (1, 2, 2, 3), (3, 2, 2, 2), (2, 3, 4, 3), (2, 5, 5, 1)])
def test_layers_with_as_many_heads_as_tokens(sizes):
    """The engine's error varies between runs."""
    model = layers_of_attention(*sizes)
    batch, length, heads, width = sizes
    feed = {"x0": numbers(batch, length, heads * width, seed=9)}
    (expected,) = run_whole(model, feed)
    with nna.InferenceSession(model, devices="openvino", options=nna.Options(fallback="allow")) as session:
        for _ in range(2):
            np.testing.assert_allclose(session.run(None, feed)[0], expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "order", ["b = MatMul (x, w) y = Gemm <transB = 1> (b, w)", "b = Gemm <transB = 1> (x, w) y = Gemm (b, w)"]
)
def test_weight_used_with_and_without_transpose(order):
    """The engine confuses a constant with its transpose."""
    head = '<ir_version: 10, opset_import: ["" : 17]>'
    model = onnx.parser.parse_model(f"{head} g (float[n, 16] x) => (float[n, 16] y) {{ {order} }}")
    model.graph.initializer.append(onnx.numpy_helper.from_array(numbers(16, 16, seed=1), "w"))
    feed = {"x": numbers(2, 16)}
    with nna.InferenceSession(model, devices="openvino", options=nna.Options(fallback="allow")) as session:
        np.testing.assert_allclose(session.run(None, feed)[0], run_whole(model, feed)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("batch", "is_kept"), [("1", True), ("3", False), ("b", False)])
@pytest.mark.parametrize(("op_type", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_a_compiled_file_computes_recurrent_layers_as_the_session_does(tmp_path, op_type, gates, batch, is_kept):
    """The engine misreads its serialization of layers with a batch above 1."""
    weights, recurrence_weights = (", ".join(map(str, numbers(gates * size, seed=size))) for size in (6, 9))
    model = parse(f"""{HEAD} g (float[5, {batch}, 2] x) => (float[5, 1, {batch}, 3] y)
        <float[1, {3 * gates}, 2] w = {{{weights}}}, float[1, {3 * gates}, 3] r = {{{recurrence_weights}}}> {{
        a = Relu (x)
        y = {op_type} <hidden_size = 3> (a, w, r)
    }}""")
    nna.compile(model, tmp_path / "layer.nna", devices="openvino")
    with nna.InferenceSession(tmp_path / "layer.nna") as session:
        feed = {"x": numbers(5, 1 if is_kept else 3, 2)}
        np.testing.assert_allclose(session.run(None, feed)[0], run_whole(model, feed)[0], atol=1e-5)
        assert [step.device for step in session.provenance.steps] == ["openvino"]
    message = CompiledFile(str(tmp_path / "layer.nna")).message
    assert all(step.HasField("program") == is_kept for plan in message.plans for step in plan.steps)


NARROW = """
    halves = Constant <value = int64[2] {2, 2}> ()
    first, second = Split <axis = 3> (x, halves)
    a = Mul (first, c)  b = Mul (second, s)  real = Sub (a, b)
    d = Mul (first, s)  e = Mul (second, c)  imaginary = Add (d, e)
    y = Concat <axis = 3> (real, imaginary)
"""
"""Rotary embeddings with tables half as wide as the rotated value."""
WIDE = """
    zero = Constant <value = int64[1] {0}> ()  two = Constant <value = int64[1] {2}> ()
    four = Constant <value = int64[1] {4}> ()  last = Constant <value = int64[1] {3}> ()
    cc = Concat <axis = 3> (c, c)  ss = Concat <axis = 3> (s, s)
    first = Slice (x, zero, two, last)  second = Slice (x, two, four, last)
    n = Neg (second)  other = Concat <axis = 3> (n, first)
    a = Mul (x, cc)  b = Mul (other, ss)  y = Add (a, b)
"""


@pytest.mark.parametrize(("turned", "is_kept"), [(NARROW, False), (WIDE, True)], ids=["narrow", "wide"])
def test_a_compiled_file_computes_rotary_embeddings_as_the_session_does(tmp_path, turned, is_kept):
    """The engine does not serialize the tables' width, and reads past the end of half-width tables."""
    model = parse(f"""{HEAD} g (float[n, 2, t, 4] x, float[n, 1, t, 2] angle) => (float[n, 2, t, 4] y) {{
        c = Cos (angle)  s = Sin (angle) {turned}
    }}""")
    nna.compile(model, tmp_path / "turned.nna", devices="openvino")
    with nna.InferenceSession(tmp_path / "turned.nna") as session:
        for steps in (3, 1, 4):
            feed = {"x": numbers(2, 2, steps, 4), "angle": numbers(2, 1, steps, 2, seed=1)}
            np.testing.assert_allclose(session.run(None, feed)[0], run_whole(model, feed)[0], atol=1e-5)
            assert [step.device for step in session.provenance.steps] == ["openvino"]
    message = CompiledFile(str(tmp_path / "turned.nna")).message
    assert all(step.HasField("program") == is_kept for plan in message.plans for step in plan.steps)
