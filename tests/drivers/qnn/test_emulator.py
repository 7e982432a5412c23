"""Models compiled for the NPU and run in its emulator."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import nnadapter as nna
from nnadapter.drivers import Reason, registry
from nnadapter.errors import DeviceUnavailableError, FallbackWarning, InvalidOptionError
from tests.models import HEAD, parse, run_whole

X = np.linspace(-2, 2, 3 * 64, dtype=np.float32).reshape(1, 3, 8, 8)
MIXED = f"""{HEAD} g (float[1, 3, 8, 8] x) => (float[1, 3, 8, 8] y, float[1, 3] d) {{
    a = Relu(x)
    b = Sin(a)
    c = Erf(b)
    d = Det(c)
    h = HardSwish(c)
    y = Add(h, x)
}}"""


def test_unsupported_nodes_run_on_the_cpu():
    with nna.InferenceSession(parse(MIXED), devices="qnn") as session:
        results = session.run(None, {"x": X})
        assert [step.device for step in session.provenance.steps] == ["qnn", "cpu", "qnn"]
        assert session.report().refusals().keys() == {
            ("qnn", op_type, Reason.DEVICE_REFUSED) for op_type in ("Erf", "Det")
        }
    for result, expected in zip(results, run_whole(parse(MIXED), {"x": X}), strict=True):
        np.testing.assert_allclose(result, expected, atol=5e-3)


EMPTY = f"""{HEAD} g (float[0, 3] x, float[2, 3] y) => (float[0, 3] a, float[2, 3] c) {{
    a = Neg(x)
    b = Concat<axis = 0>(x, y)
    c = Relu(b)
}}"""


def test_empty_tensors_are_withheld_from_qnn():
    """QNN's compiler divides by the number of elements, which crashes the process."""
    feeds = {"x": np.zeros((0, 3), np.float32), "y": np.array([[1, -1, 2], [-3, 4, 5]], np.float32)}
    with nna.InferenceSession(parse(EMPTY), devices="qnn") as session:
        results = session.run(None, feeds)
        assert session.report().refusals().keys() >= {("qnn", "Neg", Reason.UNSUPPORTED_TYPE)}
    for result, expected in zip(results, run_whole(parse(EMPTY), feeds), strict=True):
        np.testing.assert_allclose(result, expected, atol=5e-3)


def test_cast_that_crashes_qnn_is_withheld():
    """Only casts from int32 to int64 at rank 5 crash, also of constants."""
    model = parse(f"""{HEAD} g (int32[1, 2, 1, 2, 1] x, float[2] z) => (int64[1, 2, 1, 2, 1] y, float[2] w) {{
        y = Cast<to = 7>(x)
        w = Relu(z)
    }}""")
    feeds = {"x": np.arange(4, dtype=np.int32).reshape(1, 2, 1, 2, 1), "z": np.float32([-1, 2])}
    with nna.InferenceSession(model, devices="qnn") as session:
        np.testing.assert_array_equal(session.run(None, feeds)[0], feeds["x"])
        assert session.report().refusals().keys() == {("qnn", "Cast", Reason.UNSUPPORTED_TYPE)}


OTHERWISE = """<ir_version: 8, opset_import: ["": 18]> g (float[1, 2, 5, 5] x, int64[2] at) => (float[1, 2, 5, 5] y)
    <int64[8] pads = {0, 0, 1, 1, 0, 0, 0, 0}> {
    a = Pad<mode = "edge">(x, pads)
    b = AveragePool<kernel_shape = [2, 2], count_include_pad = 1, pads = [1, 1, 0, 0]>(a)
    c = AveragePool<kernel_shape = [2, 2]>(b)
    d = Softplus(c)
    e = Mish(d)
    g = GatherND(x, at)
    y = Add(e, g)
}"""


