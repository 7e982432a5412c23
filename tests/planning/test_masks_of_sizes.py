"""Masks as PyTorch's older exporter writes them: expanded to a shape in which -1 would mean "unchanged".

The model also divides a size by Div and repeats the cache for every head. Inference of the entire model stops there.
"""

from __future__ import annotations

import numpy as np
import pytest

import nnadapter as nna
from tests.models import numbers, parse, run_whole

MASKED = """<ir_version: 10, opset_import: ["" : 17]> g
(float[b, t, 8] x, float[b, p, 8] past) => (float[b, t, n] y, float[b, n, 8] present)
<int64 first = {0}, int64 one = {1}, int64[1] none = {0}, int64[1] left = {-1}, int64[2] front = {0, 1},
 int64[2] around = {0, 2}, int64 third = {2}, int64[1] end = {1000}, int64[1] pair = {2},
 int64[1] eight = {8}, int64[1] unit = {1}, float zero = {0}, float low = {-1e9}> {
    known = Shape (past)
    p = Gather (known, one)
    shape = Shape (x)
    b = Gather (shape, first)
    t = Gather (shape, one)
    n = Add (p, t)
    count = Cast <to = 7> (n)
    every = Range (first, count, one)
    own = Range (first, t, one)
    places = Add (own, p)
    row = Unsqueeze (every, front)
    column = Unsqueeze (places, around)
    seen = LessOrEqual (row, column)
    b1 = Unsqueeze (b, none)
    t1 = Unsqueeze (t, none)
    n1 = Unsqueeze (n, none)
    sizes = Concat <axis = 0> (b1, t1, n1)
    flat = Reshape (sizes, left)
    many = Shape (flat)
    ones = ConstantOfShape <value = int64[1] {1}> (many)
    minus = Mul (ones, left)
    asked = Equal (flat, minus)
    wanted = Where (asked, ones, flat)
    spread = Expand (seen, wanted)
    mask = Where (spread, zero, low)
    width = Gather (shape, third)
    halved = Div (width, third)
    half = Unsqueeze (halved, none)
    low_half = Slice (x, none, half, left)
    high_half = Slice (x, half, end, left)
    negative = Neg (high_half)
    query = Concat <axis = -1> (negative, low_half)
    present = Concat <axis = 1> (past, query)
    grown = Shape (present)
    kn = Gather (grown, one)
    kn1 = Unsqueeze (kn, none)
    kb = Gather (grown, first)
    kb1 = Unsqueeze (kb, none)
    shared = Concat <axis = 0> (kb1, pair, kn1, eight)
    flat2 = Reshape (shared, left)
    many2 = Shape (flat2)
    ones2 = ConstantOfShape <value = int64[1] {1}> (many2)
    minus2 = Mul (ones2, left)
    asked2 = Equal (flat2, minus2)
    wanted2 = Where (asked2, ones2, flat2)
    single = Unsqueeze (present, unit)
    twice = Expand (single, wanted2)
    joined2 = Concat <axis = 0> (kb1, left, eight)
    rows = Reshape (twice, joined2)
    parts = Concat <axis = 0> (kb1, pair, left, eight)
    apart = Reshape (rows, parts)
    once = ReduceMean <axes = [1], keepdims = 0> (apart)
    keys = Transpose <perm = [0, 2, 1]> (once)
    scores = MatMul (query, keys)
    masked = Add (scores, mask)
    y = Softmax <axis = -1> (masked)
}"""


@pytest.mark.parametrize("device", ["fake_npu", "null"])
def test_expanded_mask_is_correct_at_each_length(device):
    model, past = parse(MASKED), np.empty((1, 0, 8), np.float32)
    with nna.InferenceSession(model, devices=device, options=nna.Options(fallback="allow")) as session:
        for length in (4, 1, 1, 1, 3, 1, 2, 1):
            feed = {"x": numbers(1, length, 8, seed=length), "past": past}
            expected = run_whole(model, feed)
            results = session.run(None, feed)
            if device != "null":
                for got, right in zip(results, expected, strict=True):
                    np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-5)
            past = expected[1]
        report = session.report()
    assert report.plans.compiled == 3, report.plans.served_shapes_text
    assert {segment.device for segment in report.segments} == {device}
