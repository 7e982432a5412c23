"""Attention that starts with one key: the engine was wrong from 16 keys on."""

from __future__ import annotations

import numpy as np
import pytest

from nnadapter import InferenceSession
from tests.drivers.openvino.harness import computed, context, model_of, read_only
from tests.models import numbers, parse, run_whole

BETWEEN = {
    "nothing": "z = Identity(u)",
    "scaled": "z = Mul(u, scale)",
    "twice": "a = Mul(u, scale) z = Div(a, scale)",
    "bounded": "a = Tanh(u) z = Mul(a, scale)",
    "negative": "z = Neg(u)",
    "nothing added": "z = Add(u, nothing)",
    "something added": "z = Add(u, scale)",
    "a mask": "z = Add(u, mask)",
    "of one type": "a = Cast<to = 11>(u) z = Cast<to = 1>(a)",
}


def attention(between, rows="b, h"):
    return f"""(float[{rows}, t, 32] q, float[{rows}, n, 32] k, float[{rows}, n, 32] v, float[1, n] mask)
    => (float[{rows}, t, 32] y) <float scale = {{0.17}}, float nothing = {{0}}> {{
        turned = Transpose<perm = [{"0, 1, 3, 2" if "," in rows else "0, 2, 1"}]>(k)
        u = MatMul(q, turned)
        {BETWEEN[between]}
        w = Softmax<axis = -1>(z)
        y = MatMul(w, v)
    }}"""


@pytest.mark.parametrize("first", [1, 2])
@pytest.mark.parametrize("between", BETWEEN)
def test_attention_with_keys_growing_from_one(between, first):
    model = model_of(attention(between))
    execution = context().compile(model).create_execution()
    for keys, queries in ((first, 1), (5, 1), (16, 1), (17, 2), (3, 1), (40, 7)):
        feed = {
            name: numbers(1, 4, length, 32, seed=length) for name, length in (("q", queries), ("k", keys), ("v", keys))
        }
        feed["mask"] = numbers(1, keys, seed=3)
        (got,) = execution.compute([*map(read_only, feed.values())])
        np.testing.assert_allclose(got, run_whole(model, feed)[0], rtol=1e-3, atol=1e-4)


def test_attention_with_heads_merged_into_rows():
    model = model_of(attention("nothing", "b"))
    execution = context().compile(model).create_execution()
    for keys in (1, 16, 33):
        feed = {"q": numbers(3, 1, 32), "k": numbers(3, keys, 32, seed=1), "v": numbers(3, keys, 32, seed=2)}
        feed["mask"] = numbers(1, keys)
        (got,) = execution.compute([*map(read_only, feed.values())])
        np.testing.assert_allclose(got, run_whole(model, feed)[0], rtol=1e-3, atol=1e-4)


def test_decoder_that_starts_with_one_token():
    model = parse("""<ir_version: 10, opset_import: ["" : 17]> g
    (float[1, 4, 1, 32] x, float[1, 4, p, 32] past) => (float[1, 4, 1, 32] y, float[1, 4, n, 32] present) {
        present = Concat<axis = 2>(past, x)
        turned = Transpose<perm = [0, 1, 3, 2]>(present)
        u = MatMul(x, turned)
        w = Softmax<axis = -1>(u)
        y = MatMul(w, present)
    }""")
    past = np.empty((1, 4, 0, 32), np.float32)
    with InferenceSession(model, devices="openvino") as session:
        for word in range(20):
            feed = {"x": numbers(1, 4, 1, 32, seed=word), "past": past}
            expected, past = run_whole(model, feed)
            np.testing.assert_allclose(session.run(["y"], feed)[0], expected, rtol=1e-3, atol=1e-4)
        assert session.report().plans.compiled == 1


def test_expanded_softmax():
    model = model_of("""(float[1, 5, 32] q, float[1, n, 32] k) => (float[1, 5, 32] y) <int64[1] last = {-1}> {
        turned = Transpose<perm = [0, 2, 1]>(k)
        u = MatMul(q, turned)
        e = Exp(u)
        s = ReduceSum(e, last)
        w = Div(e, s)
        y = MatMul(w, k)
    }""")
    execution = context().compile(model).create_execution()
    for keys in (1, 16, 33):
        feed = {"q": numbers(1, 5, 32), "k": numbers(1, keys, 32, seed=1)}
        (got,) = execution.compute([*map(read_only, feed.values())])
        np.testing.assert_allclose(got, run_whole(model, feed)[0], rtol=1e-3, atol=1e-4)


def test_softmax_without_product_is_unchanged():
    model = model_of("(float[n, 4] x) => (float[n, 4] y) { y = Softmax<axis = 0>(x) }")
    x = numbers(20, 4)
    (got,) = computed(context(), model, [x])
    np.testing.assert_allclose(got, run_whole(model, {"x": x})[0], rtol=1e-5)