def test_nodes_that_qnn_computes_differently_run_on_the_cpu():
    x, at = np.random.default_rng(0).normal(size=(1, 2, 5, 5)).astype(np.float32), np.array([0, -1])
    with nna.InferenceSession(parse(OTHERWISE), devices=["qnn", "cpu"]) as session:
        (got,) = session.run(None, {"x": x, "at": at})
        report = session.report()
        refused = {op_type for device, op_type, _ in report.refusals() if device == "qnn"}
    assert refused == {"Pad", "AveragePool", "Mish", "GatherND"}
    on_qnn = {node.op_type for node in report.nodes if node.device == "qnn"}
    assert on_qnn >= {"Sigmoid", "Log"}, "Softplus, spelled out"
    np.testing.assert_allclose(got, run_whole(parse(OTHERWISE), {"x": x, "at": at})[0], atol=5e-3)


def test_computed_negative_indices_run_on_the_cpu():
    """QNN misreads computed negative indices; constant ones are right."""
    text = f"""{HEAD} g (float[3, 4] x, int32[3] at, int32[2, 4] among) => (float[3, 4] y, float[2, 4] z, float[3, 4] w)
        <int64[3] known = {{0, -1, -2}}> {{
        a = Relu(x)
        y = Gather(a, at)
        z = GatherElements(a, among)
        w = Gather(a, known)
    }}"""
    feeds = {"x": X.reshape(-1)[-12:].reshape(3, 4), "at": np.int32([0, -1, -2])}
    feeds["among"] = np.int32([[0, -1, -2, 1], [2, -3, 0, 0]])
    with nna.InferenceSession(parse(text), devices=["qnn", "cpu"]) as session:
        results = session.run(None, feeds)
        on = [node.device for node in session.report().nodes]
    assert on == ["qnn", "cpu", "cpu", "qnn"]
    for result, expected in zip(results, run_whole(parse(text), feeds), strict=True):
        np.testing.assert_allclose(result, expected, atol=5e-3)


def test_quantized_cast_is_rounded():
    """QNN truncates the elements after the last multiple of 128."""
    size = 160
    text = f"""{HEAD} g (float16[1, {size}] x) => (int8[1, {size}] y) <float s = {{0.05}}, int8 z = {{3}}> {{
        a = Cast<to = 1>(x)
        y = QuantizeLinear(a, s, z)
    }}"""
    x = np.linspace(-3, 3, size).astype(np.float16).reshape(1, size)
    with nna.InferenceSession(parse(text), devices=["qnn", "cpu"]) as session:
        (got,) = session.run(None, {"x": x})
        on = {node.op_type: node.device for node in session.report().nodes}
    assert on == {"Cast": "qnn", "QuantizeLinear": "cpu"}
    real = x.astype(np.float32) / np.float32(0.05)
    far = np.abs(real - np.floor(real) - 0.5) > 0.2  # half precision decides closer to a half
    np.testing.assert_array_equal(got[far], (np.rint(real) + 3)[far])


INTEGERS = {"uint8": [0, 1, 2, 100, 255], "int32": [-300, -1, 0, 1, 300], "int64": [-300, -1, 0, 1, 300],
            "uint32": [0, 1, 255, 256, 1000]}  # fmt: skip
CASTS = {
    ("uint8", "float"),
    *((name, "uint8") for name in ("int32", "int64", "uint32")),
    ("int32", "bool"),
    ("int64", "bool"),
}
"""Casts for which QNN saturates, or returns 0 and 1."""


@pytest.mark.parametrize("source", ["uint8", "int32", *(pytest.param(other, marks=pytest.mark.sweep) for other in
                                    ("int64", "uint32"))])  # fmt: skip
def test_casts_equal_onnx(source):
    targets = {"uint8": 2, "bool": 9, "int32": 6, "int64": 7, "float": 1, "float16": 10}
    targets.pop(source, None)
    outputs = ", ".join(f"{name}[1, 5] y_{name}" for name in targets)
    nodes = "\n".join(f"y_{name} = Cast<to = {number}>(x)" for name, number in targets.items())
    model = parse(f"""<ir_version: 8, opset_import: ["": 18]> g ({source}[1, 5] x) => ({outputs}) {{ {nodes} }}""")
    x = np.array([INTEGERS[source]], source)
    with nna.InferenceSession(model, devices="qnn") as session:
        results = session.run(None, {"x": x})
        on = {name for name, node in zip(targets, session.report().nodes, strict=True) if node.device == "qnn"}
    assert on and not {(source, name) for name in on} & CASTS
    for name, result in zip(targets, results, strict=True):
        dtype = np.float32 if name == "float" else name
        np.testing.assert_allclose(result, x.astype(dtype), atol=1e-3, err_msg=name)


