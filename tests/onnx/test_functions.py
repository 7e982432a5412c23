from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx.reference import ReferenceEvaluator

import nnadapter as nna
from nnadapter.candidates import OPERATORS
from nnadapter.onnx import expand_functions
from tests.models import numbers, run_whole

HEAD = '<ir_version: 10, opset_import: ["" : 20, "mine" : 1]>'
SWITCHING = f"""{HEAD}
g (float[n, 4] x, float[4] b) => (float[n, 4] y) {{
    a = mine.biased <slope = 0.3> (x, b)
    c = mine.twice (a)
    biased = Neg (c)
    y = mine.biased (biased)
}}
<domain: "mine", opset_import: ["" : 20, "mine" : 1]>
biased <slope: float = 0.1> (v, w) => (r) {{
    inner = LeakyRelu <alpha: float = @slope> (v)
    r = Abs (inner)
}}
<domain: "mine", opset_import: ["" : 20, "mine" : 1]>
twice (v) => (r) {{
    inner = mine.biased <slope = 0.5> (v, v)
    r = Add (inner, inner)
}}
"""


def model_of(text):
    return onnx.parser.parse_model(text)


def results(model, feed, **options):
    with nna.InferenceSession(model, devices="fake_npu", **options) as session:
        return session.run(None, feed), session.report()


def test_model_functions_run_on_the_device():
    model = model_of(SWITCHING)
    feed = {"x": numbers(3, 4), "b": numbers(4)}
    found, report = results(model, feed, options=nna.Options(fallback="forbid"))
    np.testing.assert_allclose(found[0], run_whole(model, feed)[0], rtol=1e-6)
    assert report.coverage.nodes == 1 and len(report.segments) == 1


def test_names_and_origins():
    model, origins = expand_functions(model_of(SWITCHING), OPERATORS)
    onnx.checker.check_model(model)
    assert [node.op_type for node in model.graph.node] == [
        "LeakyRelu", "Abs", "LeakyRelu", "Abs", "Add", "Neg", "LeakyRelu", "Abs",
    ]  # fmt: skip
    slopes = [node.attribute[0].f for node in model.graph.node if node.op_type == "LeakyRelu"]
    np.testing.assert_allclose(slopes, [0.3, 0.5, 0.1], rtol=1e-6)
    assert len({node.name for node in model.graph.node}) == 8
    assert len(origins) == 8 and len(set(origins)) == 4


def test_used_names_get_a_number():
    text = SWITCHING.replace("c = mine", "c = mine").replace(
        "biased = Neg (c)", '"a/inner" = Neg (c) biased = Neg ("a/inner")'
    )
    text = text.replace('"a/inner"', "a_inner")
    model = model_of(text)
    for node in model.graph.node:
        node.input[:] = ["a/inner" if name == "a_inner" else name for name in node.input]
        node.output[:] = ["a/inner" if name == "a_inner" else name for name in node.output]
    feed = {"x": numbers(3, 4), "b": numbers(4)}
    np.testing.assert_allclose(results(model, feed)[0][0], run_whole(model, feed)[0], rtol=1e-6)


def test_sub_graphs_in_a_body_read_its_values():
    text = f"""{HEAD}
    g (float[4] x, bool up) => (float[4] y) {{ y = mine.choice <slope = 0.2> (x, up) }}
    <domain: "mine", opset_import: ["" : 20]>
    choice <slope> (v, up) => (r) {{
        doubled = Add (v, v)
        r = If (up) <
            then_branch = g1 () => (float[4] p) {{ p = LeakyRelu <alpha: float = @slope> (doubled) }},
            else_branch = g2 () => (float[4] q) {{ q = Sub (v, doubled) }}
        >
    }}
    """
    model = model_of(text)
    for up in (True, False):
        feed = {"x": numbers(4), "up": np.array(up)}
        np.testing.assert_allclose(results(model, feed)[0][0], run_whole(model, feed)[0], rtol=1e-6)


def test_body_of_equivalent_opset_is_expanded():
    text = SWITCHING.replace('"" : 20, "mine" : 1]>\ng', '"" : 21, "mine" : 1]>\ng')
    kinds = [
        node.op_type for node in expand_functions(model_of(text.replace("Abs", "Identity")), OPERATORS)[0].graph.node
    ]
    assert "Identity" in kinds and "biased" not in kinds


@pytest.mark.parametrize("version", [19, 21])
def test_body_of_incompatible_opset_is_not_expanded(version):
    text = SWITCHING.replace('"" : 20, "mine" : 1]>\ng', f'"" : {version}, "mine" : 1]>\ng')
    text = text.replace("r = Abs (inner)", "r = GroupNormalization <num_groups = 1> (inner, inner, inner)")
    kinds = [node.op_type for node in expand_functions(model_of(text), OPERATORS)[0].graph.node]
    assert ("GroupNormalization" in kinds) == (version == 19) and ("biased" in kinds) == (version == 21)


def test_unconvertible_function_is_not_expanded():
    text = f"""{HEAD}
    g (float[4] x) => (float[4] y) {{ y = mine.odd (x) }}
    <domain: "mine", opset_import: ["" : 20]>
    odd (v) => (r) {{ r = RandomUniformLike (v) }}
    """
    model = model_of(text)
    assert expand_functions(model, OPERATORS)[0] is model


@pytest.mark.parametrize(
    "function",
    ["odd (v) => (v, r) { r = Relu (v) }", "odd (v) => (r, r) { r = Relu (v) }", "odd (v) => (v, v) { r = Relu (v) }"],
)
@pytest.mark.parametrize("body", ["y, w = mine.odd (x) z = Sub (y, w)", "y, w = mine.odd (x) z = Neg (w)"])
def test_outputs_equal_to_inputs_or_each_other_are_copied(function, body):
    """ONNX Runtime does not load these; the oracle is onnx's reference evaluator."""
    text = f"""{HEAD} g (float[4] x) => (float[4] y, float[4] w, float[4] z) {{ {body} }}
    <domain: "mine", opset_import: ["" : 20]> {function}"""
    model, feed = model_of(text), {"x": numbers(4)}
    with nna.InferenceSession(model, devices="fake_npu", options=nna.Options(fallback="forbid")) as session:
        for got, expected in zip(session.run(None, feed), ReferenceEvaluator(model).run(None, feed), strict=True):
            np.testing.assert_allclose(got, expected)
