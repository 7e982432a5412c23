"""Inputs of Concat that are empty at all sizes, which are removed without changing results."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

import nnadapter as nna
from nnadapter.candidates import prepare
from tests.models import HEAD, numbers, parse, run_whole


def rotary(
    *, start="size", end="9223372036854775807", width="8", axis=2, step="1", parts="turned, rest", narrow=6
) -> str:
    """Return rotary embeddings that rotate as many elements of each head as there are angles."""
    return f"""{HEAD} g (float[n, t, 8] x, float[n, t, {width}] angles) => (float[a, b, c] y) {{
        shape = Shape (angles)
        zero = Constant <value = int64[1] {{0}}> ()
        one = Constant <value = int64[1] {{1}}> ()
        nine = Constant <value = int64[1] {{9}}> ()
        eight = Constant <value = int64[1] {{8}}> ()
        end = Constant <value = int64[1] {{{end}}}> ()
        axis = Constant <value = int64[1] {{{axis}}}> ()
        step = Constant <value = int64[1] {{{step}}}> ()
        last = Constant <value = int64 {{2}}> ()
        number = Gather (shape, last)
        narrow = Cast <to = {narrow}> (number)
        wide = Cast <to = 7> (narrow)
        size = Unsqueeze (wide, zero)
        head = Slice (x, zero, size, axis)
        cosines = Cos (angles)
        turned = Mul (head, cosines)
        rest = Slice (x, {start}, end, axis, step)
        y = Concat <axis = {axis}> ({parts})
    }}"""


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (rotary(), ["turned"]),
        (rotary(axis=-1), ["turned"]),
        (rotary(parts="rest, turned, rest"), ["turned"]),
        (rotary(start="nine"), ["turned"]),
        (rotary(narrow=7), ["turned"]),
        (rotary(narrow=3), ["turned"]),  # int8 can represent this size
        (rotary(start="eight"), ["turned"]),
        (rotary(start="one"), ["turned", "rest"]),
        (rotary(width="5"), ["turned", "rest"]),
        (rotary(width="w"), ["turned", "rest"]),
        (rotary(step="-1", start="nine", end="0"), ["turned", "rest"]),
        (rotary(parts="rest, rest"), ["rest", "rest"]),
    ],
)
def test_only_always_empty_inputs_are_removed(text, parts):
    (concat,) = (node for node in prepare(parse(text)).nodes if node.op_type == "Concat")
    assert list(concat.inputs) == parts


@pytest.mark.parametrize("device", ["fake_npu", "openvino", "cpu"])
@pytest.mark.parametrize("width", [8, 5])
def test_results_are_the_same_and_one_plan_serves_all_lengths(device, width):
    model = parse(rotary(width=str(width)))
    with nna.InferenceSession(model, devices=device) as session:
        for length in (4, 5, 6, 3, 9):
            feed = {"x": numbers(2, length, 8, seed=length), "angles": numbers(2, length, width, seed=1)}
            for got, expected in zip(session.run(None, feed), run_whole(model, feed), strict=True):
                np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
        report = session.report()
    assert [segment.device for segment in report.segments] == [device]
    assert report.plans is None or report.plans.compiled == 2


def test_declared_empty_input_is_still_fed():
    model = parse(f"""{HEAD} g (float[n, 0] nothing, float[n, 4] x) => (float[n, 4] y) {{
        both = Concat <axis = 1> (nothing, x)
        y = Sin (both)
    }}""")
    feed = {"nothing": np.zeros((3, 0), np.float32), "x": numbers(3, 4)}
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feed)
    with nna.InferenceSession(model, devices="fake_npu") as session:
        np.testing.assert_allclose(session.run(None, feed)[0], expected[0], rtol=1e-6)
        assert {node.op_type: node.device for node in session.report().nodes}["Sin"] == "fake_npu"