def small_integers(name, axis, zero_point, tag):
    """Return a dequantized constant of 2 or 4 bits with every value, its nodes, and its numbers."""
    bits = int(name[-1])
    low = 0 if name.startswith("u") else -(2 ** (bits - 1))
    values = np.resize(np.arange(low, low + 2**bits), (4, 4))
    scales = np.float32([0.5, 0.25, 0.125, 1])[: 4 if axis is not None else 1]
    shape, point = ([4] if axis is not None else []), low + 1 if zero_point else 0
    type_ = getattr(TensorProto, name.upper())
    constants = [
        helper.make_tensor(f"q{tag}", type_, [4, 4], values.ravel()),
        helper.make_tensor(f"s{tag}", TensorProto.FLOAT, shape, scales),
        *([helper.make_tensor(f"z{tag}", type_, shape, [point] * len(scales))] if zero_point else []),
    ]
    names = [constant.name for constant in constants]
    dequantize = helper.make_node("DequantizeLinear", names, [f"d{tag}"], **({} if axis is None else {"axis": axis}))
    table = scales if axis is None else scales.reshape([-1 if at == axis else 1 for at in range(2)])
    return constants, [dequantize, helper.make_node("Add", ["x", f"d{tag}"], [f"y{tag}"])], (values - point) * table


@pytest.mark.parametrize("name", ["int4", "int2", "uint4"])
def test_constants_of_2_and_4_bits_keep_their_signs(name):
    forms = list(itertools.product((None, 0, 1), (False, True)))
    constants, nodes, expected = zip(*(small_integers(name, *form, tag) for tag, form in enumerate(forms)), strict=True)
    output_infos = [helper.make_tensor_value_info(f"y{tag}", 1, [4, 4]) for tag in range(len(forms))]
    input_info = helper.make_tensor_value_info("x", 1, [4, 4])
    graph = helper.make_graph(
        [*itertools.chain(*nodes)], "g", [input_info], output_infos, [*itertools.chain(*constants)]
    )
    model = helper.make_model(graph, ir_version=13, opset_imports=[helper.make_opsetid("", 25)])
    with nna.InferenceSession(model, devices="qnn") as session:
        results = session.run(None, {"x": np.zeros((4, 4), np.float32)})
        report = session.report()
    for form, result, numbers in zip(forms, results, expected, strict=True):
        np.testing.assert_allclose(result, numbers, atol=1e-2, err_msg=str(form))
    assert {node.device for node in report.nodes if node.op_type == "Add"} == {"qnn"}


PAIRS = """a = Abs(x)
q = QuantizeLinear(a, s, z)
d = DequantizeLinear(q, s, z)
between = Neg(d)
xq = QuantizeLinear(x, s, z)
xd = DequantizeLinear(xq, s, z)
before = Neg(xd)
iq = QuantizeLinear(x, s, z)
id = DequantizeLinear(iq, s, z)
r = Relu(id)
rq = QuantizeLinear(r, s, z)
quantized = DequantizeLinear(rq, s, z)"""


@pytest.mark.parametrize(("name", "low", "high"), [("int8", -128, 127), ("int16", -32768, 32767), ("int4", -8, 7)])
def test_quantize_dequantize_pair_rounds_and_clips(name, low, high):
    x = np.float32([[-1000, -64.3, -3.3, 0.2, 5.1, 1000]])
    outputs = "float[1, 6] between, float[1, 6] before, float[1, 6] quantized"
    model = parse(f"""<ir_version: 10, opset_import: ["": 21]> g (float[1, 6] x) => ({outputs})
        <float s = {{0.5}}, {name} z = {{0}}> {{ {PAIRS} }}""")
    with nna.InferenceSession(model, devices="qnn") as session:
        results = session.run(None, {"x": x})
        on = [node.device for node in session.report().nodes]
    rounded = np.clip(np.rint(x / 0.5), low, high) * 0.5
    expected = -np.clip(np.rint(abs(x) / 0.5), low, high) * 0.5, -rounded, np.maximum(rounded, 0)
    for result, numbers in zip(results, expected, strict=True):
        np.testing.assert_allclose(result, numbers, rtol=1e-3)
    assert name == "int4" or set(on[-5:]) == {"qnn"}, "a quantized operator is one on the NPU"


