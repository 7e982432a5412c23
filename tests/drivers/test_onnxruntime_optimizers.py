"""Optimizers that are wrong on a part of a model but right on the entire model."""

from __future__ import annotations

import numpy as np
import pytest

import nnadapter as nna
from nnadapter.drivers.onnxruntime import CpuContext, wrong_fusions, wrong_optimizers
from tests.models import HEAD, numbers, parse, run_whole

EMPTY = f"""{HEAD} g (float[n, 4] x, float[m, 4] w) => (float[a, b] y, float[m, 4] z) {{
    z = Relu (w)
    one = ReduceMean <axes = [0]> (w)
    shape = Shape (x)
    none = Expand (one, shape)
    y = Neg (none)
}}"""
LOOP = f"""{HEAD} g (float[n, 4] x, float[m, 4] w) => (float[a, b] y, float[m, 4] z)
<float fone = {{1}}, int64 s = {{0}}> {{
    z = Relu (w)
    shape = Shape (x)
    one = ReduceMean <axes = [0]> (w)
    none = Expand (one, shape)
    count = Gather (shape, s)
    y = Loop (count, , none) <body = b (int64 i, bool k, float[p, q] v) => (bool l, float[r, t] u)
        {{ l = Identity (k) u = Add (v, fone) }}>
}}"""


@pytest.mark.slow
@pytest.mark.parametrize("text", [EMPTY, LOOP])
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_row_expanded_to_an_empty_size(text, rows):
    model, feed = parse(text), {"x": numbers(rows, 4), "w": numbers(2, 4)}
    devices = [("fake_npu", {"switched_off": ("Expand", "ReduceMean", "Neg")})]
    with nna.InferenceSession(model, devices=devices, options=nna.Options(fallback="allow")) as session:
        for got, expected in zip(session.run(None, feed), run_whole(model, feed), strict=True):
            assert got.shape == expected.shape
            np.testing.assert_allclose(got, expected, rtol=1e-6)
        assert len(session.report().segments) > 1


@pytest.mark.parametrize(("target", "without"), [("0,4", ("ExpandElimination",)), ("1,4", ()), ("3,4", ())])
def test_only_empty_sizes_disable_optimizers(target, without):
    text = f"{HEAD} g (float[1, 4] x) => (float[a, b] y) <int64[2] s = {{{target}}}> {{ y = Expand (x, s) }}"
    assert wrong_fusions(parse(text).SerializeToString()) == without


NESTED = f"""{HEAD} g (float[0, 3] x, bool c) => (float[0, 3] y) <bool no = {{0}}> {{
    a = Sub (x, x)
    b, d = If (no) <
        then_branch = t () => (float[n, 3] e, float[n, 3] f) {{ e = Mul (x, a) f = Identity (a) }},
        else_branch = u () => (float[n, 3] h, float[n, 3] i) {{
            shape = Shape (x)
            at = Constant <value = int64 {{1}}> ()
            size = Gather (shape, at)
            two = Constant <value = int64 {{2}}> ()
            wide = Greater (size, two)
            j = If (wide) <
                then_branch = v () => (float[n, 3] k) {{
                    unused = Relu (a)
                    k = If (c) <then_branch = p () => (float[n, 3] l) {{ l = Exp (a) }},
                                else_branch = q () => (float[n, 3] m) {{ m = Relu (a) }}>
                }},
                else_branch = w () => (float[n, 3] o) {{ o = Identity (a) }}>
            h = Add (a, a)
            i = Identity (x)
        }}>
    y = Tanh (a)
}}"""


def test_nested_constant_branch_does_not_crash():
    """ONNX Runtime 1.32 crashes the process with all optimizers enabled."""
    model = parse(NESTED)
    assert wrong_optimizers(model) == ("ConstantFolding",)
    (result,) = CpuContext().compile(model).create_execution().compute([np.zeros((0, 3), np.float32), np.array(True)])
    assert result.shape == (0, 3)
