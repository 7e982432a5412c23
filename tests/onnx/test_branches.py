"""`If` with a condition that is known gives way to its branch."""

from __future__ import annotations

import numpy as np
import pytest

import nnadapter as nna
from nnadapter.offering.preparing import prepare
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
    import onnx

    return onnx.parser.parse_model(TEXT.replace("CONDITION", str(condition)))


@pytest.mark.parametrize("condition", [0, 1])
def test_the_branch_runs_in_its_place(condition):
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


def test_what_is_captured_inside_is_renamed():
    text = f"""{HEAD} g (float[2] x, bool d) => (float[2] y) {{
        c = Constant<value = bool {{1}}>()
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
    feed = {"x": numbers(2), "d": np.array(True)}
    with nna.InferenceSession(parse(text), devices="fake_npu", options=nna.Options(fallback="allow")) as session:
        np.testing.assert_allclose(session.run(None, feed)[0], run_whole(parse(text), feed)[0], rtol=1e-6)
        inner = next(node for node in session.report().nodes if node.op_type == "If")
    assert inner.device == "cpu" and inner.name == "If_1/If_1"


def test_a_condition_that_is_fed_stays():
    text = f"""{HEAD} g (float[2] x, bool c) => (float[2] y) {{
        y = If(c) <
            then_branch = t () => (float[2] p) {{ p = Neg(x) }},
            else_branch = e () => (float[2] q) {{ q = Identity(x) }}
        >
    }}"""
    given = parse(text)
    assert prepare(given).model is given
