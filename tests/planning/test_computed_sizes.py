"""Sizes and positions that a model computes, such as upsampling by indices as exported by PyTorch."""

from __future__ import annotations

import numpy as np
import pytest

import nnadapter as nna
from tests.models import numbers, parse, run_whole

DEVICES = [
    "fake_npu",
    "openvino",
]
ENLARGED = """<ir_version: 10, opset_import: ["" : 18]> g (float[h, w] x) => (float[k, w] y)
<int64 none = {0}, int64 one = {1}, int64[1] back = {1}, int64[1] zero = {0}, float half = {0.5}, float ratio = {0.5},
 float low = {0}, float unit = {1}, int64 twice = {2}, int64[1] left = {-1}> {
    shape = Shape (x)
    h = Gather (shape, none)
    w = Gather (shape, one)
    larger = Mul (h, twice)
    last = Sub (h, one)
    places = Range (none, larger, one)
    real = Cast <to = 1> (places)
    middle = Add (real, half)
    scaled = Mul (middle, ratio)
    moved = Sub (scaled, half)
    kept = Clip (moved, low)
    above = Cast <to = 7> (kept)
    next = Add (above, one)
    below = Clip (next, , last)
    start = Cast <to = 1> (above)
    share = Sub (kept, start)
    columns = Range (none, w, one)
    upper = Unsqueeze (above, back)
    lower = Unsqueeze (below, back)
    both = Max (upper, columns)
    form = Shape (both)
    high = Expand (upper, form)
    deep = Expand (lower, form)
    across = Expand (columns, form)
    high1 = Unsqueeze (high, left)
    deep1 = Unsqueeze (deep, left)
    across1 = Unsqueeze (across, left)
    first = Concat <axis = -1> (high1, across1)
    second = Concat <axis = -1> (deep1, across1)
    top = GatherND (x, first)
    bottom = GatherND (x, second)
    step = Sub (bottom, top)
    weight = Unsqueeze (share, back)
    part = Mul (step, weight)
    y = Add (top, part)
}"""
_WHOLE = "places = Range (none, larger, one)\n    real = Cast <to = 1> (places)"
_HEAD = """<ir_version: 10, opset_import: ["" : 18]> g (float[n, w] x) => (float[a, b] y)
<int64 none = {0}, int64 one = {1}, int64 two = {2}, int64 three = {3}, int64[1] zero = {0}, int64[1] back = {1},
 int64[1] left = {-1}> {
    shape = Shape (x)
    n = Gather (shape, none)
    w = Gather (shape, one)
"""
_ADDED = """
    real = Cast <to = 1> (made)
    y = Add (x, real)
}"""
_SPREAD = """
    tall = Unsqueeze (size, zero)
    wide = Unsqueeze (w, zero)
    form = Concat <axis = 0> (tall, wide)
    row = ReduceMean (x, zero)
    y = Expand (row, form)
}"""
POSITIONS = {
    "Abs": "made = Abs (before)",
    "Clip": "made = Clip (before, none, two)",
    "Clip by a size": "made = Clip (before, , n)",
    "CumSum": "made = CumSum (before, none)",
    "GatherElements": "turned = Sub (w, one) others = Sub (turned, places) made = GatherElements (before, others)",
    "GatherND": "column = Unsqueeze (places, back) made = GatherND (before, column)",
    "Mod": "made = Mod (before, three)",
    "Pow": "made = Pow (before, two)",
    "ReduceMax": "made = ReduceMax <keepdims = 0> (before)",
    "ReduceMin": "made = ReduceMin <keepdims = 0> (before)",
    "ReduceSum": "made = ReduceSum <keepdims = 0> (before)",
    "ScatterND": "column = Unsqueeze (places, back) made = ScatterND (before, column, places)",
    "Sign": "made = Sign (before)",
    "Split": "made, rest = Split <num_outputs = 2> (shape)",
}
SIZED = {
    "Clip": "size = Clip (n, two, three)",
    "Mod": "many = Mod (n, three) size = Add (many, one)",
    "Neg": "less = Neg (n) size = Abs (less)",
    "Pow": "size = Pow (n, two)",
    "ReduceSum": "size = ReduceSum <keepdims = 0> (shape)",
    "ReduceMax": "size = ReduceMax <keepdims = 0> (shape)",
    "ReduceMin": "size = ReduceMin <keepdims = 0> (shape)",
    "Expand": "some = Expand (n, back) flat = Reshape (some, left) size = Squeeze (flat)",
    "Sqrt": "square = Mul (n, n) real1 = Cast <to = 1> (square) root = Sqrt (real1) size = Cast <to = 7> (root)",
    "Round": "real1 = Cast <to = 1> (n) size1 = Round (real1) size = Cast <to = 7> (size1)",
}
_SHAPES = ((3, 5), (2, 7), (5, 4), (7, 9), (4, 4), (6, 3))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("places", ["whole", "real"])
def test_upsampling_by_indices_needs_one_plan(places, device):
    reals = "limit = Cast <to = 1> (larger)\n    real = Range (low, limit, unit)"
    text = ENLARGED if places == "whole" else ENLARGED.replace(_WHOLE, reals)
    plans = plans_at(parse(text), device)
    assert plans.compiled == 2 and plans.served_shapes_text.startswith("one plan for all"), plans.served_shapes_text


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", POSITIONS)
def test_positions_are_computed_at_each_size(name, device):
    reckoned = f"places = Range (none, w, one) before = Sub (places, three) {POSITIONS[name]}"
    plans = plans_at(parse(_HEAD + reckoned + _ADDED), device)
    assert plans.compiled == 2 and plans.served_shapes_text.startswith("one plan for all"), plans.served_shapes_text


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", SIZED)
def test_sizes_are_computed_at_each_size(name, device):
    plans = plans_at(parse(_HEAD + SIZED[name] + _SPREAD), device, alone=device == "fake_npu")
    assert device != "fake_npu" or (
        plans.compiled <= 3 and "have plans of their own" not in plans.served_shapes_text
    ), plans.served_shapes_text


