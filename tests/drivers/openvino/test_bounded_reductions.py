"""ReduceMax and ReduceMin with a following clamp, which must not change."""

from __future__ import annotations

import numpy as np

from tests.drivers.openvino.harness import computed, context, model_of
from tests.every import for_every_value

SIZES = {1: "A", 2: "A, 3", 3: "A, 3, B", 4: "A, 2, B, 3"}
AXES = {"all": ((0, 1, 2, 3), ""), "last": ((-1,), "a"), "first": ((0,), "a"), "two": ((0, -1), "a")}


@for_every_value(
    bound=("Max", "Min"), rank=SIZES, axes=AXES, keepdims=(0, 1), is_open=(True, False), filled=("", "inf")
)
def test_max_and_min_of_a_reduction(bound, rank, axes, keepdims, is_open, filled):
    reduced, axes_text = AXES[axes]
    reduced = tuple(range(rank)) if axes == "all" else tuple({axis % rank for axis in reduced})
    x = (np.random.default_rng(rank).standard_normal((2, 3, 4)[:rank] if rank < 4 else (3, 2, 4, 3))).astype(np.float32)
    if filled:
        x[...] = -np.inf if bound == "Max" else np.inf
    shape_text = SIZES[rank] if is_open else ", ".join(map(str, x.shape))
    listed = ", ".join(map(str, reduced))
    model = model_of(
        f"(float[{shape_text}] x) => (y) <float c = {{0.25}}, int64[{len(reduced)}] a = {{{listed}}}> "
        f"{{ m = Reduce{bound} <keepdims = {keepdims}> (x{', a' if axes_text else ''}) y = {bound}(c, m) }}"
    )
    opened = context()
    assert all(opened.supported(model))
    largest = {"Max": np.max, "Min": np.min}[bound](x, axis=reduced, keepdims=bool(keepdims))
    (y,) = computed(opened, model, [x])
    np.testing.assert_array_equal(y, {"Max": np.maximum, "Min": np.minimum}[bound](largest, np.float32(0.25)))
