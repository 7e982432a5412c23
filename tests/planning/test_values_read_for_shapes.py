"""Values read only for their shape, such as indices that PyTorch expands to masks: one plan for all sizes."""

from __future__ import annotations

import numpy as np
import pytest

import nnadapter as nna
from tests.models import HEAD, numbers, parse, run_whole

_GIVEN = """g (float[n, t] x) => (float[a, b] y)
<int64 none = {0}, int64 one = {1}, int64[1] front = {0}, int64[1] back = {1}, int64[1] all = {-1}>"""
MEASURED = {
    "a table": """
        shape = Shape (x)
        n = Gather (shape, none)
        t = Gather (shape, one)
        rows = Range (none, n, one)
        columns = Range (none, t, one)
        row = Unsqueeze (rows, back)
        column = Unsqueeze (columns, front)
        both = Max (row, column)
        size = Shape (both)
        spread = Expand (row, size)
        real = Cast <to = 1> (spread)
        y = Mul (real, x)""",
    "an input turned": "turned = Transpose (x) size = Shape (turned) positive = Relu (x) y = Reshape (positive, size)",
    "what runs, turned": "e = Exp (x) turned = Transpose (e) size = Shape (turned) y = Reshape (e, size)",
    "what runs, of a size without a name": """
        e = Exp (x)
        flat = Reshape (e, all)
        row = Unsqueeze (flat, front)
        size = Shape (row)
        bounded = Max (size, back)
        positive = Relu (flat)
        y = Reshape (positive, bounded)""",
    "a size behind another": """
        turned = Transpose (x)
        size = Shape (turned)
        again = Reshape (x, size)
        last = Shape (again)
        e = Exp (x)
        y = Reshape (e, last)""",
}


@pytest.mark.parametrize("name", MEASURED)
def test_value_read_only_for_its_shape_needs_one_plan(name):
    model = parse(f"{HEAD} {_GIVEN} {{ {MEASURED[name]} }}")
    with nna.InferenceSession(model, devices="fake_npu") as session:
        for shape in ((3, 5), (5, 2), (2, 7), (4, 9), (3, 5)):
            feed = {"x": numbers(*shape)}
            np.testing.assert_allclose(session.run(None, feed)[0], run_whole(model, feed)[0], rtol=1e-5, atol=1e-6)
        plans = session.report().plans
        assert plans.compiled == 2 and plans.served_shapes_text == "one plan for all input shapes", plans
        assert {segment.device for segment in session.report().segments} == {"fake_npu"}


@pytest.mark.parametrize("devices", ["fake_npu", ["fake_npu", "cpu"]])
def test_data_dependent_size_is_measured_by_the_run(devices):
    """`gone` is only read for its shape. Its columns come from Compress, so only a run knows their number."""
    model = parse(f"""{HEAD} g (float[n, 4] x) => (float[n, 4] y)
    <int64[1] last = {{-1}}, float zero = {{0}}, int64[1] one = {{1}}> {{
        sums = ReduceSum <keepdims = 0> (x, last)
        shown = Less (sums, zero)
        found = Compress <axis = 0> (x, shown)
        rounded = Round (found)
        sizes = Shape (rounded)
        columns = Gather (sizes, one)
        real = Cast <to = 1> (columns)
        gone = Mul (x, real)
        others = Shape (gone)
        width = Gather (others, one)
        again = Cast <to = 1> (width)
        positive = Relu (x)
        y = Mul (positive, again)
    }}""")
    with nna.InferenceSession(model, devices=devices) as session:
        for rows in (3, 5, 1, 7):
            feed = {"x": numbers(rows, 4)}
            np.testing.assert_array_equal(session.run(None, feed)[0], run_whole(model, feed)[0])
