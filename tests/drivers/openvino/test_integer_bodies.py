"""DynamicQuantizeLinear, MatMulInteger and ConvInteger: exactly ONNX's integers."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from nnadapter import InferenceSession
from tests.every import for_every, for_every_value
from tests.models import exact_options, run_whole

QUANTIZING = """<ir_version: 8, opset_import: ["": {opset}]>
    g (float[{shape}] x) => (uint8[{shape}] y, float s, uint8 z) {{ y, s, z = DynamicQuantizeLinear(x) }}"""


def samples(size, seed):
    """Return numbers of every kind, including exact halves of a step."""
    random = np.random.default_rng(seed)
    normal = (random.standard_normal(size) * 10.0 ** random.integers(-6, 6)).astype(np.float32)
    halves = random.integers(-255, 256, size).astype(np.float32) / 2
    halves.reshape(-1)[0] = 127.5
    return [normal, abs(normal), -abs(normal), normal + 100, normal * 0, np.full(size, normal.flat[0]), halves]


def integers(seed, dtype, *shape):
    limits = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(limits.min, limits.max, shape, endpoint=True).astype(dtype)


def is_on_device(session):
    return "cpu" not in {node.device for node in session.report().nodes}


@for_every_value(
    sizes=(("5, 7", (5, 7)), ("N, S", (5, 7), (1, 1), (9, 64)), ("N, 2, S", (1, 2, 3), (4, 2, 50))), opset=(11, 13, 21)
)
def test_quantizing_by_a_range(sizes, opset):
    shape, *sizes = sizes
    model = onnx.parser.parse_model(QUANTIZING.format(shape=shape, opset=opset))
    oracle = onnxruntime.InferenceSession(model.SerializeToString())
    with InferenceSession(model, devices="openvino") as session:
        for x in (x for seed, size in enumerate(sizes) for x in samples(size, seed)):
            for result, expected in zip(session.run(None, {"x": x}), oracle.run(None, {"x": x}), strict=True):
                np.testing.assert_array_equal(result, expected, strict=True)
        assert is_on_device(session)
        assert len(session.report().segments) == 1


def model_of(node, first, inputs, constants, opset=17):
    """Build a model of one node; `first` is the shape of `a`, `inputs` are the others."""
    sizes = {name: ", ".join(map(str, array.shape)) for name, array in inputs.items()} | {"a": first}
    stated = [f"{array.dtype}{f'[{sizes[name]}]' if array.ndim else ''} {name}" for name, array in inputs.items()]
    text = f"""<ir_version: 8, opset_import: ["": {opset}]> g ({", ".join(stated)}) => (int32 y) {{ y = {node} }}"""
    model = onnx.parser.parse_model(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    return onnx.shape_inference.infer_shapes(model)


def check(model, feed, expected, device="openvino"):
    with InferenceSession(model, exact_options(), devices=device) as session:
        np.testing.assert_array_equal(session.run(None, feed)[0], expected.astype(np.int32), strict=True)
        assert is_on_device(session) == (device == "openvino")


POINTS = {"none": (None, None), "one": ((), (1,)), "each": ((3,), (6,))}


@for_every_value(a=("uint8", "int8"), b=("uint8", "int8"), points=POINTS, is_known=(True, False), depth=(4, 515, 3000))
def test_products(a, b, points, is_known, depth):
    """Sums of 3000 8-bit products exceed float32's exact integers."""
    arrays = {"a": integers(0, a, 3, depth), "b": integers(1, b, depth, 6)}
    arrays["b"][:, 0] = arrays["b"].max()
    for name, of, shape in zip("pq", (a, b), POINTS[points], strict=True):
        if shape is not None:
            arrays[name] = integers(2, of, *shape)
    constants = {name: arrays[name] for name in "bpq" if name in arrays and (is_known or name == "p")}
    feed = {name: array for name, array in arrays.items() if name not in constants}
    model = model_of(f"MatMulInteger({', '.join(arrays)})", f"N, {depth}", feed, constants)
    if points == "each":  # a zero point per row fixes the number of rows
        model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 3
    first, second = arrays["a"].astype(np.int64), arrays["b"].astype(np.int64)
    p, q = (arrays[name].astype(np.int64) if name in arrays else 0 for name in "pq")
    check(model, feed, (first - np.reshape(p, (-1, 1))) @ (second - q))


@for_every(opset=(11, 12, 13, 18), constant_names=("b", ""))
def test_stacks_of_products(opset, constant_names):
    arrays = {"a": integers(0, "uint8", 2, 3, 5, 600), "b": integers(1, "int8", 600, 4)}
    constants = {name: arrays[name] for name in constant_names}
    feed = {name: array for name, array in arrays.items() if name not in constants}
    model = model_of("MatMulInteger(a, b)", "N, 3, S, 600", feed, constants, opset)
    check(model, feed, arrays["a"].astype(np.int64) @ arrays["b"].astype(np.int64))


