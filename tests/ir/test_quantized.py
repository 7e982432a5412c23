from dataclasses import replace

import numpy as np
import pytest

from nnadapter.errors import InvalidModelError
from nnadapter.ir import ABSENT, DataType, ModelBuilder, OperandType, Quantization, QuantizedType, to_text, verify
from nnadapter.ir.definition import by_definition

SCALE, ZERO = 0.5, 3
PER_TENSOR = Quantization(scale=(SCALE,), zero_point=(ZERO,))
INT8, INT16 = (QuantizedType(dtype, PER_TENSOR) for dtype in (DataType.INT8, DataType.INT16))
UINT8 = QuantizedType(DataType.UINT8, PER_TENSOR)


def along(axis, count, dtype=DataType.INT8, scale=0.25):
    return QuantizedType(dtype, Quantization(scale=(scale,) * count, zero_point=(0,) * count, axis=axis))


def single_operation(type_, inputs, attributes=None, result=INT8):
    """Return a model of one operation; inputs are (dimensions, type), with None for an absent input."""
    builder = ModelBuilder()
    operands = []
    for position, (dimensions, given) in enumerate(inputs):
        if given is None:
            operands.append(ABSENT)
            continue
        kind = (given.dtype, given.quantization) if isinstance(given, QuantizedType) else (given, None)
        operands.append(builder.add_input(f"x{position}", OperandType(kind[0], dimensions, quantization=kind[1])))
    quantized = () if result is None else (result,)
    return builder.finish(builder.add_operation(type_, operands, attributes or {}, quantized=quantized))


def result_of(*arguments, **more):
    model = single_operation(*arguments, **more)
    verify(model)
    return model.operands[model.outputs[0]].type


IMAGE, FILTER = ((1, 3, 5, 5), UINT8), ((4, 3, 2, 2), along(0, 4))
BIAS = ((4,), along(0, 4, DataType.INT32, SCALE * 0.25))


@pytest.mark.parametrize(
    ("type_", "inputs", "attributes", "dimensions"),
    [
        ("QUANTIZE", [((2, 3), DataType.FLOAT32)], {}, (2, 3)),
        ("STORAGE_CAST", [((2, 3), DataType.INT8)], {}, (2, 3)),
        ("STORAGE_CAST", [((2, 3), along(1, 3))], {}, (2, 3)),
        ("CONV_2D", [IMAGE, FILTER, BIAS], {"fuse_code": "relu"}, (1, 4, 4, 4)),
        ("FULLY_CONNECTED", [((2, 3), UINT8), ((4, 3), INT8)], {}, (2, 4)),
        ("MAT_MUL", [((2, 3), UINT8), ((3, 4), along(1, 4))], {}, (2, 4)),
        ("MAT_MUL", [((2, 3), UINT8), ((4, 3), along(0, 4))], {"transpose_y": True}, (2, 4)),
        ("ADD", [((2, 3), UINT8), ((3,), INT8)], {}, (2, 3)),
        ("SIGMOID", [((2, 3), UINT8)], {}, (2, 3)),
        ("AVERAGE_POOL_2D", [IMAGE], {"kernel_shape": (5, 5)}, (1, 3, 1, 1)),
        ("CONCAT", [((2, 3), UINT8), ((2, 3), INT8)], {"axis": 0}, (4, 3)),
    ],
)
def test_quantized_results(type_, inputs, attributes, dimensions):
    assert result_of(type_, inputs, attributes) == OperandType(DataType.INT8, dimensions, quantization=PER_TENSOR)


@pytest.mark.parametrize("inputs", [[IMAGE, FILTER], [IMAGE, ((4, 3, 2, 2), INT8)]])
def test_convolution_without_quantized_result_returns_int32(inputs):
    assert result_of("CONV_2D", inputs, result=None) == OperandType(DataType.INT32, (1, 4, 4, 4))


@pytest.mark.parametrize("inputs", [(INT16, INT8), (INT8, INT16), (INT16, INT16)])
def test_products_of_16_bits_have_sums_of_64(inputs):
    types = [((2, 3), inputs[0]), ((3, 4), inputs[1])]
    assert result_of("MAT_MUL", types, result=None) == OperandType(DataType.INT64, (2, 4))
    assert result_of("MAT_MUL", types, result=INT16).quantized == INT16
    (sums,) = by_definition(
        single_operation("MAT_MUL", types, result=None),
        [np.full(shape, np.iinfo(type_.dtype.value).min, type_.dtype.value) for shape, type_ in types],
    )
    x, y = (int(np.iinfo(type_.dtype.value).min) - type_.quantization.zero_point[0] for type_ in inputs)
    np.testing.assert_array_equal(sums, np.full((2, 4), 3 * x * y))


@pytest.mark.parametrize(
    ("type_", "attributes"),
    [("RESHAPE", {"shape": (3, 2)}), ("TRANSPOSE", {"perm": (1, 0)}), ("TILE", {"repeats": (1, 2)})],
)
def test_movement_preserves_per_tensor_quantization(type_, attributes):
    assert result_of(type_, [((2, 3), INT8)], attributes, result=None).quantized == INT8
    assert result_of(type_, [((2, 3), along(1, 3))], attributes, result=None).quantized is None


def test_quantized_operands_may_have_unquantized_results():
    assert result_of("ADD", [((3,), INT8), ((3,), INT8)], result=None) == OperandType(DataType.INT8, (3,))
    assert result_of("EQUAL", [((3,), INT8), ((3,), INT8)], result=None).dtype is DataType.BOOL


