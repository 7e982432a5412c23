"""Patterns of exporters, which get one verdict; a refusal leads to verdicts on their nodes."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import nnadapter as nna
from tests.models import HEAD, exact_options, numbers, parse, run_whole

GELU = f"""{HEAD}
g (float[n, 6] x) => (float[n, 6] y) {{
    root = Constant <value_float = 1.4142135> ()
    one = Constant <value_float = 1.0> ()
    half = Constant <value_float = 0.5> ()
    before = Relu (x)
    scaled = Div (before, root)
    bent = Erf (scaled)
    raised = Add (bent, one)
    product = Mul (before, raised)
    bowed = Mul (product, half)
    y = Neg (bowed)
}}
"""
PARTS = ["Div", "Erf", "Add", "Mul", "Mul"]


def placed(session):
    return {node.name: node.device for node in session.report().nodes if node.op_type in PARTS}


def devices(*takes):
    return [(f"trial:{index + 1}", {"only": list(only)}) for index, only in enumerate(takes)]


def run_on(*takes, shapes=((2, 6), (5, 6))):
    """Return the devices of the GELU's nodes and the number of segments, after checking the results."""
    model = parse(GELU)
    with nna.InferenceSession(model, devices=devices(*takes)) as session:
        for shape in shapes:
            x = numbers(*shape)
            (expected,) = run_whole(model, {"x": x})
            np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, rtol=1e-5, atol=1e-6)
        return [*placed(session).values()], len(session.report().segments)


def test_device_that_supports_the_pattern_runs_all_of_it():
    assert run_on(["RELU", "GELU", "NEG"]) == (["trial:1"] * 5, 1)


def test_device_that_supports_nodes_runs_these():
    assert run_on(["RELU", "MUL", "ADD"]) == (["cpu", "cpu", "trial:1", "trial:1", "trial:1"], 4)


@pytest.mark.filterwarnings("ignore::nnadapter.errors.FallbackWarning")
def test_first_device_that_supports_anything_decides():
    whole, nothing, part = ["RELU", "GELU", "NEG"], ["SIN"], ["MUL"]
    assert run_on(nothing, whole)[0] == ["trial:2"] * 5
    assert run_on(part, whole)[0] == ["cpu", "cpu", "cpu", "trial:1", "trial:1"]
    assert run_on(whole, part)[0] == ["trial:1"] * 5
    assert run_on(nothing, nothing)[0] == ["cpu"] * 5


def test_shared_inner_value_prevents_the_pattern():
    text = GELU.replace("float[n, 6] y", "float[n, 6] y, float[n, 6] bent")
    with nna.InferenceSession(parse(text), devices=devices(["GELU", "MUL"])) as session:
        session.prepare({"x": (2, 6)})
        assert [*placed(session).values()] == ["cpu", "cpu", "cpu", "trial:1", "trial:1"]


def test_report_counts_atoms_once_and_names_every_node():
    report = nna.partition_report(parse(GELU), devices=devices(["GELU"]), input_shapes={"x": (2, 6)})
    flops = {node.name: node.flops for node in report.nodes if node.op_type in PARTS}
    assert [value > 0 for value in flops.values()] == [False, False, False, False, True]
    assert report.coverage.nodes == 5 / 7


def test_switched_off_operation_disables_patterns_of_it():
    device = ("fake_npu", {"switched_off": "Erf"})
    report = nna.partition_report(parse(GELU), devices=device, input_shapes={"x": (2, 6)})
    refused = {node.op_type: node.refusals[0] for node in report.nodes if node.refusals}
    assert refused.keys() == {"Erf"} and refused["Erf"].reason == "switched_off"
    text = f"{HEAD.replace('17', '20')} g (float[2, 6] x) => (float[2, 6] y) {{ y = Gelu (x) }}"
    with pytest.warns(nna.errors.FallbackWarning):
        (node,) = nna.partition_report(parse(text), devices=device).nodes
    assert node.refusals[0].detail == (
        "ERF, which GELU needs, is switched off on this device by its option switched_off"
    )


