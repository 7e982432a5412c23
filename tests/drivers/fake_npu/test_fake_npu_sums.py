"""Sums over a picture keep their digits."""

from __future__ import annotations

import numpy as np
import pytest

import nnadapter as nna
from tests.models import HEAD, parse


@pytest.mark.parametrize("op", ["ReduceMean", "ReduceSum"])
def test_sums_over_many_positions_keep_their_digits(op):
    attribute = "<axes = [2, 3], keepdims = 1>" if op == "ReduceMean" else "<keepdims = 1>"
    axes = "" if op == "ReduceMean" else ", axes"
    text = f"""{HEAD} g (float[1, 8, 184, 248] x) => (float[1, 8, 1, 1] y) <int64[2] axes = {{2, 3}}> {{
        a = MaxPool<kernel_shape = [1, 1]>(x)
        y = {op}{attribute}(a{axes})
    }}"""
    x = np.random.default_rng(0).random((1, 8, 184, 248), np.float32) + 1
    exact = (np.mean if op == "ReduceMean" else np.sum)(x.astype(np.float64), axis=(2, 3), keepdims=True)
    with nna.InferenceSession(parse(text), devices="fake_npu", options=nna.Options(fallback="forbid")) as session:
        np.testing.assert_allclose(session.run(None, {"x": x})[0], exact, rtol=3e-6)
