"""Quantized operations, compared with 64-bit integers or the floating-point definition."""

import numpy as np
import pytest

from nnadapter.drivers.fake_npu import lower
from nnadapter.ir import DataType, ModelBuilder, OperandType, Quantization, QuantizedType
from nnadapter.ir.definition import by_definition
from nnadapter.ir.operations import TABULATED
from tests.drivers.fake_npu.harness import context, run_model

LIMITS = {"int8": (-128, 127), "uint8": (0, 255)}


def quantized(dtype, scale, zero_point):
    return QuantizedType(DataType(dtype), Quantization(scale=(scale,), zero_point=(zero_point,)))


def all_values(dtype):
    return np.arange(*np.add(LIMITS[dtype], (0, 1)), dtype=np.int64).astype(dtype)


def model_of(type_, arrays, types, attributes=None, constants=(), result=None):
    builder, operands, feeds = ModelBuilder(), [], []
    for position, (array, type_of_input) in enumerate(zip(arrays, types, strict=True)):
        if position in constants:
            operands.append(builder.add_constant(f"c{position}", array, type_of_input.quantization))
            continue
        type_of = OperandType(DataType(array.dtype.name), array.shape, quantization=type_of_input.quantization)
        operands.append(builder.add_input(f"x{position}", type_of))
        feeds.append(array)
    quantized_result = () if result is None else (result,)
    return builder.finish(builder.add_operation(type_, operands, attributes or {}, quantized=quantized_result)), feeds


@pytest.mark.parametrize("type_", sorted(TABULATED))
@pytest.mark.parametrize(("source", "target"), [("int8", "uint8"), ("uint8", "int8")])
def test_lookup_table_equals_float32(type_, source, target):
    x = all_values(source)
    result = quantized(target, 0.05, 10)
    attributes = {"min": -1.0, "max": 2.0} if type_ == "CLIP" else {}
    model, feeds = model_of(type_, [x], [quantized(source, 0.04, 5)], attributes, result=result)
    (looked_up,), (expected,) = run_model(model, feeds), by_definition(model, feeds)
    # Halves may round either way; infinities saturate, NaN becomes the smallest value.
    assert np.abs(looked_up.astype(int) - expected.astype(int)).max() <= 1
    assert np.count_nonzero(looked_up != expected) <= 2
    kernels = {instruction.kernel for instruction in lower(model).graph.instructions}
    assert kernels == {"look_up"}


@pytest.mark.parametrize("type_", ["ADD", "SUB", "MUL", "MAX", "MIN"])
def test_binary_operations_equal_the_dequantized_ones(type_):
    x, y = (grid.reshape(256, 256) for grid in np.meshgrid(all_values("int8"), all_values("uint8")))
    types = [quantized("int8", 0.031, -7), quantized("uint8", 0.017, 120)]
    model, feeds = model_of(type_, [x, y], types, result=quantized("int8", 0.043, 3))
    (result,), (expected,) = run_model(model, feeds), by_definition(model, feeds)
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("depth", [8, 257, 600, 5000])
@pytest.mark.parametrize("constants", [(1,), ()])
def test_long_sums_are_exact(depth, constants):
    x, y = np.full((2, depth), 255, np.uint8), np.full((depth, 3), -128, np.int8)
    x[1, ::2] = 254
    types = [quantized("uint8", 1.0, 0), quantized("int8", 1.0, 127)]
    model, feeds = model_of("MAT_MUL", [x, y], types, constants=constants)
    (result,) = run_model(model, feeds)
    np.testing.assert_array_equal(result, x.astype(np.int64) @ (y.astype(np.int64) - 127))


@pytest.mark.parametrize(("value", "dtype"), [(1, "float32"), (-128, "float64")])
def test_large_sums_are_computed_in_float64(value, dtype):
    types = [quantized("uint8", 1.0, 0), quantized("int8", 1.0, 0)]
    arrays = [np.zeros((1, 600, 4, 4), np.uint8), np.full((2, 600, 1, 1), value, np.int8)]
    graph = lower(model_of("CONV_2D", arrays, types, constants=(1,))[0]).graph
    (product,) = (instruction for instruction in graph.instructions if instruction.kernel == "pointwise_convolution")
    assert graph.tensors[product.outputs[0]].type.dtype == dtype