def quantized_network():
    """Return a quantized residual block: two convolutions, the first with Relu, and the sum with their input."""
    random = np.random.default_rng(0)
    nodes, known = [], {}

    def parameters(name, scale, zero_point):
        known[f"{name}_scale"] = np.asarray(scale, np.float32)
        known[f"{name}_point"] = np.asarray(zero_point)
        return [f"{name}_scale", f"{name}_point"]

    def quantized(name, source, scale, zero_point):
        nodes.append(
            helper.make_node("QuantizeLinear", [source, *parameters(name, scale, np.uint8(zero_point))], [name])
        )
        return real(name)

    def real(name):
        nodes.append(
            helper.make_node(
                "DequantizeLinear", [name, f"{name}_scale", f"{name}_point"], [f"{name}_real"], name=f"d_{name}"
            )
        )
        return f"{name}_real"

    def convolution(name, source, relu):
        known[f"w_{name}"] = random.integers(-127, 128, (8, 8, 3, 3)).astype(np.int8)
        parameters(f"w_{name}", 0.004, np.int8(0))
        real(f"w_{name}")
        nodes.append(
            helper.make_node("Conv", [source, f"w_{name}_real"], [name], pads=[1, 1, 1, 1], name=f"conv_{name}")
        )
        if relu:
            nodes.append(helper.make_node("Relu", [name], [f"{name}_relu"]))
        return f"{name}_relu" if relu else name

    first = quantized("q0", "x", 0.02, 128)
    second = quantized("q1", convolution("c1", first, True), 0.05, 0)
    third = quantized("q2", convolution("c2", second, False), 0.06, 120)
    nodes.append(helper.make_node("Add", [first, third], ["sum"], name="add"))
    nodes.append(helper.make_node("Identity", [quantized("q3", "sum", 0.06, 125)], ["y"]))
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8, 9, 9])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 8, 9, 9])],
        [numpy_helper.from_array(value, name) for name, value in known.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def run_quantized(*takes, within=0.0):
    model = quantized_network()
    onnx.checker.check_model(model)
    known = onnxruntime.InferenceSession(model.SerializeToString(), exact_options())
    chosen = devices(*takes) if takes else "fake_npu"
    with nna.InferenceSession(model, exact_options(), devices=chosen) as session:
        for count in (1, 3):
            x = np.random.default_rng(count).standard_normal((count, 8, 9, 9), np.float32)
            (expected,) = known.run(None, {"x": x})
            np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, rtol=0, atol=within)
        return session.report()


def test_quantized_groups_are_one_operation_each_and_exact():
    report = run_quantized()
    assert len(report.segments) == 1 and report.coverage.nodes == 1
    runs_as = {node.name: node.runs_as for node in report.nodes}
    assert runs_as["conv_c1"] == runs_as["d_w_c1"] == "convolution of conv_c1"
    assert runs_as["conv_c2"] == "convolution of conv_c2"
    counted = {node.op_type for node in report.nodes if node.flops}
    # the first and the last, which belong to no group
    assert counted == {"Conv", "Add", "QuantizeLinear", "DequantizeLinear"}


def test_cut_between_groups_splits_neither():
    """The node that quantizes the residual value has readers in two groups on different devices."""
    report = run_quantized(["CONV_2D"])
    placed = {node.name: node.device for node in report.nodes}
    assert placed["conv_c1"] == placed["conv_c2"] == "trial:1" and placed["add"] == "cpu"
    assert all(tensor.dtype == "uint8" for tensor in report.segments[1].inputs)


def test_device_without_integers_gets_floats():
    report = run_quantized(["RELU", "ADD"], within=0.0601)  # one step: float sums lie between two integers
    placed = {node.name: node.device for node in report.nodes}
    assert placed["add"] == "trial:1" and placed["conv_c1"] == "cpu"


ATTENTION = f"""{HEAD}
    g (float[1, 2, 3, 4] q, float[1, 2, 4, 5] k, float[1, 2, 5, 4] v, float[1, 1, 3, 5] mask)
    => (float[1, 2, 3, 4] y) {{
        scores = MatMul (q, k)
        masked = Add (scores, mask)
        weights = Softmax <axis = -1> (masked)
        y = MatMul (weights, v)
    }}"""


def test_switched_off_operation_disables_attention():
    report = nna.partition_report(parse(ATTENTION), devices=("fake_npu", {"switched_off": "Softmax"}))
    assert {node.op_type: node.device for node in report.nodes} == {
        "MatMul": "fake_npu", "Add": "fake_npu", "Softmax": "cpu"
    }  # fmt: skip


def test_fully_masked_attention_equals_onnxruntime():
    shapes = {"q": (1, 2, 3, 4), "k": (1, 2, 4, 5), "v": (1, 2, 5, 4)}
    feed = {name: numbers(*shape) for name, shape in shapes.items()}
    feed["mask"] = np.where(np.arange(15).reshape(1, 1, 3, 5) < 7, -np.inf, 0).astype(np.float32)
    model = parse(ATTENTION)
    with nna.InferenceSession(model, devices="fake_npu") as session:
        found = session.run(None, feed)[0]
        assert "attention" in session.report().nodes[0].runs_as
    expected = run_whole(model, feed)[0]
    assert np.isnan(expected[:, :, 0]).all() and not np.isnan(expected[:, :, 1:]).any()
    np.testing.assert_allclose(found, expected, rtol=1e-5)