@for_every_value(
    a=("uint8", "int8"),
    b=("uint8", "int8"),
    points=("", ", p", ", p, q"),
    attributes=("", "<pads = [1, 1, 0, 1]>", '<auto_pad = "SAME_UPPER", strides = [2, 2]>', "<group = 2>"),
    channels=(2, 40),
)
def test_convolutions(a, b, points, attributes, channels):
    """Sums over 40 channels of 9 pixels exceed float32's exact integers."""
    groups = 2 if "group" in attributes else 1
    arrays = {"a": integers(0, a, 2, channels, 5, 6), "b": integers(1, b, 4, channels // groups, 3, 3)}
    arrays["b"][0] = arrays["b"].max()
    arrays |= {name: integers(2, of) for name, of in zip("pq", (a, b), strict=True) if name in points}
    constants = {name: arrays[name] for name in "bq" if name in arrays}
    feed = {name: array for name, array in arrays.items() if name not in constants}
    model = model_of(f"ConvInteger{attributes}(a, b{points})", f"N, {channels}, 5, 6", feed, constants)
    check(model, feed, ReferenceEvaluator(model).run(None, feed)[0])


def test_sums_beyond_float32_stay_on_the_cpu():
    filters = np.full((2, 70, 5, 5), 127, np.int8)
    feed = {"a": np.full((1, 140, 5, 5), 255, np.uint8)}
    model = model_of("ConvInteger<group = 2>(a, b)", "1, 140, 5, 5", feed, {"b": filters})
    check(model, feed, np.full((1, 2, 1, 1), 70 * 25 * 127 * 255), device="cpu")
    feed = {"a": integers(0, "uint8", 3, 300), "b": integers(1, "int8", 300, 2)}
    model = model_of("MatMulInteger(a, b)", "N, S", feed, {})
    model.graph.input[1].type.tensor_type.shape.dim[0].dim_param = "S"
    with pytest.warns(match="took no node"), InferenceSession(model, devices="openvino") as session:
        (expected,) = run_whole(model, feed)  # without VNNI, ONNX Runtime saturates sums of inputs
        np.testing.assert_array_equal(session.run(None, feed)[0], expected)
        assert not is_on_device(session)


FUSED = {
    "quantizing": "y = com.microsoft.DynamicQuantizeMatMul(x, b, s, q)",
    "quantizing, with a bias": "y = com.microsoft.DynamicQuantizeMatMul(x, b, s, , c)",
    "of reals": "i, a, p = DynamicQuantizeLinear(x)  y = com.microsoft.MatMulIntegerToFloat(i, b, a, s, p, q, c)",
    "quantized": "i, a, p = DynamicQuantizeLinear(x)  y = com.microsoft.QGemm<alpha = 0.5>(i, a, p, b, s, q)",
}
"""Fused forms that ONNX Runtime's optimizer produces."""


@for_every_value(form=FUSED, depth=(24, 2000))
def test_forms_of_com_microsoft(form, depth):
    text = f"""<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]> g (float[N, {depth}] x) => (float[N, 6] y)
    <float[1] s = {{0.01}}, int8[1] q = {{3}}, float[6] c = {{1, 2, 3, 4, 5, 6}}> {{ {FUSED[form]} }}"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(numpy_helper.from_array(integers(1, "int8", depth, 6), "b"))
    oracle = onnxruntime.InferenceSession(model.SerializeToString(), exact_options())
    with InferenceSession(model, devices="openvino") as session:
        for rows in (1, 5):
            x = np.random.default_rng(rows).standard_normal((rows, depth)).astype(np.float32)
            (expected,) = oracle.run(None, {"x": x})
            np.testing.assert_allclose(
                session.run(None, {"x": x})[0], expected, rtol=0, atol=1e-6 * abs(expected).max()
            )
        assert is_on_device(session)
        assert len(session.report().segments) == 1


def quantized_model(weights, end=""):
    """Return the model that quantize_dynamic makes of a Linear, with the integer sums as an output."""
    depth, width = weights.shape
    text = f"""<ir_version: 8, opset_import: ["": 17]>
    g (float[N, {depth}] x) => (int32[N, {width}] y, float[N, {width}] r) <float s = {{0.01}}> {{
    i, a, p = DynamicQuantizeLinear(x)  y = MatMulInteger(i, b, p)
    f = Cast<to = 1>(y)  c = Mul(a, s)  m = Mul(f, c) {end or "r = Relu(m)"} }}"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(numpy_helper.from_array(weights, "b"))
    return model


def check_quantized(model):
    depth = model.graph.input[0].type.tensor_type.shape.dim[1].dim_value
    oracle = onnxruntime.InferenceSession(model.SerializeToString(), exact_options())
    with InferenceSession(model, devices="openvino") as session:
        for rows in (1, 5):
            x = np.random.default_rng(rows).standard_normal((rows, depth)).astype(np.float32)
            sums, reals = oracle.run(None, {"x": x})
            result, computed = session.run(None, {"x": x})
            np.testing.assert_array_equal(result, sums, strict=True)
            np.testing.assert_allclose(computed, reals, rtol=0, atol=1e-6 * abs(reals).max())
        assert is_on_device(session)


ENDS = ("", "r = Neg(m)", "r = Softmax(m)", "k = Concat<axis = 1>(m, m)  r, o = Split<axis = 1>(k)")


@for_every_value(depth=(24, 515, 3000), largest=(60, 127), end=ENDS)
def test_quantized_products_in_integers(depth, largest, end):
    weights = np.clip(integers(1, "int8", depth, 16), -largest, largest)
    weights[:, 0] = largest
    check_quantized(quantized_model(weights, end))