@pytest.mark.parametrize("group", [1, 2, 4])
@pytest.mark.parametrize("kernel", [(1, 1), (3, 2)])
def test_a_filter_may_be_computed(group, kernel):
    filled = np.random.default_rng(0).integers
    types = [quantized("uint8", 0.1, 3), quantized("int8", 0.2, 100), quantized("int32", 0.02, 0)]
    arrays = [filled(0, 256, (2, 4, 7, 5), np.uint8), filled(-128, 128, (4, 4 // group, *kernel), np.int8)]
    arrays.append(filled(-(2**20), 2**20, 4, np.int32))
    attributes, result = {"group": group, "pads": (1, 0, 0, 1)}, quantized("int8", 5.0, 3)
    model, feeds = model_of("CONV_2D", arrays, types, attributes, result=result)
    np.testing.assert_array_equal(run_model(model, feeds)[0], by_definition(model, feeds)[0])


def test_bias_is_added_before_rounding():
    types = [quantized("uint8", 1.0, 0), quantized("int8", 1.0, 0), quantized("int32", 1.0, 0)]
    arrays = [np.full((1, 2), 255, np.uint8), np.ones((1, 2), np.int8), np.array([2**24 + 1], np.int32)]
    result = quantized("int8", 2.0**18, 0)
    for constants in ((1, 2), (1,), ()):
        model, feeds = model_of("FULLY_CONNECTED", arrays, types, constants=constants, result=result)
        np.testing.assert_array_equal(run_model(model, feeds)[0], by_definition(model, feeds)[0])


@pytest.mark.parametrize(
    ("code", "parameters"), [("relu", ()), ("clip", (0.0, 6.0)), ("clip", (-1.0, 1e9)), ("clip", (5.0, 1.0))]
)
def test_fused_activations_become_bounds(code, parameters):
    generator = np.random.default_rng(0)
    arrays = [generator.integers(-128, 127, shape).astype(np.int8) for shape in ((4, 9), (5, 9))]
    types = [quantized("int8", 0.1, 3), quantized("int8", 0.02, 0)]
    attributes = {"fuse_code": code, "fuse_parameters": parameters}
    model, feeds = model_of("FULLY_CONNECTED", arrays, types, attributes, (1,), quantized("int8", 0.1, -20))
    np.testing.assert_array_equal(run_model(model, feeds)[0], by_definition(model, feeds)[0])


def test_matmul_of_transposed_operands():
    generator = np.random.default_rng(0)
    x, y = generator.integers(0, 255, (9, 4)).astype(np.uint8), generator.integers(-128, 127, (5, 9)).astype(np.int8)
    columns = Quantization(scale=(0.1,) * 5, zero_point=(1, -2, 3, -4, 5), axis=0)
    types = [quantized("uint8", 0.1, 3), QuantizedType(DataType.INT8, columns)]
    attributes = {"transpose_x": True, "transpose_y": True}
    for constants in ((1,), ()):
        model, feeds = model_of("MAT_MUL", [x, y], types, attributes, constants, quantized("int8", 3.0, 0))
        np.testing.assert_array_equal(run_model(model, feeds)[0], by_definition(model, feeds)[0])


@pytest.mark.parametrize("dtype", ["int16", "uint16"])
def test_sixteen_bits(dtype):
    x = (np.random.default_rng(0).standard_normal((3, 40)) * 9).astype(np.float32)
    builder = ModelBuilder()
    operand = builder.add_input("x", OperandType(DataType.FLOAT32, x.shape))
    (integers,) = builder.add_operation("QUANTIZE", (operand,), quantized=(quantized(dtype, 1e-3, 12345),))
    model = builder.finish([integers, *builder.add_operation("DEQUANTIZE", (integers,))])
    for result, expected in zip(run_model(model, [x]), by_definition(model, [x]), strict=True):
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("dtype", ["int4", "uint4"])
@pytest.mark.parametrize("constants", [(), (0,)])
def test_weights_of_four_bits(dtype, constants):
    array_type = DataType(dtype).array_type
    x = (np.arange(15).reshape(3, 5) - (8 if dtype == "int4" else 0)).astype(np.int8).astype(array_type)
    rows = Quantization(scale=(0.1, 0.2, 0.4), zero_point=(1, 2, 3), axis=0)
    model, feeds = model_of("DEQUANTIZE", [x], [QuantizedType(DataType(dtype), rows)], {}, constants)
    expected = by_definition(model, feeds)[0]
    np.testing.assert_array_equal(run_model(model, feeds)[0], expected)
    program = context().deserialize(context().compile(model).serialize())
    np.testing.assert_array_equal(program.create_execution().compute(feeds)[0], expected)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_quantize_and_dequantize_along_an_axis(axis):
    generator = np.random.default_rng(0)
    x = (generator.standard_normal((3, 40, 3)) * 9).astype(np.float32)
    count = x.shape[axis]
    scales = tuple(generator.uniform(0.1, 0.5, count).astype(np.float32).tolist())
    along = QuantizedType(DataType.INT8, Quantization(scale=scales, zero_point=tuple(range(count)), axis=axis))
    builder = ModelBuilder()
    operand = builder.add_input("x", OperandType(DataType.FLOAT32, x.shape))
    (integers,) = builder.add_operation("QUANTIZE", (operand,), quantized=(along,))
    model = builder.finish([integers, *builder.add_operation("DEQUANTIZE", (integers,))])
    for result, expected in zip(run_model(model, [x]), by_definition(model, [x]), strict=True):
        np.testing.assert_array_equal(result, expected)


def test_nan_and_infinities_saturate():
    x = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 2.5, 3.5], np.float32)
    builder = ModelBuilder()
    operand = builder.add_input("x", OperandType(DataType.FLOAT32, x.shape))
    model = builder.finish(builder.add_operation("QUANTIZE", (operand,), quantized=(quantized("int8", 1.0, 5),)))
    assert run_model(model, [x])[0].tolist() == [-128, 127, -128, 127, -128, 7, 9]


def test_results_wider_than_16_bits_are_refused():
    builder = ModelBuilder()
    operand = builder.add_input("x", OperandType(DataType.FLOAT32, (3,)))
    model = builder.finish(builder.add_operation("QUANTIZE", (operand,), quantized=(quantized("int32", 1.0, 0),)))
    assert "accepted: int16, int8, uint16, uint8" in context().supported(model)[0].detail


def test_programs_on_quantized_operands_are_deserialized():
    types = [quantized("uint8", 0.1, 7), quantized("int8", 0.1, 0)]
    arrays = [np.arange(2 * 900, dtype=np.int64).astype(np.uint8).reshape(2, 900), np.full((900, 3), -128, np.int8)]
    model, feeds = model_of("MAT_MUL", arrays, types, constants=(1,), result=quantized("int8", 9.0, 1))
    opened = context()
    program = opened.compile(model)
    deserialized = opened.deserialize(program.serialize())
    for candidate in (program, deserialized):
        np.testing.assert_array_equal(candidate.create_execution().compute(feeds)[0], by_definition(model, feeds)[0])
