"""Functions of positions, which depend only on sizes: rotary angles, logarithms of distances."""

from __future__ import annotations

import numpy as np
import pytest

import nnadapter as nna
from nnadapter.drivers import Reason
from nnadapter.drivers.openvino import ModelAnalysis, judge_dynamic
from tests.drivers.openvino.harness import model_of
from tests.models import numbers, parse, run_whole

TURNED = """<ir_version: 10, opset_import: ["" : 17]> g
(float[b, t, 8] x, float[b, p, 8] past) => (float[b, t, n] y, float[b, n, 8] present)
<int64 first = {0}, int64 one = {1}, int64[1] zeroth = {0}, int64[1] second = {1}, int64[1] four = {4},
 int64[1] eight = {8}, int64[1] last = {-1}, float[1, 4] waves = {1, 0.3, 0.1, 0.03}, float slope = {-0.25},
 float near = {1}> {
    present = Concat <axis = 1> (past, x)
    known = Shape (past)
    p = Gather (known, one)
    shape = Shape (x)
    t = Gather (shape, one)
    n = Add (p, t)
    places = Range (p, n, one)
    every = Range (first, n, one)
    real = Cast <to = 1> (places)
    column = Unsqueeze (real, second)
    ANGLES
    both = Concat <axis = -1> (angles, angles)
    cosine = Cos (both)
    sine = Sin (both)
    low = Slice (x, zeroth, four, last)
    high = Slice (x, four, eight, last)
    negative = Neg (high)
    crossed = Concat <axis = -1> (negative, low)
    plain = Mul (x, cosine)
    turned = Mul (crossed, sine)
    query = Add (plain, turned)
    keys = Transpose <perm = [0, 2, 1]> (present)
    scores = MatMul (query, keys)
    all = Cast <to = 1> (every)
    row = Unsqueeze (all, zeroth)
    apart = Sub (column, row)
    size = Abs (apart)
    wide = Add (size, near)
    logs = Log (wide)
    bias = Mul (logs, slope)
    summed = Add (scores, bias)
    y = Softmax <axis = -1> (summed)
}"""


def check_one_plan(model):
    """Check a growing cache on the device alone: right at every length, with one plan."""
    past = np.empty((1, 0, 8), np.float32)
    with nna.InferenceSession(model, devices="openvino", options=nna.Options(fallback="forbid")) as session:
        for length in (4, 1, 1, 3, 1, 40, 1):
            feed = {"x": numbers(1, length, 8, seed=length), "past": past}
            results = session.run(None, feed)
            for got, expected in zip(results, run_whole(model, feed), strict=True):
                np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
            past = results[1]
        assert session.report().plans.compiled == 1


@pytest.mark.parametrize("angles", ["angles = Mul (column, waves)", "angles = MatMul (column, waves)"])
def test_positions_with_dynamic_shapes(angles):
    check_one_plan(parse(TURNED.replace("ANGLES", angles)))


def test_half_precision_positions_need_static_shapes():
    model = model_of("""(float[n] x) => (float16[n] y) <int64 none = {0}, int64 one = {1}> {
        n = Shape (x) size = Squeeze (n) places = Range (none, size, one)
        half = Cast <to = 10> (places) y = Softsign (half)
    }""")
    verdict = judge_dynamic(model.graph.node[-1], ModelAnalysis.of(model, 1 << 12))
    assert not verdict and verdict.reason is Reason.UNSUPPORTED_DTYPE and "crash the engine" in verdict.detail


MASKED = """<ir_version: 10, opset_import: ["" : 17]> g
(float[b, t, 8] x, float[b, p, 8] past) => (float[b, t, n] y, float[b, n, 8] present)
<int64 first = {0}, int64 one = {1}, int64[1] zeroth = {0}, int64[1] second = {1}, int64[1] all = {-1},
 int64[2] column = {-1, 1}, float low = {-1000}> {
    present = Concat <axis = 1> (past, x)
    known = Shape (past)
    p = Gather (known, one)
    shape = Shape (x)
    t = Gather (shape, one)
    texts = Slice (shape, zeroth, second)
    n = Add (p, t)
    places = Unsqueeze (n, zeroth)
    size = Concat <axis = 0> (texts, places)
    ones = ConstantOfShape <value = int64[1] {1}> (size)
    shown = Cast <to = 9> (ones)
    MASK
    every = Range (first, n, one)
    new = Range (p, n, one)
    queries = Reshape (new, column)
    causal = LessOrEqual (every, queries)
    keys = Gather (flat, every)
    allowed = And (causal, keys)
    turned = Transpose <perm = [0, 2, 1]> (present)
    scores = MatMul (x, turned)
    left = Where (allowed, scores, low)
    y = Softmax <axis = -1> (left)
}"""


@pytest.mark.parametrize(
    "mask",
    [
        "rows = Flatten <axis = 2> (shown) flat = Reshape (rows, all)",
        "row = Flatten <axis = 0> (shown) flat = Reshape (row, all)",
        """nothing = ConstantOfShape <value = int64[1] {0}> (size) hidden = Cast <to = 9> (nothing)
           other = Xor (shown, hidden) flat = Reshape (other, all)""",
    ],
)
def test_masks_computed_from_sizes_have_one_plan(mask):
    check_one_plan(parse(MASKED.replace("MASK", mask)))
