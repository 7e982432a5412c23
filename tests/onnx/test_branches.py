from __future__ import annotations

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest

import nnadapter as nna
from nnadapter.candidates import prepare
from nnadapter.onnx import with_weights_outside
from tests.models import numbers, parse, run_whole

HEAD = '<ir_version: 10, opset_import: ["" : 17]>'
TEXT = f"""{HEAD} g (float[2, 3] x) => (float[2, 3] y, float[2, 3] z, float[2, 3] same) {{
    c = Constant<value = bool {{CONDITION}}>()
    a = Relu(x)
    y, z, same = If(c) <
        then_branch = t () => (float[2, 3] p, float[2, 3] q, float[2, 3] a) <float[1] w = {{2}}> {{
            i = Mul(a, w)
            p = Add(i, x)
            k = Constant<value = bool {{0}}>()
            q = If(k) <
                then_branch = tt () => (float[2, 3] n) {{ n = Neg(i) }},
                else_branch = te () => (float[2, 3] n) {{ n = Exp(i) }}
            >
        }},
        else_branch = e () => (float[2, 3] p, float[2, 3] p, float[2, 3] x) {{ p = Neg(a) }}
    >
}}"""


def model(condition):
    return onnx.parser.parse_model(TEXT.replace("CONDITION", str(condition)))


@pytest.mark.parametrize("condition", [0, 1])
def test_constant_condition_is_replaced_by_its_branch(condition):
    feed = {"x": numbers(2, 3)}
    with nna.InferenceSession(model(condition), devices="fake_npu", options=nna.Options(fallback="forbid")) as session:
        got = session.run(None, feed)
        report = session.report()
    a, x = np.maximum(feed["x"], 0), feed["x"]
    expected = [a * 2 + x, np.exp(a * 2), a] if condition else [-a, -a, x]
    for mine, theirs in zip(got, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5)
    assert "If" not in {node.op_type for node in report.nodes}
    assert any(node.name.startswith("If_2/") for node in report.nodes)


def test_captured_names_are_renamed():
    text = f"""{HEAD} g (float[2] x) => (float[2] y) {{
        c = Constant<value = bool {{1}}>()
        e = ReduceMax<keepdims = 0>(x)
        d = Cast<to = 9>(e)
        y = If(c) <
            then_branch = t () => (float[2] p) {{
                i = Neg(x)
                p = If(d) <
                    then_branch = tt () => (float[2] n) {{ n = Exp(i) }},
                    else_branch = te () => (float[2] i2) {{ i2 = Identity(i) }}
                >
            }},
            else_branch = e () => (float[2] q) {{ q = Identity(x) }}
        >
    }}"""
    feed = {"x": numbers(2)}
    with nna.InferenceSession(parse(text), devices="fake_npu", options=nna.Options(fallback="allow")) as session:
        np.testing.assert_allclose(session.run(None, feed)[0], run_whole(parse(text), feed)[0], rtol=1e-6)
        inner = next(node for node in session.report().nodes if node.op_type == "If")
    assert inner.device == "cpu" and inner.name == "If_3/If_1"


def test_fed_condition_is_not_folded():
    text = f"""{HEAD} g (float[2] x, bool c) => (float[2] y) {{
        y = If(c) <
            then_branch = t () => (float[2] p) {{ p = Neg(x) }},
            else_branch = e () => (float[2] q) {{ q = Identity(x) }}
        >
    }}"""
    given = parse(text)
    assert prepare(given).model is given


