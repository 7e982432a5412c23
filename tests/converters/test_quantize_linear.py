import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

import nnadapter as nna
from nnadapter.drivers import Reason
from tests.converters.quantized_nodes import check_on_device, integers, scale
from tests.converters.single_node import check, expected, floats, opsets, refusal


def types(conversion):
    return [operation.type for operation in conversion.model.operations]


HALVES = np.array([-0.75, -0.25, 0.25, 0.75, 1.25, 31.875, 300.0, -300.0, 0.0, np.inf, -np.inf], np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("opset", opsets("QuantizeLinear", last=25))
@pytest.mark.parametrize("zero_point", [np.uint8(3), np.int8(-5)])
def test_quantize_linear_is_one_operation(opset, zero_point):
    conversion = check_on_device("QuantizeLinear", opset, [HALVES, scale(0.5), zero_point], constant=(1, 2))
    assert types(conversion) == ["QUANTIZE"]


@pytest.mark.parametrize("opset", opsets("DequantizeLinear", last=25))
@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32"])
def test_dequantize_linear_is_a_storage_cast_and_one_operation(opset, dtype):
    values = np.arange(0, 120, 7).astype(dtype)
    zero_point = np.array(0 if dtype == "int32" else 11, dtype)
    conversion = check_on_device("DequantizeLinear", opset, [values, scale(0.3), zero_point], constant=(1, 2))
    assert types(conversion) == ["STORAGE_CAST", "DEQUANTIZE"]


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("known", [(1, 2), ()])
def test_scales_along_an_axis(axis, known):
    x, generator = floats(3, 3, 3) * 20, np.random.default_rng(0)
    scales, points = np.array([0.1, 1.0, 3.0], np.float32), integers(generator, "int8", 3)
    check_on_device("QuantizeLinear", 13, [x, scales, points], {"axis": axis}, constant=known)
    x = integers(generator, "int8", 3, 3, 3)
    check_on_device("DequantizeLinear", 13, [x, scales, points], {"axis": axis}, constant=known)


@pytest.mark.parametrize("shape", [(), (1,), (5, 0)])
def test_scalars_and_empty_tensors(shape):
    check("QuantizeLinear", 13, [np.full(shape, 3.3, np.float32), scale(0.5), np.int8(1)], constant=(1, 2))
    check("QuantizeLinear", 13, [np.full(shape, 3.3, np.float32), scale(0.5), np.int8(1)])


def test_missing_zero_point_defaults_to_uint8_zero():
    check_on_device("QuantizeLinear", 21, [HALVES, scale(0.5)], constant=(1,))
    check_on_device("QuantizeLinear", 21, [HALVES, scale(0.5)], {"output_dtype": 3}, constant=(1,))


def test_integers_are_quantized_too():
    check_on_device("QuantizeLinear", 13, [np.arange(-9, 9, dtype=np.int32), scale(0.7), np.int8(1)], constant=(1, 2))


@pytest.mark.parametrize("known", [(1, 2), ()])
@pytest.mark.parametrize("size", [6, 5])
def test_blocks(known, size):
    x, generator = floats(2, size, 3) * 9, np.random.default_rng(1)
    scales = np.abs(floats(2, 3, 3)) + np.float32(0.1)
    points = integers(generator, "uint8", 2, 3, 3)
    attributes = {"axis": 1, "block_size": 2}
    check_on_device("QuantizeLinear", 21, [x, scales, points], attributes, constant=known)
    x = integers(generator, "uint8", 2, size, 3)
    check_on_device("DequantizeLinear", 21, [x, scales, points], attributes, constant=known)


def test_half_precision_scales_return_half_precision():
    values, half = np.arange(-40, 40, dtype=np.int8), np.array(0.3, np.float16)
    check_on_device("DequantizeLinear", 21, [values, half, np.int8(3)], constant=(1, 2))
    check_on_device("DequantizeLinear", 21, [values, half, np.int8(3)])


@pytest.mark.parametrize("known", [(1, 2), ()])
def test_half_precision_is_divided_in_float32(known):
    x = (floats(40) * 20).astype(np.float16)
    check_on_device("QuantizeLinear", 21, [x, np.array(0.3, np.float16), np.int8(3)], constant=known)


def test_sixteen_bits_are_converted():
    check("QuantizeLinear", 21, [floats(9) * 1000, scale(0.1), np.int16(7)], constant=(1, 2))
    check("DequantizeLinear", 21, [np.arange(9, dtype=np.uint16), scale(0.1), np.uint16(7)], constant=(1, 2))


def test_negative_scale_is_accepted():
    check_on_device("QuantizeLinear", 13, [floats(9) * 9, scale(-0.5), np.int8(1)], constant=(1, 2))


@pytest.mark.parametrize(
    "x", [floats(3, 4) * 5, np.abs(floats(7)), -np.abs(floats(7)), np.zeros((2, 2), np.float32), scale(3.0)]
)
def test_dynamic_quantize_linear(x):
    check_on_device("DynamicQuantizeLinear", 11, [x], outputs=3)


@pytest.mark.parametrize(
    ("opset", "inputs", "attributes", "reason"),
    [
        (13, [floats(2, 3), np.ones(3, np.float32), np.int8([0, 0])], {}, Reason.INVALID_NODE),
        (13, [floats(2, 3), np.ones(2, np.float32), np.int8([0, 0])], {}, Reason.INVALID_NODE),
        (13, [floats(2, 3), np.ones(3, np.float32), np.int8([0, 0, 0])], {"axis": 2}, Reason.INVALID_NODE),
        (21, [floats(2, 3), np.ones((2, 3), np.float32)], {"block_size": 2}, Reason.INVALID_NODE),
        (23, [floats(2, 3), scale(1.0)], {"precision": 10}, Reason.UNSUPPORTED_ATTRIBUTE),
    ],
)
def test_refusals(opset, inputs, attributes, reason):
    constant = tuple(range(1, len(inputs)))
    assert refusal("QuantizeLinear", opset, inputs, attributes, constant=constant).reason is reason


def test_floating_point_results_are_refused():
    verdict = refusal("QuantizeLinear", 21, [floats(3), scale(1.0)], {"output_dtype": 17})
    assert verdict.reason is Reason.UNSUPPORTED_DTYPE


@pytest.fixture
def convolution():
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 20]>
        g (float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) <float s = {0.01}> {
            w = DequantizeLinear(q, s)
            y = Conv(x, w)
        }""")
    weights = np.random.default_rng(0).integers(-127, 127, (4, 3, 3, 3)).astype(np.int8)
    model.graph.initializer.append(numpy_helper.from_array(weights, "q"))
    return model


@pytest.mark.parametrize(
    ("devices", "fallback"),
    [
        ("fake_npu", "forbid"),
        ([("fake_npu", {"switched_off": "CONV_2D"}), "cpu"], "allow"),
        ([("fake_npu", {"switched_off": "DEQUANTIZE"}), "cpu"], "allow"),
    ],
)
def test_dequantized_weights_are_constants(convolution, devices, fallback):
    x = floats(1, 3, 8, 8)
    options = nna.Options(fallback=fallback)
    session = nna.InferenceSession(convolution.SerializeToString(), devices=devices, options=options)
    (wanted,) = expected(convolution, {"x": x})
    np.testing.assert_allclose(session.run(None, {"x": x})[0], wanted, rtol=1e-5, atol=1e-5)


def test_dynamic_sizes():
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 20]>
        g (float[1, 2, h, w] x) => (float[1, 2, h, w] y) <float s = {0.02}, uint8 z = {128}> {
            q = QuantizeLinear(x, s, z)
            p = MaxPool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (q)
            r = QLinearConv <kernel_shape = [1, 1]> (p, s, z, f, s, z, s, z)
            y = DequantizeLinear(r, s, z)
        }""")
    weights = np.random.default_rng(0).integers(0, 256, (2, 2, 1, 1)).astype(np.uint8)
    model.graph.initializer.append(numpy_helper.from_array(weights, "f"))
    options = nna.Options(fallback="forbid")
    session = nna.InferenceSession(model.SerializeToString(), devices="fake_npu", options=options)
    for sizes in ((5, 6), (9, 4), (7, 7), (5, 6)):
        x = floats(1, 2, *sizes)
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], expected(model, {"x": x})[0])


def test_constants_beyond_the_largest_float_are_infinite_without_a_warning():
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 20]>
        g (float[3] x) => (float[3] y) <float s = {3e38}, int8[3] q = {1, -128, 0}> {
            w = DequantizeLinear(q, s)
            y = Add(x, w)
        }""")
    x, options = floats(3), nna.Options(fallback="forbid")
    session = nna.InferenceSession(model.SerializeToString(), devices="fake_npu", options=options)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], expected(model, {"x": x})[0])
