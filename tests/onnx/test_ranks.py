from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from onnx import helper

import nnadapter as nna
from nnadapter.candidates import prepare
from tests.models import HEAD, numbers, parse, run_whole

GRID = """<ir_version: 8, opset_import: ["" : 13]> g (float[n, 3, h, w] x) => (float[m, 2] y, float[a, b, c] filled) {
    sizes = Shape (x)
    at_2 = Constant <value = int64 {2}> ()
    at_3 = Constant <value = int64 {3}> ()
    height = Gather (sizes, at_2)
    width = Gather (sizes, at_3)
    zero = Constant <value = int64 {0}> ()
    one = Constant <value = int64 {1}> ()
    axis = Constant <value = int64[1] {0}> ()
    last = Constant <value = int64[1] {-1}> ()
    ones = Constant <value = int64[1] {1}> ()
    pair = Constant <value = int64[2] {-1, 2}> ()
    columns = Range (zero, width, one)
    rows = Range (zero, height, one)
    reals = Cast <to = 1> (columns)
    downward = Cast <to = 1> (rows)
    height_0 = Shape (downward)
    width_0 = Shape (reals)
    height_1 = Mul (height_0, ones)
    width_1 = Mul (width_0, ones)
    both = Concat <axis = 0> (height_1, width_1)
    wide = Concat <axis = 0> (ones, width_1)
    tall = Concat <axis = 0> (height_1, ones)
    row = Reshape (reals, wide)
    grid = Expand (row, both)
    column = Reshape (downward, tall)
    other = Expand (column, both)
    grid_1 = Unsqueeze (grid, last)
    other_1 = Unsqueeze (other, last)
    points = Concat <axis = -1> (grid_1, other_1)
    flat = Reshape (points, pair)
    mean = ReduceMean <keepdims = 0> (x)
    y = Mul (flat, mean)
    cube = Concat <axis = 0> (ones, both)
    seven = ConstantOfShape <value = float[1] {7}> (cube)
    filled = Mul (seven, mean)
}"""


def test_ranks_equal_computed_values():
    model = parse(GRID)
    prepared = prepare(model)
    found = prepared.inferred_ranks
    assert {"row", "grid", "column", "other", "grid_1", "points"} <= found.keys()
    for name in found:
        model.graph.output.append(helper.make_empty_tensor_value_info(name))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    computed = session.run(list(found), {"x": numbers(2, 3, 4, 5)})
    assert [len(found[name].shape) for name in found] == [array.ndim for array in computed]
    assert all(size is None or isinstance(size, (int, str)) for value in found.values() for size in value.shape)


@pytest.mark.parametrize("text", ["y = Relu (x)", "s = Shape (x) y = Reshape (x, s)"])
def test_no_ranks_are_inferred_without_need(text):
    model = parse(f"{HEAD} g (float[n, 3] x) => (float[n, 3] y) {{ {text} }}")
    assert prepare(model).inferred_ranks == {}


def test_grids_of_anchors_are_one_plan_for_all_sizes():
    pytest.importorskip("openvino")
    model = parse(GRID)
    with nna.InferenceSession(model, devices="openvino") as session:
        for height, width in ((4, 5), (6, 5), (8, 8), (5, 9)):
            feed = {"x": numbers(2, 3, height, width, seed=height)}
            for got, expected in zip(session.run(None, feed), run_whole(model, feed), strict=True):
                np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
        report = session.report()
        assert report.plans.compiled == 2 and [segment.device for segment in report.segments] == ["openvino"]
