"""Conversions to boolean; the engine computes two forms wrongly."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.helper import tensor_dtype_to_np_dtype

import nnadapter as nna
from tests.models import HEAD, parse, run_whole

TYPES = ("float", "float16", "int32", "int8", "uint8", "bool")
BETWEEN = {
    "nothing": "b = Identity (a)",
    "a sum": "b = Add (a, a)",
    "a shape": "s = Constant <value_ints = [-1]> () b = Reshape (a, s)",
}


def input_type(model):
    return tensor_dtype_to_np_dtype(model.graph.input[0].type.tensor_type.elem_type)


def agree(model, values):
    feed = {"x": values.astype(input_type(model))}
    with nna.InferenceSession(model, devices="openvino:CPU", options=nna.Options(fallback="allow")) as session:
        for got, expected in zip(session.run(None, feed), run_whole(model, feed), strict=True):
            np.testing.assert_array_equal(got, expected)
        assert "openvino:CPU" in {step.device for step in session.provenance.steps}


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("element", TYPES)
def test_cast_after_split_reads_the_right_part(element, axis):
    text = f"{HEAD} g ({element}[4, 4] x) => (bool[N, M] y, bool[N, M] z) {{"
    model = parse(f"{text} a, b = Split <axis = {axis}> (x) y = Cast <to = 9> (a) z = Cast <to = 9> (b) }}")
    agree(model, np.random.default_rng(0).integers(0, 2, (4, 4)))


@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.parametrize("element", ["float", "float16"])
def test_nan_is_true(element, between):
    text = f"{HEAD} g ({element}[2, 4] x) => (bool[K] y) {{ a = Identity (x) {BETWEEN[between]}"
    model = parse(f"{text} flat = Constant <value_ints = [-1]> () c = Cast <to = 9> (b) y = Reshape (c, flat) }}")
    values = [np.nan, 0.0, -0.0, 1e-5, np.inf, -1.0, 256.0, 0.25]
    agree(model, np.array(values).reshape(2, 4))


def test_cast_result_may_be_an_output_and_input():
    text = f"{HEAD} g (float[3] x) => (bool[3] y, bool[3] z, float[3] u) {{"
    model = parse(f"{text} y = Cast <to = 9> (x) z = Not (y) u = Cast <to = 1> (y) }}")
    agree(model, np.array([0, 2, np.nan]))