def quantized_convolution():
    weights = np.random.default_rng(3).integers(-60, 60, (8, 3, 3, 3)).astype(np.int8)
    arrays = {"s": np.float32(0.02), "z": np.uint8(128), "ws": np.float32(0.01), "wz": np.int8(0), "w": weights,
              "os": np.float32(0.05), "oz": np.uint8(128)}  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wd"]),
        helper.make_node("Conv", ["xd", "wd"], ["c"]),
        helper.make_node("QuantizeLinear", ["c", "os", "oz"], ["cq"]),
        helper.make_node("DequantizeLinear", ["cq", "os", "oz"], ["y"]),
    ]
    input_info, output_info = (
        helper.make_tensor_value_info(*arguments) for arguments in (("x", 1, [1, 3, 8, 8]), ("y", 1, [1, 8, 6, 6]))
    )
    constants = [numpy_helper.from_array(np.asarray(array), name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "g", [input_info], [output_info], constants)
    return helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])


def test_quantized_convolution_runs_entirely_on_the_npu():
    model = quantized_convolution()
    with nna.InferenceSession(model, devices="qnn") as session:
        (result,) = session.run(None, {"x": X})
        assert [step.device for step in session.provenance.steps] == ["qnn"]
    (expected,) = run_whole(model, {"x": X})
    assert np.abs(result - expected).max() <= 0.05 + 1e-6  # one step of the output's scale


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"soc_model": 9999}, InvalidOptionError, "supports nothing with soc_model=9999.*remove these options"),
        ({"backend": "gpu"}, InvalidOptionError, "hardware or driver for libQnnGpu.so is missing"),
        ({"hardware": "npu"}, DeviceUnavailableError, "has no npu hardware on this machine, only cpu"),
        ({"htp_arch": "99"}, InvalidOptionError, "'htp_arch' of device 'qnn' is one of auto, 68"),
        ({"soc_modle": 43}, InvalidOptionError, "did you mean 'soc_model'"),
    ],
)
def test_options_that_refuse_all_nodes_are_reported(options, kind, words):
    with pytest.raises(kind, match=words):
        nna.InferenceSession(parse(MIXED), devices=("qnn", options))


def test_half_precision_without_a_chip_reports_qnn_error():
    options = {"provider_options": "backend_type=htp,enable_htp_fp16_precision=1"}
    with pytest.raises(InvalidOptionError, match="does not start: FP16 precision mode is enabled but soc_model"):
        nna.InferenceSession(parse(MIXED), devices=("ort:QNN", options))


@pytest.fixture
def failing(tmp_path, monkeypatch):
    folder = tmp_path / "failing-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: failing\nVersion: 1.0\n")
    point = "failing_qnn = tests.drivers.qnn.failing_driver:FailingQnnDriver"
    (folder / "entry_points.txt").write_text(f"[nnadapter.drivers]\n{point}\n")
    with monkeypatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        registry.refresh()
        yield "failing_qnn"
    registry.refresh()


def test_failing_segment_loses_only_its_culprits(failing):
    """The provider accepts the graph, but fails to compile a segment because of one op."""
    with pytest.warns(FallbackWarning, match="failed to compile it: .*no memory for Sin"):
        session = nna.InferenceSession(parse(MIXED), devices=failing)
        session.run(None, {"x": X})
    nodes = {node.op_type: node.device for node in session.report().nodes}
    assert nodes["Sin"] == "cpu" and nodes["Relu"] == nodes["Add"] == failing
    session.close()
