"""Quantization: operations, and rules for quantized operands of other operations.

Operations treat quantized operands in one of four ways:

- Operations that move elements move integers, and pass on a per-tensor quantization.
- Products (CONV_2D, CONV_2D_TRANSPOSE, FULLY_CONNECTED, MAT_MUL) of 8 or 16 bits subtract the zero points and sum
  exactly. Sums that are not quantized are int32, or int64 if an input has 16 bits. For a quantized result, sums and
  int32 bias are multiplied by scale of input * scale of filter / scale of result, in float32, and rounded half to even.
  Then the zero point is added and the result saturated, as in ONNX Runtime.
- Operations on real numbers with 8-bit operands compute like DEQUANTIZE, the operation in float32, and QUANTIZE.
- All other operations compute with the integers.
"""

from __future__ import annotations

from math import isclose

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import FLOATING, DataType, OperandType, Quantization
from nnadapter.ir.operations.row import Row, Types, as_first, family, like
from nnadapter.ir.schema import Attributes, QuantizationRule, ShapeRule
from nnadapter.records import replace

row = family(cost="elementwise")

EIGHT_BITS = frozenset({DataType.INT8, DataType.UINT8})
"""Data types of quantized operands in arithmetic. QUANTIZE and DEQUANTIZE accept all integers."""
SIXTEEN_BITS = frozenset({DataType.INT16, DataType.UINT16})
"""Data types that products accept in addition to `EIGHT_BITS`."""

_BIAS_TOLERANCE = 1e-5
_FUSE_CODES = frozenset({"none", "relu", "clip"})


def _dequantize(first: OperandType, to: str) -> OperandType:
    if first.quantization is None:
        raise InvalidModelError(f"input is {first} and not quantized, expected a quantized operand")
    return like(first, dtype=DataType(to))


def _present(types: Types, position: int) -> OperandType:
    type_ = types[position]
    assert type_ is not None, "`check_inputs` has seen it"
    return type_


def _any(types: Types, result: OperandType, attributes: Attributes) -> None:
    pass


def _same_dtype(types: Types, result: OperandType, attributes: Attributes) -> None:
    first = _present(types, 0)
    if result.dtype is not first.dtype:
        raise InvalidModelError(f"result is {result}, expected the data type of the input, {first.dtype.value}")


def _check_eight_bits(name: str, type_: OperandType) -> None:
    if type_.quantization is None or type_.dtype not in EIGHT_BITS:
        raise InvalidModelError(f"{name} is {type_}, expected a quantized operand of int8 or uint8")
    _check_axis(name, type_)


def _check_factor(name: str, type_: OperandType, axis: int | None = None) -> None:
    if type_.quantization is None or type_.dtype not in EIGHT_BITS | SIXTEEN_BITS:
        raise InvalidModelError(f"{name} is {type_}, expected a quantized operand of 8 or 16 bits")
    _check_axis(name, type_, axis)


def _check_axis(name: str, type_: OperandType, axis: int | None = None) -> None:
    quantization = type_.quantization
    if quantization is not None and quantization.axis not in (None, axis if axis is None else axis % type_.rank):
        along = "" if axis is None else f" or along axis {axis % type_.rank}"
        raise InvalidModelError(f"{name} is quantized along axis {quantization.axis}, expected per tensor{along}")


