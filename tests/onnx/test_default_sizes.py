"""Default sizes of dynamic dimensions, chosen so that shape inference succeeds."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper

import nnadapter as nna
from nnadapter.candidates import prepare
from nnadapter.onnx.preparation import default_shapes
from tests.models import HEAD

OPEN = {
    "a product": ("float[n, k] x", "MatMul (x, w)", (20, 3), (1, 20)),
    "a product of rows": ("float[n, t, k] x", "MatMul (x, w)", (20, 3), (1, 128, 20)),
    "a turned product": ("float[n, k] x", "Gemm <transB = 1> (x, w)", (3, 20), (1, 20)),
    "a convolution": ("float[n, c, h, w0] x", "Conv (x, w)", (5, 3, 7, 7), (1, 3, 224, 224)),
    "a convolution in groups": ("float[n, c, h] x", "Conv <group = 2> (x, w)", (4, 3, 7), (1, 6, 128)),
    "as usual": ("float[n, k] x", "Mul (x, w)", (1,), (1, 128)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPEN)
def test_weights_determine_input_sizes(name):
    given, body, weight, expected = OPEN[name]
    model = onnx.parser.parse_model(f"{HEAD} g ({given}) => (float y) {{ y = {body} }}")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    model.graph.initializer.append(numpy_helper.from_array(np.ones(weight, np.float32), "w"))
    assert default_shapes(prepare(model)) == {"x": expected}
    with nna.InferenceSession(model, devices="cpu") as session:
        assert session.report().input_shapes == {"x": expected}


def test_position_table_limits_only_text_length():
    text = f"""{HEAD} g (float[n, t, 4] x, float[n, 3, h, w] picture) => (float[n, t, 4] y, float z)
    <int64[1] zero = {{0}}, int64[1] one = {{1}}> {{
        length = Shape <start = 1, end = 2> (x)
        places = Slice (table, zero, length, one)
        y = Add (x, places)
        z = ReduceSum <keepdims = 0> (picture)
    }}"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(numpy_helper.from_array(np.ones((1, 77, 4), np.float32), "table"))
    assert default_shapes(prepare(model)) == {"x": (1, 64, 4), "picture": (1, 3, 320, 320)}


def test_encoder_length_equals_its_mask():
    model = onnx.parser.parse_model(f"""{HEAD} g (float[b, n, 4] x, float[b, past, 4] past_key,
    float[b, source_length, 4] z,
    int64[b, e] encoder_attention_mask) => (float[b, all, 4] present, float[b, source_length, 4] y, int64[b, e] m) {{
        new = Relu(x)  present = Concat<axis = 1>(past_key, new)  y = Relu(z)  m = Identity(encoder_attention_mask)
    }}""")
    assert default_shapes(prepare(model)) == {
        "x": (1, 1, 4),
        "past_key": (1, 127, 4),
        "z": (1, 32, 4),
        "encoder_attention_mask": (1, 32),
    }


def test_ops_unknown_to_inference_do_not_prevent_sizes():
    scaled = """<ir_version: 8, opset_import: ["": 17, "ai.onnx.ml": 1]>
    g (float[n, 3] x) => (float[n, 3] y) {
        scaled = ai.onnx.ml.Scaler <offset: floats = [1.0, 2.0, 3.0], scale: floats = [2.0, 1.0, 1.0]> (x)
        y = Identity (scaled)
    }"""
    with nna.InferenceSession(onnx.parser.parse_model(scaled), devices="cpu") as session:
        assert session.report().input_shapes == {"x": (1, 3)}
    beside = scaled.replace("x)", "x, float[n, k] a, float[16] b)", 1).replace("y =", "sum = Add (a, b)  y =")
    assert default_shapes(prepare(onnx.parser.parse_model(beside)))["a"] == (1, 16)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("float[b, s] x, int64[s] places", {"x": (1, 128), "places": (128,)}),
        ("int64[s] places, float[b, s] x", {"x": (1, 128), "places": (128,)}),
        ("float[b, s] x, int64[3, b, s] places", {"x": (1, 128), "places": (3, 1, 128)}),
        ("float[b, s] x, float[s, s] mask", {"x": (1, 128), "mask": (128, 128)}),
        ("float[b, h, w] mask, float[b, 3, h, w] picture", {"mask": (1, 224, 224), "picture": (1, 3, 224, 224)}),
        ("float[s, b, 4] x, float[2, b, 8] state", {"x": (1, 128, 4), "state": (2, 128, 8)}),
    ],
)
def test_dimensions_of_one_name_have_one_size(given, expected):
    first = given.split("] ")[1].split(",")[0]
    model = onnx.parser.parse_model(f"{HEAD} g ({given}) => (float y) {{ y = Cast <to = 1> ({first}) }}")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    assert default_shapes(prepare(model)) == expected


@pytest.mark.parametrize(("window", "expected"), [(100, 128), (400, 16000)])
def test_windows_fit_into_assumed_sizes(window, expected):
    model = onnx.parser.parse_model(f"""{HEAD} g (float[n, samples] x) => (float[n, 2, frames] y) {{
        one = Constant <value = int64[1] {{1}}> ()
        wave = Unsqueeze (x, one)
        y = Conv <strides = [2]> (wave, w)
    }}""")
    model.graph.initializer.append(numpy_helper.from_array(np.ones((2, 1, window), np.float32), "w"))
    assert default_shapes(prepare(model)) == {"x": (1, expected)}
    with nna.InferenceSession(model, devices="cpu") as session:
        (y,) = session.run(None, {"x": np.ones((1, expected), np.float32)})
    assert y.shape == (1, 2, (expected - window) // 2 + 1)
