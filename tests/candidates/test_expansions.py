"""Function ops that no device supports, replaced by their bodies."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import onnx.parser
import pytest

import nnadapter as nna
from nnadapter import Options
from nnadapter.candidates import prepare
from nnadapter.planning import Planner, open_setting
from tests.models import numbers, run_whole

QUIET = nna.Options(fallback="allow")
HEAD = '<ir_version: 10, opset_import: ["" : 21]>'
SIGNATURE = "g (float[2, 4] x, float[4] s) => (float[2, 4] y)"
FUNCTIONS = {
    "y = LayerNormalization <epsilon = 0.1> (x, s)": (
        "LAYER_NORMALIZATION",
        "REDUCE_MEAN RESHAPE SUB MUL ADD DIV SQRT RECIPROCAL ASSIGN CAST POW",
    ),
    "y = Gelu <approximate = \"none\"> (x)": ("GELU", "MUL SUM ERF DIV"),
    "y = HardSwish (x)": ("HARD_SWISH", "MUL HARD_SIGMOID"),
    "y = Softplus (x)": ("SOFTPLUS", "RELU ABS SIGMOID LOG SUB"),
    "a = PRelu (x, s) y = Neg (a)": ("PRELU", "LESS MUL WHERE NEG"),
}  # fmt: skip
PARTS = FUNCTIONS["y = Softplus (x)"][1].split()


def model_of(body):
    return onnx.parser.parse_model(f"{HEAD}\n{SIGNATURE} {{ {body} }}")


def session(body, operations, **options):
    return nna.InferenceSession(model_of(body), devices=("trial", {"only": operations.split()}), **options)


@pytest.mark.parametrize("body", FUNCTIONS)
def test_fully_supported_body_runs_on_the_device(body):
    _, parts = FUNCTIONS[body]
    feed = {"x": numbers(2, 4), "s": numbers(4)}
    with session(body, parts, options=nna.Options(fallback="forbid")) as opened:
        np.testing.assert_allclose(opened.run(None, feed)[0], run_whole(model_of(body), feed)[0], rtol=1e-4, atol=1e-6)
        report = opened.report()
    assert report.coverage.nodes == 1 and len(report.segments) == 1
    assert len(report.nodes) > 1


@pytest.mark.parametrize("body", FUNCTIONS)
def test_partially_refused_body_is_not_expanded(body):
    _, parts = FUNCTIONS[body]
    kept = [part for part in parts.split() if part != "MUL" and part != "LOG"]
    with session(body, " ".join(kept), options=QUIET) as opened:
        names = {node.op_type for node in opened.report().nodes}
    assert names == {part.split(" = ")[1].split()[0] for part in body.replace("(x, s) y", "(x, s)\ny").split("\n")}


def test_supported_function_is_not_expanded():
    body = next(iter(FUNCTIONS))
    with session(body, FUNCTIONS[body][0]) as opened:
        assert [node.op_type for node in opened.report().nodes] == ["LayerNormalization"]


def test_switched_off_function_is_not_expanded():
    options = ("fake_npu", {"switched_off": ["Softplus"]})
    report = nna.partition_report(model_of("y = Softplus (x)"), devices=options, options=QUIET)
    assert [node.op_type for node in report.nodes] == ["Softplus"]
    assert report.nodes[0].refusals[0].reason == "switched_off"


def test_functions_are_expanded_independently():
    body = "a = Softplus (x) y = HardSwish (a)"
    with session(body, FUNCTIONS["y = Softplus (x)"][1], options=QUIET) as opened:
        nodes = [(node.op_type, node.device) for node in opened.report().nodes]
        feed = {"x": numbers(2, 4), "s": numbers(4)}
        np.testing.assert_allclose(opened.run(None, feed)[0], run_whole(model_of(body), feed)[0], rtol=1e-5)
    assert nodes[-1] == ("HardSwish", "cpu")
    assert {device for _, device in nodes[:-1]} == {"trial"}


def test_functions_are_expanded_at_every_shape():
    text = f"{HEAD} g (float[n, 4] x) => (float[n, 4] y) {{ y = Softplus (x) }}"
    with nna.InferenceSession(onnx.parser.parse_model(text), devices=("trial", {"only": PARTS})) as opened:
        for rows in (1, 5, 3, 0):
            feed = {"x": numbers(rows, 4)}
            np.testing.assert_allclose(opened.run(None, feed)[0], np.log1p(np.exp(feed["x"])), rtol=1e-5)
            assert opened.report().coverage.nodes == 1


OPEN = f"{HEAD} g (float[n, 4] x) => (float[n, 4] y) {{ y = Softplus (x) }}"
SMALL = ("trial", {"only": PARTS, "largest": 40})


@pytest.mark.slow
@pytest.mark.parametrize("order", [*permutations([1, 9, 20, 30])])
def test_expansion_does_not_depend_on_previous_shapes(order):
    with nna.InferenceSession(onnx.parser.parse_model(OPEN), devices=SMALL, options=QUIET) as opened:
        for rows in order:
            feed = {"x": numbers(rows, 4)}
            np.testing.assert_allclose(opened.run(None, feed)[0], np.log1p(np.exp(feed["x"])), rtol=1e-5)
            nodes = [(node.op_type, node.device) for node in opened.report().nodes]
            assert (nodes == [("Softplus", "cpu")]) == (rows * 4 > 40), nodes


@pytest.mark.parametrize("order", [*permutations([1, 20, 2])])
def test_expansion_is_decided_for_every_shape(order):
    text = f"""{HEAD} g (float[n, 4] x) => (float[n, 4] y) {{
        a = Softplus (x)
        r = ReduceSum (x)
        b = Softplus (r)
        y = Add (a, b)
    }}"""
    device = ("trial", {"only": [*PARTS, "ADD", "REDUCE_SUM"], "largest": 40})
    with nna.InferenceSession(onnx.parser.parse_model(text), devices=device, options=QUIET) as opened:
        for rows in order:
            feed = {"x": numbers(rows, 4)}
            expected = run_whole(onnx.parser.parse_model(text), feed)[0]
            np.testing.assert_allclose(opened.run(None, feed)[0], expected, rtol=1e-5)
            whole = [node.name for node in opened.report().nodes if node.op_type == "Softplus"]
            assert whole == (["Softplus_0"] if rows == 20 else [])


def test_shapes_share_preparation_and_conversion():
    result = prepare(onnx.parser.parse_model(OPEN))
    planner = Planner(result, open_setting(("trial", {"only": PARTS}), Options()))
    first, *others = [planner.judge({"x": (rows, 4)}).model for rows in (3, 9, 5, 7, 2)]
    assert len(first.graph.nodes) > 1
    for other in others:
        assert other.specialized.model_nodes is first.specialized.model_nodes
        assert other.conversion.source is not None and other.conversion.source[0] is first.conversion.source[0]


@pytest.mark.parametrize("name", ["post", "/act/post", "/act/Relu@0", "/act/Relu"])
def test_names_resembling_body_nodes_do_not_matter(name):
    model = model_of("a = Softplus (x) y = Sin (a)")
    model.graph.node[0].name, model.graph.node[1].name = "/act", name
    device = ("trial", {"only": PARTS})
    with nna.InferenceSession(model, devices=device, options=QUIET) as opened:
        nodes = {node.name: node for node in opened.report().nodes}
    assert nodes[name].op_type == "Sin" and nodes[name].device == "cpu"
    assert {node.device for key, node in nodes.items() if key != name} == {"trial"}


def test_unnamed_nodes_keep_their_names_under_expansion():
    body = "a = Softplus (x) b = Sin (a) y = Neg (b)"
    with session(body, " ".join(PARTS), options=QUIET) as opened:
        names = [node.name for node in opened.report().nodes]
    assert names[-2:] == ["Sin_1", "Neg_2"]
