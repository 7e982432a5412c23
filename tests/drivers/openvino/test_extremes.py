from __future__ import annotations

import itertools

import numpy as np
import pytest

import nnadapter as nna
from tests.models import parse, run_whole

LARGEST = np.finfo(np.float32).max
ROWS = np.array(
    list(itertools.combinations_with_replacement((-np.inf, -LARGEST, -1.5, 0, 1e-30, 3, LARGEST, np.inf), 3)),
    np.float32,
)


@pytest.mark.parametrize("op_type", ["ReduceMax", "ReduceMin"])
@pytest.mark.parametrize("axes", ["1", "0", "0, 1", "2"])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_extremes_of_infinite_values_are_infinite(op_type, axes, keepdims):
    model = parse(
        f"""<ir_version: 10, opset_import: ["" : 18]> g (float[n, m, 3] x) => (float[...] y) {{
        axes = Constant <value = int64[{axes.count(",") + 1}] {{{axes}}}> ()
        y = {op_type} <keepdims = {keepdims}> (x, axes)
    }}""".replace(
            "float[...]",
            "float[a]" if not keepdims and "," in axes else "float[a, b]" if not keepdims else "float[a, b, c]",
        )
    )
    with nna.InferenceSession(model, devices="openvino") as session:
        for rows in (
            ROWS[None],
            ROWS[:, None],
            ROWS[:6, None],
            ROWS[None, -4:],
            np.full((2, 5, 3), -np.inf, np.float32),
        ):
            feed = {"x": np.ascontiguousarray(rows)}
            np.testing.assert_array_equal(session.run(None, feed)[0], run_whole(model, feed)[0])
        assert [node.device for node in session.report().nodes if node.op_type == op_type] == ["openvino"]
