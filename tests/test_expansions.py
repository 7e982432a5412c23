"""Function ops that no device takes whole, by their bodies."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest

import nnadapter as nna
from tests.models import numbers, run_whole

HEAD = '<ir_version: 10, opset_import: ["" : 21]>'
SIGNATURE = "g (float[2, 4] x, float[4] s) => (float[2, 4] y)"
FUNCTIONS = {
    "y = LayerNormalization <epsilon = 0.1> (x, s)": (
        "LAYER_NORMALIZATION",
        "REDUCE_MEAN RESHAPE SUB MUL ADD DIV SQRT RECIPROCAL ASSIGN CAST POW",
    ),
    "y = Gelu <approximate = \"none\"> (x)": ("GELU", "MUL SUM ERF DIV"),
    "y = HardSwish (x)": ("HARD_SWISH", "MUL HARD_SIGMOID"),
    "y = Softplus (x)": ("SOFTPLUS", "EXP ADD LOG"),
    "a = PRelu (x, s) y = Neg (a)": ("PRELU", "LESS MUL WHERE NEG"),
}  # fmt: skip


def model_of(body):
    return onnx.parser.parse_model(f"{HEAD}\n{SIGNATURE} {{ {body} }}")


def session(body, operations, **options):
    return nna.InferenceSession(model_of(body), devices=("trial", {"only": operations.split()}), **options)


@pytest.mark.parametrize("body", FUNCTIONS)
def test_a_body_that_is_taken_whole_runs_on_the_device(body):
    _, parts = FUNCTIONS[body]
    feed = {"x": numbers(2, 4), "s": numbers(4)}
    with session(body, parts, options=nna.Options(fallback="forbid")) as opened:
        np.testing.assert_allclose(opened.run(None, feed)[0], run_whole(model_of(body), feed)[0], rtol=1e-4, atol=1e-6)
        report = opened.report()
    assert report.coverage.nodes == 1 and len(report.segments) == 1
    assert len(report.nodes) > 1


@pytest.mark.parametrize("body", FUNCTIONS)
def test_a_body_of_which_a_part_is_refused_stays_whole(body):
    _, parts = FUNCTIONS[body]
    kept = [part for part in parts.split() if part != "MUL" and part != "LOG"]
    with session(body, " ".join(kept), options=nna.Options(fallback="allow")) as opened:
        names = {node.op_type for node in opened.report().nodes}
    assert names == {part.split(" = ")[1].split()[0] for part in body.replace("(x, s) y", "(x, s)\ny").split("\n")}


def test_what_is_taken_whole_is_not_expanded():
    body = next(iter(FUNCTIONS))
    with session(body, FUNCTIONS[body][0]) as opened:
        assert [node.op_type for node in opened.report().nodes] == ["LayerNormalization"]


def test_what_a_person_switched_off_is_not_expanded():
    options = ("fake_npu", {"switched_off": ["Softplus"]})
    report = nna.partition_report(model_of("y = Softplus (x)"), devices=options, options=nna.Options(fallback="allow"))
    assert [node.op_type for node in report.nodes] == ["Softplus"]
    assert report.nodes[0].refusals[0].reason == "switched_off"


def test_one_is_expanded_and_another_is_not():
    body = "a = Softplus (x) y = HardSwish (a)"
    with session(body, FUNCTIONS["y = Softplus (x)"][1], options=nna.Options(fallback="allow")) as opened:
        nodes = [(node.op_type, node.device) for node in opened.report().nodes]
        feed = {"x": numbers(2, 4), "s": numbers(4)}
        np.testing.assert_allclose(opened.run(None, feed)[0], run_whole(model_of(body), feed)[0], rtol=1e-5)
    assert nodes[-1] == ("HardSwish", "cpu")
    assert {device for _, device in nodes[:-1]} == {"trial", ""}, "and one constant folded"


def test_other_shapes_are_expanded_likewise():
    text = f"{HEAD} g (float[n, 4] x) => (float[n, 4] y) {{ y = Softplus (x) }}"
    with nna.InferenceSession(
        onnx.parser.parse_model(text), devices=("trial", {"only": ["EXP", "ADD", "LOG"]})
    ) as opened:
        for rows in (1, 5, 3, 0):
            feed = {"x": numbers(rows, 4)}
            np.testing.assert_allclose(opened.run(None, feed)[0], np.log1p(np.exp(feed["x"])), rtol=1e-5)
            assert opened.report().coverage.nodes == 1