def _accumulating(type_: str, rule: ShapeRule) -> ShapeRule:
    """Return a shape rule with integer results for quantized inputs, and the results of `rule` otherwise."""

    def infer(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
        results = rule(types, attributes)
        first, second = _present(types, 0), _present(types, 1)
        if first.quantization is None and second.quantization is None:
            return results
        try:
            _check_factor("the first input", first)
            _check_factor("the second input", second, _channel_axis(type_, second, attributes))
        except InvalidModelError as error:
            raise InvalidModelError(f"{type_}: {error}") from None
        sums = DataType.INT64 if SIXTEEN_BITS & {first.dtype, second.dtype} else DataType.INT32
        return tuple(OperandType(sums, result.dimensions, result.layout) for result in results)

    return infer


def _channel_axis(type_: str, second: OperandType, attributes: Attributes) -> int | None:
    if second.rank < 2:
        return None
    if type_ == "CONV_2D_TRANSPOSE":
        return 1 if attributes["group"] == 1 else None
    return -2 if attributes.get("transpose_y") else -1 if type_ == "MAT_MUL" else 0


def _product(types: Types, result: OperandType, attributes: Attributes) -> None:
    x, y = _present(types, 0).quantization, _present(types, 1).quantization
    if x is None or y is None:
        raise InvalidModelError(f"result is {result} and quantized, expected quantized inputs as well")
    _check_factor("result", result)
    _check_fuse_code(attributes)
    bias = types[2] if len(types) > 2 else None
    if bias is not None:
        _check_bias(bias, x, y)


def _check_bias(bias: OperandType, x: Quantization, y: Quantization) -> None:
    quantization = bias.quantization
    if quantization is None or bias.dtype is not DataType.INT32 or any(quantization.zero_point):
        raise InvalidModelError(f"bias is {bias}, expected a quantized operand of int32 with zero point 0")
    expected = [x.scale[0] * scale for scale in y.scale]
    scales = quantization.scale * len(expected) if len(quantization.scale) == 1 else quantization.scale
    expected = expected * len(scales) if len(expected) == 1 else expected
    if not all(isclose(*pair, rel_tol=_BIAS_TOLERANCE) for pair in zip(scales, expected, strict=True)):
        raise InvalidModelError("the scales of bias differ from scale of input * scale of filter, expected equal ones")


def _real(types: Types, result: OperandType, attributes: Attributes) -> None:
    present_types = [type_ for type_ in types if type_ is not None]
    if all(type_.quantization is None and type_.dtype is result.dtype for type_ in present_types):
        return  # integer computation, with a result that is declared quantized
    for position, type_ in enumerate(present_types):
        _check_eight_bits(f"input {position}", type_)
    _check_eight_bits("result", result)
    _check_fuse_code(attributes)


def _check_fuse_code(attributes: Attributes) -> None:
    code = attributes.get("fuse_code", "none")
    if code not in _FUSE_CODES:
        raise InvalidModelError(f"fuse_code is {code!r} on a quantized result, expected one of {sorted(_FUSE_CODES)}")


def _keeping(rule: ShapeRule, first_only: bool) -> ShapeRule:
    """Return a shape rule whose results have the per-tensor quantization of the first input.

    Unless `first_only`, all inputs must have it.
    """

    def infer(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
        results = rule(types, attributes)
        first = _present(types, 0)
        quantization = first.quantization
        if quantization is None or quantization.axis is not None:
            return results
        if not first_only and any(type_ is None or type_.quantized != first.quantized for type_ in types):
            return results
        return tuple(OperandType(first.dtype, result.dimensions, result.layout, quantization) for result in results)

    return infer


def quantizable(schema: Row) -> Row:
    """Return the row with the shape rule and the result check that its `quantization` requires."""
    words = schema.quantization.split()
    infer, rule = schema.infer, schema.quantized
    if "product" in words:
        infer, rule = _accumulating(schema.type, infer), _product
    if "moves" in words:
        infer = _keeping(infer, first_only=schema.type != "CONCAT")
    if "table" in words or "real" in words:
        rule = _real
    return replace(schema, infer=infer, quantized=rule) if words else schema


def _always(schema: Row, rule: QuantizationRule) -> Row:
    return replace(schema, quantized=rule, always_quantized=True)


ROWS: tuple[Row, ...] = (
    _always(
        row(
            "QUANTIZE(input: float)",
            lambda first: like(first, dtype=DataType.INT8),
            2,
            "NNAPI QUANTIZE; NNADAPTER_QUANTIZE; ONNX QuantizeLinear-13: round(input / scale), half to even, plus zero "
            "point, saturated; the model defines data type and quantization of the result",
        ),
        _any,
    ),
    row(
        f"DEQUANTIZE(input: integer; to: string({'|'.join(sorted(FLOATING))}) = float32)",
        _dequantize,
        2,
        "NNAPI DEQUANTIZE; NNADAPTER_DEQUANTIZE; ONNX DequantizeLinear-13: (input - zero point) * scale",
    ),
    _always(
        row(
            "STORAGE_CAST(input: integer)",
            as_first,
            0,
            "ONNX DequantizeLinear-13, which declares the real values of integers; MLIR quant.scast: same integers",
            cost="view",
        ),
        _same_dtype,
    ),
)
