"""Dynamic-shape plans next to nodes with unpredictable output sizes."""

from __future__ import annotations

import numpy as np
import pytest

import nnadapter as nna
from tests.models import numbers, parse, run_whole

HEAD = '<ir_version: 10, opset_import: ["" : 18]>'
WEIGHTS = ", ".join(map(str, numbers(16, seed=9)))
LOOP = """h = Loop (count, go, a) <body = l (int64 i, bool c, float[p, 4] s) => (bool d, float[p, 4] t) {
    d = Identity (c) u = MatMul (s, w) t = Tanh (u) }>"""
CHOICE = """h = If (first) <then_branch = t () => (float[p, 4] s) { s = Concat <axis = 0> (a, a) },
    else_branch = e () => (float[q, 4] r) { r = Neg (a) }>"""
AMONG = {
    "compress": "sums = ReduceSum <keepdims = 0> (a, last) above = Greater (sums, none) "
    "h = Compress <axis = 0> (a, above)",
    "topk": "h, at = TopK <axis = 0> (a, k)",
    "loop": LOOP,
    "if": CHOICE,
    "sequence": "parts = SplitToSequence <axis = 0> (a) h = ConcatFromSequence <axis = 0> (parts)",
    "nonzero": "found = NonZero (a) rows = Gather <axis = 0> (found, zero) h = Gather <axis = 0> (a, rows)",
}


def model_of(among):
    text = f"""{HEAD} g (float[n, 4] x, int64[1] k, bool first) => (float[m, 4] y, float[n, 4] z)
        <float[4, 4] w = {{{WEIGHTS}}},
        int64[1] last = {{-1}}, float none = {{0}}, int64 count = {{2}}, bool go = {{1}}, int64 zero = {{0}}> {{
        b = MatMul (x, w) a = Relu (b) {among} g = MatMul (h, w) y = Sigmoid (g) z = Exp (a) }}"""
    return parse(text)


@pytest.mark.parametrize("devices", ["fake_npu", ["openvino", "fake_npu"]], ids=str)
@pytest.mark.parametrize("among", AMONG.values(), ids=AMONG)
def test_a_few_plans_serve_all_shapes(among, devices):
    model = model_of(among)
    with nna.InferenceSession(model, devices=devices, options=nna.Options(fallback="allow")) as session:
        for rows in (3, 5, 1, 8, 13, 2, 6, 4):
            feed = {"x": numbers(rows, 4, seed=rows), "k": np.array([rows // 2]), "first": np.array(rows % 2 == 0)}
            for got, expected in zip(session.run(None, feed), run_whole(model, feed), strict=True):
                np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
            assert not session.provenance.fell_back
        report = session.report()
    assert report.plans.compiled <= 4 and "for all input shapes" in report.plans.served_shapes_text
    assert {"MatMul", "Relu", "Exp"} <= {node.op_type for node in report.nodes if node.device != "cpu"}


def test_unpredictable_output_sizes_are_not_planned_for():
    """Conversion cannot predict the size of RandomUniformLike's output, so `y` must not depend on its current size."""
    text = f"""{HEAD} g (float[n, 4] x) => (float[n, 4] y) {{
        r = RandomUniformLike <low = 2.0, high = 2.0> (x) a = Add (r, x) y = Relu (a) }}"""
    model = parse(text)
    with nna.InferenceSession(model, devices="fake_npu", options=nna.Options(fallback="allow")) as session:
        for rows in (3, 5, 1, 7):
            x = numbers(rows, 4, seed=rows)
            np.testing.assert_allclose(session.run(None, {"x": x})[0], np.maximum(x + 2, 0), rtol=1e-5)
