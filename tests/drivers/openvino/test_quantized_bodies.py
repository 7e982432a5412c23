"""QLinearConv and QLinearMatMul: at most one step from ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnxruntime

from nnadapter import InferenceSession
from tests.every import for_every_value
from tests.models import largest_int8

SCALES = {
    "one": ("float", "int8", "0.02", "0"),
    "each": ("float[4]", "int8[4]", "0.02, 0.01, 0.03, 0.015", "0, 0, 0, 0"),
}


def check(text, sizes):
    model = onnx.parser.parse_model(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    model = onnx.shape_inference.infer_shapes(model)
    oracle, numbers = onnxruntime.InferenceSession(model.SerializeToString()), np.random.default_rng(0)
    with InferenceSession(model, devices="openvino") as session:
        for size in sizes:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(model.graph.input[0].type.tensor_type.elem_type)
            limits = np.iinfo(dtype)
            feed = {"x": numbers.integers(limits.min, limits.max, size, endpoint=True).astype(dtype)}
            result, expected = session.run(None, feed)[0], oracle.run(None, feed)[0]
            assert result.dtype == expected.dtype
            assert np.abs(result.astype(int) - expected).max() <= 1
        assert "cpu" not in {node.device for node in session.report().nodes}


@for_every_value(scale=SCALES, bias=(False, True), dtype=("uint8", "int8"), opset=(13, 21), size=("H", "5"))
def test_convolutions(scale, bias, dtype, opset, size):
    kind, points, scales, zeros = SCALES[scale]
    stated = ", int32[4] b = {100, -300, 50, 0}" if bias else ""
    weights = ", ".join(map(str, np.random.default_rng(1).integers(-largest_int8(), largest_int8(), 72)))
    check(
        f"""<ir_version: 8, opset_import: ["": {opset}]> g ({dtype}[N, 2, {size}, 5] x) => ({dtype} y)
    <float[1] s = {{0.04}}, {dtype} z = {{3}}, int8[4, 2, 3, 3] w = {{{weights}}}, {kind} ws = {{{scales}}},
    {points} wz = {{{zeros}}}, float ys = {{0.3}}, {dtype} yz = {{10}}{stated}>
    {{ y = QLinearConv<pads = [1, 1, 1, 1]>(x, s, z, w, ws, wz, ys, yz{", b" if bias else ""}) }}""",
        ((1, 2, 5, 5), (3, 2, 5, 5)),
    )


@for_every_value(scale=SCALES, dtype=("uint8", "int8"), opset=(13, 21), size=("S", "5"))
def test_products(scale, dtype, opset, size):
    kind, points, scales, zeros = SCALES[scale]
    weights = ", ".join(map(str, np.random.default_rng(1).integers(-largest_int8(), largest_int8(), 12)))
    check(
        f"""<ir_version: 8, opset_import: ["": {opset}]> g ({dtype}[N, {size}, 3] x) => ({dtype} y)
    <float s = {{0.04}}, {dtype} z = {{3}}, int8[3, 4] w = {{{weights}}}, {kind} ws = {{{scales}}},
    {points} wz = {{{zeros}}}, float ys = {{0.1}}, {dtype} yz = {{10}}>
    {{ y = QLinearMatMul(x, s, z, w, ws, wz, ys, yz) }}""",
        ((1, 5, 3), (3, 5, 3)),
    )


def test_older_opsets_run_on_the_cpu_unchanged():
    text = """<ir_version: 6, opset_import: ["": 12]> g (uint8[1, 1, 4, 4] x) => (uint8[1, 1, 4, 4] y)
    <float s = {0.04}, uint8 z = {3}, uint8[1, 1, 1, 1] w = {7}, float ys = {0.3}, uint8 yz = {10}>
    { c = QLinearConv(x, s, z, w, s, z, ys, yz)  y = MaxPool<kernel_shape = [1, 1]>(c) }"""
    model = onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text))
    feed = {"x": np.arange(16, dtype=np.uint8).reshape(1, 1, 4, 4)}
    oracle = onnxruntime.InferenceSession(model.SerializeToString())
    with InferenceSession(model, devices="openvino") as session:
        np.testing.assert_array_equal(session.run(None, feed)[0], oracle.run(None, feed)[0])


def test_channels_last():
    """QLinearConv of com.microsoft is transposed, and expanded inside the transposes."""
    weights = ", ".join(map(str, np.random.default_rng(1).integers(-largest_int8(), largest_int8(), 72)))
    check(
        f"""<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]> g (uint8[N, 5, 5, 2] x) => (uint8 y)
    <float s = {{0.04}}, uint8 z = {{3}}, int8[4, 2, 3, 3] w = {{{weights}}}, float ws = {{0.02}}, int8 wz = {{0}},
    float ys = {{0.3}}, uint8 yz = {{10}}>
    {{ y = com.microsoft.QLinearConv<channels_last = 1, pads = [1, 1, 1, 1]>(x, s, z, w, ws, wz, ys, yz) }}""",
        ((1, 5, 5, 2), (3, 5, 5, 2)),
    )