def test_large_weights_of_branches_become_initializers():
    """New names avoid every other name. Branch outputs and small weights stay."""
    text = f"""{HEAD} g (float[n, 128] x, bool c, bool d) => (float[n, 128] y, float[128, 128] z) {{
        w = Neg(x)
        y, z = If(c) <
            then_branch = t () => (float[n, 128] p, float[128, 128] given) {{
                a = MatMul(x, weight)
                p = If(d) <
                    then_branch = tt () => (float[n, 128] r) {{ r = MatMul(a, weight) }},
                    else_branch = te () => (float[n, 128] s) <float[1] small = {{2}}> {{ s = Mul(a, small) }}
                >
            }},
            else_branch = e () => (float[n, 128] q, float[128, 128] k) {{
                q = MatMul(w, weight)
                k = Identity(weight)
            }}
        >
    }}"""
    given = onnx.parser.parse_model(text)
    then, other = (attribute.g for attribute in given.graph.node[1].attribute)
    for graph, names, seed in ((then, ("weight", "given"), 1), (other, ("weight",), 5)):
        graph.initializer.extend(
            onnx.numpy_helper.from_array(numbers(128, 128, seed=seed + at), name) for at, name in enumerate(names)
        )
    outside = with_weights_outside(given)
    onnx.checker.check_model(outside)
    assert sorted(tensor.name for tensor in outside.graph.initializer) == ["e/weight", "t/weight"]
    assert [tensor.name for tensor in outside.graph.node[1].attribute[0].g.initializer] == ["given"]
    for bits in range(4):
        feed = {"x": numbers(2, 128), "c": np.array(bool(bits & 1)), "d": np.array(bool(bits & 2))}
        for one, same in zip(run_whole(outside, feed), run_whole(given, feed), strict=True):
            np.testing.assert_array_equal(one, same)
    assert with_weights_outside(outside) is outside


def test_choices_share_weights_of_branches():
    text = f"""{HEAD} g (float[n, 128] x, bool c) => (float[n, 128] y) {{
        y = If(c) <
            then_branch = t () => (float[n, 128] p) {{ p = MatMul(x, weight) }},
            else_branch = e () => (float[n, 128] q) {{ q = Neg(x) }}
        >
    }}"""
    given = onnx.parser.parse_model(text)
    given.graph.node[0].attribute[0].g.initializer.append(onnx.numpy_helper.from_array(numbers(128, 128), "weight"))
    with nna.InferenceSession(given, devices="fake_npu", options=nna.Options(fallback="allow")) as session:
        for value in (True, False):
            feed = {"x": numbers(2, 128), "c": np.array(value)}
            np.testing.assert_allclose(session.run(None, feed)[0], run_whole(given, feed)[0], rtol=1e-4, atol=1e-4)
        own, taken, _ = [model.planner.prepared.constants.get("t/weight") for model in session._engine.source._models]
    assert np.shares_memory(own, taken)


def test_weights_moved_outside_get_unused_names():
    """Unused inputs, and initializers that are outputs, count as well."""
    size = 128
    weight, other = numbers(size, size), numbers(size, size, seed=1)
    text = f"""{HEAD} g (float[2, {size}] x, bool c, float[1] i) => (float[2, {size}] y, float[{size}, {size}] o) {{
        y = If(c) <
            then_branch = t () => (float[2, {size}] p) {{ p = MatMul(x, w) }},
            else_branch = e () => (float[2, {size}] q) {{ q = Neg(x) }}
        >
    }}"""
    for place in ("input", "output"):
        model = onnx.parser.parse_model(text)
        branch = next(each.g for each in model.graph.node[0].attribute if each.name == "then_branch")
        branch.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
        names = {"input": ("t/w", "o"), "output": ("i", "t/w")}[place]
        model.graph.input[2].name, model.graph.output[1].name = names
        model.graph.initializer.append(onnx.numpy_helper.from_array(other, names[1]))
        feed = {"x": numbers(2, size), "c": np.array(True), names[0]: np.zeros(1, np.float32)}
        with nna.InferenceSession(model, devices="fake_npu", options=nna.Options(fallback="allow")) as session:
            y, o = session.run(None, feed)
        np.testing.assert_allclose(y, feed["x"] @ weight, rtol=1e-4, atol=1e-4)
        np.testing.assert_array_equal(o, other)
