"""Reference implementations: operations on quantized operands; integers in int64, reals in float32."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from nnadapter.ir import ABSENT, Array, DataType, Model, OperandType, Operation, Quantization, QuantizedType
from nnadapter.ir.operand_checks import integer_range
from nnadapter.ir.operations import MOVERS, PRODUCTS, REALS


def quantized_function(model: Model, operation: Operation, plain: Callable[..., Any] | None) -> Callable[..., Any]:
    """Return an operation's function for quantized operands. It wraps `plain`, except for operations in `FUNCTIONS`.

    The returned function takes the inputs, the attributes, and `finish`, the fused activation.
    """
    types = [None if index == ABSENT else model.operands[index].type for index in operation.inputs]
    result = model.operands[operation.outputs[0]].type
    if operation.type in FUNCTIONS:
        function: Callable[..., Any] = FUNCTIONS[operation.type](types, result)
        return function
    assert plain is not None
    first = types[0]
    if first is None or first.quantization is None:
        return _finished(plain)
    if operation.type in PRODUCTS:
        return _product(plain, types, result, 1 if operation.type.startswith("CONV_2D") else -1)
    moves = operation.type in MOVERS and all(type_ is None or type_.quantized == result.quantized for type_ in types)
    if result.quantization is not None and operation.type in REALS and not moves:
        return _real(plain, types, result)
    return _finished(plain)


def _finished(plain: Callable[..., Any]) -> Callable[..., Any]:
    def function(*inputs: Array, finish: Any, **attributes: Any) -> Any:
        results = plain(*inputs, **attributes)
        results = list(results) if isinstance(results, list | tuple) else [results]
        return [finish(result) for result in results]

    return function


def _parts(type_: OperandType | None) -> tuple[Array, Array]:
    """Return scales and zero points, in a shape that broadcasts along their axis."""
    assert type_ is not None and type_.quantization is not None
    quantization = type_.quantization
    axis = quantization.axis
    shape = () if axis is None else [-1 if dimension == axis else 1 for dimension in range(type_.rank)]
    scale, zero_point = np.array(quantization.scale, np.float32), np.array(quantization.zero_point, np.int64)
    return scale.reshape(shape), zero_point.reshape(shape)


def to_reals(x: Array, type_: OperandType | None) -> Array:
    """Return the real values of quantized integers, in float32."""
    scale, zero_point = _parts(type_)
    return (x.astype(np.int64) - zero_point).astype(np.float32) * scale


def to_integers(x: Array, type_: OperandType) -> Array:
    """Quantize real values: round half to even and saturate."""
    scale, zero_point = _parts(type_)
    with np.errstate(all="ignore"):
        rounded = np.rint(x.astype(np.float32) / scale)
    return _saturated(rounded, zero_point, type_)


def _saturated(rounded: Array, zero_point: Array, type_: OperandType) -> Array:
    smallest, largest = integer_range(type_.dtype)
    finite = np.clip(np.nan_to_num(rounded.astype(np.float64), nan=smallest - 512.0), -(2.0**40), 2.0**40)
    return np.clip(finite.astype(np.int64) + zero_point, smallest, largest)


def _quantize(types: Any, result: OperandType) -> Callable[..., Any]:
    return lambda x, finish: [to_integers(x, result)]


def _dequantize(types: Any, result: OperandType) -> Callable[..., Any]:
    return lambda x, finish, to: [to_reals(x, types[0])]


def _same(types: Any, result: OperandType) -> Callable[..., Any]:
    return lambda x, finish: [x]


FUNCTIONS: Mapping[str, Callable[..., Any]] = {"QUANTIZE": _quantize, "DEQUANTIZE": _dequantize, "STORAGE_CAST": _same}
"""Operation type -> factory that makes its function for given input types and result type."""


def _product(plain: Callable[..., Any], types: Any, result: OperandType, channels: int) -> Callable[..., Any]:
    def function(x: Array, y: Array, bias: Array | None = None, *, finish: Any, **attributes: Any) -> Any:
        (x_scale, x_zero), (y_scale, y_zero) = map(_parts, types[:2])
        sums = plain(x.astype(np.int64) - x_zero, y.astype(np.int64) - y_zero, **attributes)
        sums = sums.astype(np.int64)
        along = [1] * sums.ndim
        if sums.ndim:
            along[channels] = -1
        if bias is not None:
            sums = sums + bias.astype(np.int64).reshape(along)
        if result.quantization is None:
            return [sums]
        scale, zero_point = _parts(result)
        per_channel = y_scale.reshape(along) if y_scale.size > 1 else y_scale.reshape(())
        factors = x_scale * per_channel / scale
        integers = _saturated(np.rint(sums.astype(np.float32) * factors), zero_point, result)
        # multiples of the scale survive requantization unless the activation changes them
        return [to_integers(finish(to_reals(integers, result)), result)]

    return function


def _real(plain: Callable[..., Any], types: Any, result: OperandType) -> Callable[..., Any]:
    def function(*inputs: Array, finish: Any, **attributes: Any) -> Any:
        # float64, rounded once, as for all floats
        reals = [to_reals(x, type_).astype(np.float64) for x, type_ in zip(inputs, types, strict=True)]
        computed = finish(np.asarray(plain(*reals, **attributes), np.float32))
        return [to_integers(computed.astype(np.float32), result)]

    return function


DOCS = """\
# QUANTIZE: Convert reals to the integers of a quantized operand.
| output = saturated(rint(input / scale) + zero_point)
input: Reals; converted to float32.
-> output: The dimensions of `input`. Data type, scale, zero point and axis come from the type of the result, not from
  attributes.
- Halves round to even, before the zero point is added.
- Numbers out of range saturate.
- Along an axis, there is one scale and zero point for each index.
- The result for NaN is undefined.
example: [-6.0, -0.25, 0.25, 0.75, 200.0]
# DEQUANTIZE: The real values of a quantized operand.
| output = (input - zero_point) * scale
input: A quantized operand of any integer type, with scale, zero point and axis in its type.
-> output: The data type `to`; dimensions and layout of `input`; not quantized.
- Subtract in more bits than the operand has: 0 - 255 does not fit int8 or uint8.
- Computed in float32, even if `to` is float64.
- Operands that are not quantized are rejected; use CAST.
example: uint8([0, 10, 11, 255])
# STORAGE_CAST: The same integers, reinterpreted as quantized.
| output = input
input: Integers.
-> output: Data type and dimensions of `input`. Scale, zero point and axis come from the type of the result, not from
  attributes.
- Nothing is computed: the result may share the memory of the input.
example: uint8([1, 2, 3])
"""

_HALVES = Quantization(scale=(0.5,), zero_point=(10,))
_BYTES = QuantizedType(DataType.UINT8, _HALVES)
EXAMPLES: Mapping[str, tuple[tuple[Quantization | None, ...], tuple[QuantizedType | None, ...]]] = {
    "QUANTIZE": ((), (_BYTES,)),
    "DEQUANTIZE": ((_HALVES,), ()),
    "STORAGE_CAST": ((), (_BYTES,)),
}
"""Operation type -> input quantizations and result types of its example."""
