"""What ONNX Runtime's optimizers would get wrong in parts of a model, and not in the model as a whole."""

from __future__ import annotations

import numpy as np
import pytest

import nnadapter as nna
from nnadapter.drivers.onnxruntime.optimizers import wrong_optimizers
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


@pytest.mark.parametrize("text", [EMPTY, LOOP])
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_one_row_expanded_to_none_has_no_elements(text, rows):
    model, feed = parse(text), {"x": numbers(rows, 4), "w": numbers(2, 4)}
    devices = [("fake_npu", {"switched_off": ("Expand", "ReduceMean", "Neg")})]
    with nna.InferenceSession(model, devices=devices, options=nna.Options(fallback="allow")) as session:
        for got, expected in zip(session.run(None, feed), run_whole(model, feed), strict=True):
            assert got.shape == expected.shape
            np.testing.assert_allclose(got, expected, rtol=1e-6)
        assert len(session.report().segments) > 1


@pytest.mark.parametrize(("target", "without"), [("0,4", ("ExpandElimination",)), ("1,4", ()), ("3,4", ())])
def test_only_where_a_size_is_none(target, without):
    text = f"{HEAD} g (float[1, 4] x) => (float[a, b] y) <int64[2] s = {{{target}}}> {{ y = Expand (x, s) }}"
    assert wrong_optimizers(parse(text)) == without
