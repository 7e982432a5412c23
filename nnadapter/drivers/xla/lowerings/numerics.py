"""Numeric rules of XLA lowerings: conversions, activations, quantized operands, wide accumulation.

Sums of quantized products are exact whole numbers, in float32 up to 2^24, otherwise in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nnadapter.drivers.table_lowering import Computes, Lowers, lowers
from nnadapter.drivers.xla.compilation import Pack, Packing
from nnadapter.ir import Array, DataType, Layout, NamedOperation, Operand, OperandType
from nnadapter.ir.definition.models import functions_over
from nnadapter.ir.operand_checks import integer_range
from nnadapter.ir.operations import PRODUCTS

Function = Callable[..., Any]
"""Function of inputs (None if absent) and named attributes, which returns results."""
SHARED = functions_over(jnp)


def shared(types: str) -> dict[str, Function]:
    """Return the definitions of operation types (separated by spaces) that all devices share."""
    return {type_: SHARED[type_] for type_ in types.split()}


def converted(x: Any, dtype: Any) -> Any:
    """Convert a value to a data type; for booleans, nonzero is true.

    Floats become integers through int32 or int64. As on CPUs, floats outside that type's range become its smallest
    number.
    """
    if dtype.kind == "b":
        return x != 0
    if not jnp.issubdtype(x.dtype, jnp.floating) or not jnp.issubdtype(dtype, jnp.integer):
        return x.astype(dtype)
    wide = jnp.int64 if dtype in (jnp.int64, jnp.uint32, jnp.uint64) else jnp.int32
    if dtype == jnp.uint64:
        return jnp.where(x < 0, converted(x, np.dtype(np.int64)).astype(dtype), x.astype(dtype))
    bound = 2.0 ** (8 * jnp.dtype(wide).itemsize - 1)
    reals = x if x.dtype.itemsize >= 4 else x.astype(jnp.float32)
    has = (reals >= -bound) & (reals < bound)
    return jnp.where(has, reals.astype(wide), jnp.iinfo(wide).min).astype(dtype)


_HALF_OF_SQUARE_ROOT = float(np.sqrt(0.5))


def gelu(x: Any, approximate: str = "none") -> Any:
    """Compute GELU, or its tanh approximation."""
    if approximate == "tanh":
        return 0.5 * x * (1 + jnp.tanh(float(np.sqrt(2 / np.pi)) * (x + 0.044715 * x * x * x)))
    return 0.5 * x * jax.lax.erfc(-x * _HALF_OF_SQUARE_ROOT)


def swish(x: Any, alpha: float = 1.0) -> Any:
    """Compute x * sigmoid(alpha * x)."""
    return x * jax.nn.sigmoid(alpha * x)


def clip(x: Any, min: float, max: float) -> Any:  # noqa: A002  names of the attributes
    """Clip to bounds that are limited to the range of the data type."""
    if jnp.issubdtype(x.dtype, jnp.floating):
        return jnp.minimum(jnp.maximum(x, min), max)
    smallest, largest = integer_range(DataType(x.dtype.name))
    low, high = (_within(value, smallest, largest) for value in (min, max))
    return jnp.minimum(jnp.maximum(x, jnp.asarray(low, x.dtype)), jnp.asarray(high, x.dtype))


def _within(value: float, smallest: int, largest: int) -> int:
    return smallest if value <= smallest else largest if value >= largest else int(value)


ACTIVATIONS: Mapping[str, Function] = {
    "relu": SHARED["RELU"],
    "clip": clip,
    "sigmoid": jax.nn.sigmoid,
    "hard_sigmoid": SHARED["HARD_SIGMOID"],
    "hard_swish": SHARED["HARD_SWISH"],
    "tanh": jnp.tanh,
    "leaky_relu": SHARED["LEAKY_RELU"],
    "gelu": gelu,
    "gelu_tanh": lambda x: gelu(x, "tanh"),
    "swish": swish,
}


QUANTIZED = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int4", "uint4")
COMPUTED = ("int8", "uint8", "int32")

_EXACT_IN_FLOAT32 = 1 << 24


def _spread(values: Sequence[float], type_: OperandType, dtype: Any) -> Array:
    axis = None if type_.quantization is None else type_.quantization.axis
    shape = () if axis is None else [-1 if dim == axis else 1 for dim in range(type_.rank)]
    return np.array(values, dtype).reshape(shape)


def _parts(type_: OperandType) -> tuple[Array, Array]:
    assert type_.quantization is not None
    return _spread(type_.quantization.scale, type_, np.float32), _spread(type_.quantization.zero_point, type_, np.int64)


def _centered(x: Any, type_: OperandType, dtype: Any) -> Any:
    zero_point = _parts(type_)[1]
    wide = jnp.int64 if type_.dtype.itemsize >= 4 else jnp.int32
    return (x.astype(wide) - zero_point.astype(wide)).astype(dtype)


def to_reals(x: Any, type_: OperandType) -> Any:
    """Dequantize to float32."""
    return _centered(x, type_, jnp.float32) * _parts(type_)[0]


def to_integers(x: Any, type_: OperandType) -> Any:
    """Quantize: round half to even and saturate."""
    scale, zero_point = _parts(type_)
    return _saturated(jnp.rint(x.astype(jnp.float32) / scale), zero_point, type_)


def _saturated(rounded: Any, zero_point: Array, type_: OperandType) -> Any:
    smallest, largest = integer_range(type_.dtype)
    dtype = type_.dtype.array_type
    if type_.dtype.itemsize <= 2:  # exact in float32
        moved = jnp.clip(rounded, smallest - largest - 1, 2 * largest + 1 - smallest) + zero_point.astype(np.float32)
        clipped = jnp.clip(moved, smallest, largest)
        return jnp.where(jnp.isnan(clipped), smallest, clipped).astype(jnp.int32).astype(dtype)
    wide = jnp.where(jnp.isnan(rounded), smallest - 512.0, rounded.astype(jnp.float64))
    moved = jnp.clip(wide, -(2.0**40), 2.0**40).astype(jnp.int64) + zero_point
    return jnp.clip(moved, smallest, largest).astype(dtype)


def is_quantized(operand: Operand | None) -> bool:
    """Check for a quantized operand."""
    return operand is not None and operand.type.quantization is not None


def of_reals(operation: NamedOperation, function: Function) -> Function:
    """Return a function that dequantizes its operands, calls `function`, and quantizes the result."""
    types = [None if operand is None else operand.type for operand in operation.inputs]
    result = operation.output.type

    def compute(*inputs: Any) -> Any:
        reals = [
            x if type_ is None or type_.quantization is None else to_reals(x, type_)
            for x, type_ in zip(inputs, types, strict=True)
        ]
        return to_integers(function(*reals).astype(jnp.float32), result)

    return compute


def _magnitude(type_: OperandType) -> int:
    smallest, largest = integer_range(type_.dtype)
    assert type_.quantization is not None
    return max(max(largest - point, point - smallest) for point in type_.quantization.zero_point)


def _largest_sum(operation: NamedOperation) -> int:
    first, second = (operand.type for operand in operation.inputs[:2])  # type: ignore[union-attr]
    if operation.type == "MAT_MUL":
        depth = first.dimensions[-2 if operation.transpose_x and first.rank > 1 else -1]
    else:
        depth = prod(second.dimensions[1:])
    bias = operation.inputs[2] if len(operation.inputs) > 2 else None
    more = 0 if bias is None else 1 << 31
    if bias is not None and bias.value is not None:
        more = int(np.abs(bias.value.astype(np.int64)).max(initial=0))
    return depth * _magnitude(first) * _magnitude(second) + more


def of_products(operation: NamedOperation, function: Function, finish: Function, pack: Pack | None) -> Computes:
    """Return the computation of a product of quantized operands, by exact integer sums.

    The sums are requantized if the output is quantized.
    """
    first, second = (operand.type for operand in operation.inputs[:2])  # type: ignore[union-attr]
    result = operation.output.type
    exact = jnp.float32 if _largest_sum(operation) < _EXACT_IN_FLOAT32 else jnp.float64
    channels = 1 if operation.type == "CONV_2D" else -1
    if result.layout == "NHWC":
        channels = -1

    is_packed = operation.inputs[1].value is not None  # type: ignore[union-attr]

    def packed(weight: Array) -> Array:
        centered = _centered(weight, second, exact)
        return centered if pack is None else pack(centered)

    def compute(x: Any, y: Any, bias: Any = None) -> Any:
        with jax.default_matmul_precision("highest"):
            sums = function(_centered(x, first, exact), y if is_packed else _centered(y, second, exact))
        along = [1] * sums.ndim
        if sums.ndim:
            along[channels] = -1
        if bias is not None:
            sums = sums + bias.astype(exact).reshape(along)
        if result.quantization is None:
            return sums.astype(jnp.int64).astype(jnp.int32)
        scale, zero_point = _parts(result)
        factors = (_parts(first)[0] * _parts(second)[0].reshape(-1) / scale).astype(np.float32)
        spread = factors.reshape(along) if factors.size > 1 else factors.reshape(())
        integers = _saturated(jnp.rint(sums.astype(jnp.float32) * spread), zero_point, result)
        return to_integers(finish(to_reals(integers, result)), result)

    return Packing(compute, {1: packed}) if is_packed else compute


def is_product(operation: NamedOperation) -> bool:
    """Check for an operation that sums products of quantized operands."""
    return operation.type in PRODUCTS and is_quantized(operation.inputs[0])


ALL_FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
ALL_NUMBERS = (*ALL_FLOATS, *INTEGERS)
HELD = (*ALL_NUMBERS, "bool")
MOVED = (*HELD, "int4", "uint4")
LAYOUTS = ("NCHW", "NHWC")

_NARROW = frozenset({DataType.FLOAT16, DataType.BFLOAT16})


def computes(operation: NamedOperation, function: Function, pack: Pack | None = None) -> Computes:
    """Return the computation of an operation: `function`, type conversions, and the fused activation.

    `pack` packs a constant second input. 16-bit floats are computed in float32 and rounded once.
    """
    attributes = {name: value for name, value in operation.attributes.items() if not name.startswith("fuse_")}
    finish = activation(operation)
    if is_product(operation):
        return of_products(operation, partial(function, **attributes), finish, pack)
    if is_quantized(operation.inputs[0]) and is_quantized(operation.output):
        return of_reals(operation, lambda *reals: finish(function(*reals, **attributes)))
    dtypes = tuple(operand.type.dtype.array_type for operand in operation.outputs)

    def compute(*inputs: Any) -> Any:
        results = function(*map(widened, inputs), **attributes)
        if not isinstance(results, (list, tuple)):
            return converted(finish(results), dtypes[0])
        return [converted(finish(result), dtype) for result, dtype in zip(results, dtypes, strict=True)]

    return compute if pack is None else Packing(compute, {1: pack})


def moves(operation: NamedOperation, function: Function) -> Computes:
    """Return the computation of an operation that moves elements, without conversions."""
    attributes = dict(operation.attributes)

    def compute(*inputs: Any) -> Any:
        return function(*inputs, **attributes)

    return compute


def direct(functions: Mapping[str, Function], how: Callable[..., Computes], **limits: Any) -> Lowers:
    """Return one lowering for all operations in `functions`; `how` is `computes` or `moves`."""

    def lower(operation: NamedOperation) -> Computes:
        return how(operation, functions[operation.type])

    return lowers(*functions, **limits)(lower)


def channels_second(operation: NamedOperation, function: Function) -> Function:
    """Adapt a function of [N, C, H, W] to the layout of the operation's input."""
    if operation.input.type.layout is not Layout.NHWC:
        return function

    def turned(x: Any, *more: Any, **attributes: Any) -> Any:
        return function(x.transpose(0, 3, 1, 2), *more, **attributes).transpose(0, 2, 3, 1)

    return turned


def widened(value: Any) -> Any:
    """Widen 16-bit floats to float32."""
    if value is not None and value.dtype.name in _NARROW:
        return value.astype(jnp.float32)
    return value


def activation(operation: NamedOperation) -> Function:
    """Return an operation's fused activation."""
    code = str(operation.attributes.get("fuse_code", "none"))
    if code == "none":
        return jnp.asarray
    function = ACTIVATIONS[code]
    return lambda result: function(jnp.asarray(result), *operation.fuse_parameters)
