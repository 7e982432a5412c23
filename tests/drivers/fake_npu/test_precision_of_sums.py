from __future__ import annotations

import numpy as np
import pytest

import nnadapter as nna
from tests.models import HEAD, parse


@pytest.mark.parametrize("op", ["ReduceMean", "ReduceSum"])
def test_sums_over_many_positions_keep_precision(op):
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


@pytest.mark.parametrize("size", [(640, 640), (409600,)])
def test_instance_normalization_of_an_image_keeps_precision(size):
    positions = ", ".join(map(str, size))
    text = f"""{HEAD} g (float[1, 3, {positions}] x) => (float[1, 3, {positions}] y) <float[3] one = {{1, 1, 1}}> {{
        y = InstanceNormalization(x, one, one)
    }}"""
    x = np.random.default_rng(0).standard_normal((1, 3, *size)).astype(np.float32) + 5
    wide, axes = x.astype(np.float64), tuple(range(2, x.ndim))
    deviation = np.sqrt(wide.var(axis=axes, keepdims=True) + 1e-5)
    exact = (wide - wide.mean(axis=axes, keepdims=True)) / deviation + 1
    with nna.InferenceSession(parse(text), devices="fake_npu", options=nna.Options(fallback="forbid")) as session:
        np.testing.assert_allclose(session.run(None, {"x": x})[0], exact, rtol=0, atol=2e-5)