@pytest.mark.parametrize("reckoned", ["size = Max (n, two)", "size = Clip (n, two, three)"])
def test_sizes_of_measured_values_are_computed(reckoned):
    text = _HEAD.replace(
        "n = Gather (shape, none)", "kept = Relu (x) measured = Shape (kept) n = Gather (measured, none)"
    )
    plans = plans_at(parse(text + reckoned + _SPREAD), "fake_npu")
    assert plans.compiled <= 3 and "have plans of their own" not in plans.served_shapes_text, plans.served_shapes_text


@pytest.mark.parametrize("bound", ["Max (n, two)", "Min (n, three)", "Clip (n, two, three)"])
def test_bounded_sizes_need_one_plan_on_openvino(bound):
    pytest.importorskip("openvino")
    plans = plans_at(parse(_HEAD + f"size = {bound}" + _SPREAD), "openvino")
    assert plans.compiled <= 3 and "have plans of their own" not in plans.served_shapes_text, plans.served_shapes_text


@pytest.mark.parametrize("bound", ["Clip (less, low, none)", "Max (less, low)", "Min (less, none)"])
@pytest.mark.parametrize("device", DEVICES)
def test_temporarily_negative_sizes_are_bounded(bound, device):
    text = _HEAD.replace("int64 two = {2}", "int64 two = {2}, int64 low = {-10000}")
    reckoned = f"less = Neg (w) bounded = {bound} more = Neg (bounded) size = Max (more, one)"
    plans_at(parse(text + reckoned + _SPREAD), device, alone=False)


@pytest.mark.parametrize("device", DEVICES)
def test_reductions_along_computed_axes_are_correct(device):
    reckoned = """nothing = Sub (n, n) along = Unsqueeze (nothing, zero) empty = Slice (shape, zero, zero)
    made = ReduceSum <keepdims = 0> (empty, along)"""
    plans_at(parse(_HEAD + reckoned + _ADDED), device, alone=False)


def plans_at(model, device, *, alone=True):
    """Run the model at several shapes, compare with ONNX Runtime, and return the report's plans."""
    with nna.InferenceSession(model, devices=device, options=nna.Options(fallback="allow")) as session:
        for rows, columns in _SHAPES:
            feed = {"x": numbers(rows, columns, seed=rows)}
            for got, expected in zip(session.run(None, feed), run_whole(model, feed), strict=True):
                np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
        report = session.report()
    assert not alone or {segment.device for segment in report.segments} == {device}
    return report.plans
