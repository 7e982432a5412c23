"""Dynamic-shape plans around nodes on the CPU: branches, loops and attention."""

from __future__ import annotations

import random

import numpy as np
import onnx.parser
import pytest

import nnadapter as nna
from tests.models import numbers, run_whole

QUIET = nna.Options(fallback="allow")
HEAD = '<ir_version: 10, opset_import: ["" : 23, "com.microsoft" : 1]>'
SIZES = [(1, 1), (1, 2), (2, 3), (1, 7), (2, 2), (3, 5), (3, 1), (2, 1), (4, 8)]
"""Batch and length."""
CHOSEN = """g (float[b, l, 8] x) => (float[u, v, w] y)
<float none = {0}, int64[1] one = {1}, int64[1] last = {100}, int64[3] parted = {0, -1, 4}> {
    r = Relu (x)
    total = ReduceSum <keepdims = 0> (x)
    is_more = Greater (total, none)
    chosen = If (is_more) <
        then_branch = t () => (float[STATED] first) { FIRST },
        else_branch = e () => (float[STATED] second) { SECOND }
    >
    y = Sigmoid (chosen)
}"""
BRANCHES = {
    "Attention <q_num_heads = 2, kv_num_heads = 2> (r, r, r)": "Sin (r)",
    "Transpose <perm = [1, 0, 2]> (r)": "Transpose <perm = [1, 0, 2]> (x)",
    "ReduceMax (r, one)": "ReduceMin (x, one)",
    "If (is_more) < then_branch = i () => (float[STATED] a) { a = Cos (r) }, "
    "else_branch = j () => (float[STATED] c) { c = Neg (x) } >": "Sin (r)",
}
UNLIKE = {"Transpose <perm = [1, 0, 2]> (r)": "Sin (r)", "ReduceMax (r, one)": "Sin (r)"}
"""Equal to the other branch's sizes only at some input sizes."""


def chosen(first, second, stated):
    text = CHOSEN.replace("FIRST", f"first = {first}").replace("SECOND", f"second = {second}")
    return onnx.parser.parse_model(f"{HEAD} {text.replace('STATED', stated)}")


def plans_of(model, feeds, device="fake_npu"):
    """Run the feeds, compare the results with ONNX Runtime, and return the report's plans."""
    with nna.InferenceSession(model, devices=device, options=QUIET) as session:
        for feed in feeds:
            for got, expected in zip(session.run(None, feed), run_whole(model, feed), strict=True):
                assert got.shape == expected.shape
                np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
            assert not session.provenance.fell_back
        return session.report().plans


def in_orders(seed=0):
    shuffled = random.Random(seed).sample(SIZES, len(SIZES))
    return SIZES, shuffled


@pytest.mark.slow
@pytest.mark.parametrize("stated", ["b, l, 8", "c, d, f"])
@pytest.mark.parametrize(("first", "second"), BRANCHES.items())
def test_branches_keep_common_dynamic_sizes(first, second, stated):
    """Stated sizes and other names of the same size do not matter."""
    model = chosen(first, second, stated)
    for sizes in in_orders():
        feeds = [{"x": numbers(*each, 8, seed=seed) - seed % 2 / 2} for seed, each in enumerate(sizes)]
        assert plans_of(model, feeds).in_cache <= 2


@pytest.mark.parametrize(("first", "second"), UNLIKE.items())
def test_branches_of_different_sizes_are_correct(first, second):
    model = chosen(first, second, "b, l, 8")
    for sizes in (SIZES, [(2, 2), (3, 3), (1, 1), *SIZES]):
        plans_of(model, [{"x": numbers(*each, 8, seed=seed) - seed % 2 / 2} for seed, each in enumerate(sizes)])


SCANNED = f"""{HEAD} g (float[l, b, 8] x, float[b, 8] s) => (float[b, 8] state, float[l, b, 8] y) {{
    r = Relu (x)
    last, made = Scan <
        num_scan_inputs = 1, body = each (float[b, 8] h, float[b, 8] i) => (float[b, 8] k, float[b, 8] o) {{
        t = Add (h, i)
        k = Tanh (t)
        o = Mul (k, i)
    }}> (s, r)
    state = Neg (last)
    y = Sigmoid (made)
}}"""


@pytest.mark.parametrize("device", ["fake_npu", "openvino"])
def test_scan_outputs_keep_dynamic_input_length(device):
    model = onnx.parser.parse_model(SCANNED)
    for sizes in in_orders(1):
        feeds = [{"x": numbers(length, batch, 8), "s": numbers(batch, 8, seed=1)} for batch, length in sizes]
        assert plans_of(model, feeds, device).in_cache <= 2


ATTENDED = f"""{HEAD}
g (float[b, l, WIDTH] q, INPUTS float[b, 1, p, 16] pk, float[b, 1, p, 16] pv, int32[b] n, int32[1] t)
=> (float[b, l, 32] y, float[b, 1, m, 16] nk, float[b, 1, o, 16] nv) {{
    r = Relu (q)
    a, nk, nv = com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 1> (r, KEYS, pk, pv, n, t)
    y = Tanh (a)
}}"""
PACKED = {"WIDTH": "64", "INPUTS": "", "KEYS": ","}
APART = {"WIDTH": "32", "INPUTS": "float[b, l, 16] k, float[b, l, 16] v,", "KEYS": "k, v"}
STEPS = [(1, 3, 0), (1, 1, 3), (1, 1, 4), (1, 1, 5), (2, 1, 5), (2, 1, 6), (3, 4, 0), (1, 1, 1), (2, 1, 1)]
"""Batch, new keys, and cached keys."""


@pytest.mark.slow
@pytest.mark.parametrize("device", ["fake_npu", "openvino"])
@pytest.mark.parametrize("seed", [None, *(pytest.param(seed, marks=pytest.mark.sweep) for seed in (0, 1))])
@pytest.mark.parametrize("form", [APART, PACKED], ids=["apart", "packed"])
def test_total_length_input_does_not_need_a_plan_per_token(device, seed, form):
    steps = STEPS if seed is None else random.Random(seed).sample(STEPS, len(STEPS))
    text = ATTENDED
    for name, said in form.items():
        text = text.replace(name, said)
    model = onnx.parser.parse_model(text)
    names = {value.name for value in model.graph.input}
    feeds = [
        {
            "q": numbers(batch, new, int(form["WIDTH"])),
            **{name: numbers(batch, new, 16, seed=at) for at, name in enumerate("kv", 1) if name in names},
            **{name: numbers(batch, 1, past, 16, seed=at) for at, name in enumerate(("pk", "pv"), 3)},
            "n": np.full(batch, new + past - 1, np.int32),
            "t": np.array([new + past], np.int32),
        }
        for batch, new, past in steps
    ]
    assert plans_of(model, feeds, device).in_cache <= 2