@pytest.mark.parametrize(
    ("type_", "inputs", "result", "message"),
    [
        ("QUANTIZE", [((3,), DataType.FLOAT32)], None, "QUANTIZE: result is not quantized"),
        ("QUANTIZE", [((3,), DataType.FLOAT32)], along(0, 2), "2 scales and 2 zero points, expected 3"),
        ("QUANTIZE", [((3,), DataType.INT8)], INT8, "input 'input' is int8, expected one of"),
        ("DEQUANTIZE", [((3,), DataType.INT8)], None, "not quantized, expected a quantized operand"),
        ("STORAGE_CAST", [((3,), DataType.INT8)], UINT8, "expected the data type of the input, int8"),
        ("SIGMOID", [((3,), INT8)], None, "expected a quantized result as well"),
        ("SIGMOID", [((3,), along(0, 3))], INT8, "quantized along axis 0, expected per tensor"),
        ("ADD", [((3,), INT8), ((3,), DataType.FLOAT32)], INT8, "expected int8 as 'x'"),
        ("ABS", [((3,), INT8)], along(0, 3), "quantized along axis 0, expected per tensor"),
        ("REDUCE_MAX", [((3,), INT8)], INT8, "the operation has no quantized results"),
        ("MAT_MUL", [((2, 3), INT8), ((3, 4), along(0, 3))], INT8, "expected per tensor or along axis 1"),
        ("MAT_MUL", [((2, 3), INT8), ((3,), along(0, 3))], INT8, "axis 0, expected per tensor"),
        ("MAT_MUL", [((2, 3), INT8), ((3, 4), DataType.INT8)], INT8, "the second input is int8"),
        ("MAT_MUL", [((2, 3), DataType.INT8), ((3, 4), DataType.INT8)], INT8, "expected quantized inputs as well"),
        ("CONV_2D", [IMAGE, FILTER, ((4,), DataType.INT32)], INT8, "bias"),
        ("CONV_2D", [IMAGE, FILTER, ((4,), along(0, 4, DataType.INT32))], INT8, "the scales of bias differ"),
        ("CONV_2D", [IMAGE, FILTER, ((4,), UINT8)], INT8, "expected a quantized operand of int32"),
    ],
)
def test_inconsistent_quantizations_are_refused(type_, inputs, result, message):
    attributes = {"axes": (0,), "keepdims": False} if type_ == "REDUCE_MAX" else {}
    with pytest.raises(InvalidModelError, match=message):
        single_operation(type_, inputs, attributes, result)


def test_quantized_operations_refuse_activations_without_bounds():
    with pytest.raises(InvalidModelError, match="fuse_code is 'tanh'"):
        single_operation("ADD", [((3,), INT8), ((3,), INT8)], {"fuse_code": "tanh"})


def test_quantization_is_part_of_the_structure():
    first, second = (single_operation("SIGMOID", [((3,), INT8)], result=result) for result in (INT8, UINT8))
    assert first.structure != second.structure
    assert "scale [0.5] zero_point [3]" in to_text(first)


def test_verify_detects_an_inconsistent_result():
    model = single_operation("SIGMOID", [((3,), INT8)])
    output = model.operands[1]
    wrong = replace(output, type=replace(output.type, dtype=DataType.INT16))
    with pytest.raises(InvalidModelError, match="expected a quantized operand of int8 or uint8"):
        verify(replace(model, operands=(model.operands[0], wrong)))


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ((), "QUANTIZE: 0 outputs, expected 1"),
        ((-1,), "QUANTIZE: produces operand -1, expected 0 to 1"),
        ((0,), "QUANTIZE: produces operand 0 'x0', expected an operand that is no input"),
    ],
)
def test_outputs_are_checked_before_quantization(outputs, message):
    """An output without an operand is reported before its missing quantization."""
    model = single_operation("QUANTIZE", [((3,), DataType.FLOAT32)])
    (operation,) = model.operations
    with pytest.raises(InvalidModelError, match=message):
        verify(replace(model, operations=(replace(operation, outputs=outputs),)))


def test_constants_may_be_quantized():
    builder = ModelBuilder()
    constant = builder.add_constant("w", np.ones((2, 3), np.int8), PER_TENSOR)
    (result,) = builder.add_operation("DEQUANTIZE", (constant,), {"to": "float16"})
    assert builder.type_of(result) == OperandType(DataType.FLOAT16, (2, 3))


@pytest.mark.parametrize(
    ("scale", "zero_point", "message"),
    [((0.1,), (0.5,), "not an integer"), (("1",), (0,), "not a number"), ((1e300,), (0,), "finite")],
)
def test_invalid_scales_and_zero_points_are_refused(scale, zero_point, message):
    builder = ModelBuilder()
    x = builder.add_input("x", OperandType(DataType.FLOAT32, (3,)))
    wrong = QuantizedType(DataType.INT8, Quantization(scale=scale, zero_point=zero_point))
    with pytest.raises(InvalidModelError, match=message):
        builder.add_operation("QUANTIZE", (x,), quantized=(wrong,))


def test_numpy_numbers_are_accepted():
    found = Quantization(scale=np.array([0.5, 2], np.float32), zero_point=list(np.array([1, 2], np.int8)), axis=0)
    assert (found.scale, found.zero_point) == ((0.5, 2.0), (1, 2)) and type(found.zero_point[0]) is int
