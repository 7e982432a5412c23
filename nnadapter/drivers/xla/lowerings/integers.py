"""What quantized operands stand for, and products of them.

Sums of products are exact: factors are whole numbers once zero points are subtracted, and float32 has every whole
number up to 2^24, float64 up to 2^53. Which of the two is needed follows from the largest sum that there can be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from nnadapter.drivers.tables.lowering import Computes
from nnadapter.drivers.xla.packing import Pack, Packing
from nnadapter.ir.named_operation import NamedOperation
from nnadapter.ir.operand import Array, Operand, OperandType
from nnadapter.ir.operations.quantization import PRODUCTS
from nnadapter.ir.quantized import integer_range

QUANTIZED = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int4", "uint4")
"""Data types of quantized operands."""
COMPUTED = ("int8", "uint8", "int32")
"""Those that are computed with."""

_EXACT_IN_FLOAT32 = 1 << 24


def _spread(values: Sequence[float], type_: OperandType, dtype: Any) -> Array:
    """Scales or zero points so that they broadcast along their axis."""
    axis = None if type_.quantization is None else type_.quantization.axis
    shape = () if axis is None else [-1 if dim == axis else 1 for dim in range(type_.rank)]
    return np.array(values, dtype).reshape(shape)


def _parts(type_: OperandType) -> tuple[Array, Array]:
    """Scales and zero points."""
    assert type_.quantization is not None
    return _spread(type_.quantization.scale, type_, np.float32), _spread(type_.quantization.zero_point, type_, np.int64)


def _centered(x: Any, type_: OperandType, dtype: Any) -> Any:
    """Integers without their zero points, in a type that has all of them."""
    zero_point = _parts(type_)[1]
    wide = jnp.int64 if type_.dtype.itemsize >= 4 else jnp.int32
    return (x.astype(wide) - zero_point.astype(wide)).astype(dtype)


def to_reals(x: Any, type_: OperandType) -> Any:
    """The reals that quantized integers stand for, in float32."""
    return _centered(x, type_, jnp.float32) * _parts(type_)[0]


def to_integers(x: Any, type_: OperandType) -> Any:
    """Reals as the integers of a quantized type, rounded to even and kept within it."""
    scale, zero_point = _parts(type_)
    return _saturated(jnp.rint(x.astype(jnp.float32) / scale), zero_point, type_)


def _saturated(rounded: Any, zero_point: Array, type_: OperandType) -> Any:
    """NaN is the smallest integer."""
    smallest, largest = integer_range(type_.dtype)
    made = type_.dtype.array_type
    if type_.dtype.itemsize <= 2:  # float32 has all of these numbers, and what is added to them
        moved = jnp.clip(rounded, smallest - largest - 1, 2 * largest + 1 - smallest) + zero_point.astype(np.float32)
        kept = jnp.clip(moved, smallest, largest)
        return jnp.where(jnp.isnan(kept), smallest, kept).astype(jnp.int32).astype(made)
    whole = jnp.where(jnp.isnan(rounded), smallest - 512.0, rounded.astype(jnp.float64))
    moved = jnp.clip(whole, -(2.0**40), 2.0**40).astype(jnp.int64) + zero_point
    return jnp.clip(moved, smallest, largest).astype(made)


def is_quantized(operand: Operand | None) -> bool:
    """Whether an operand holds integers that stand for reals."""
    return operand is not None and operand.type.quantization is not None


def of_reals(operation: NamedOperation, function: Callable[..., Any]) -> Callable[..., Any]:
    """What computes with the reals that operands stand for, and gives integers again; `function` gives one result."""
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
    """The largest integer of a type without its zero point."""
    smallest, largest = integer_range(type_.dtype)
    assert type_.quantization is not None
    return max(max(largest - point, point - smallest) for point in type_.quantization.zero_point)


def _largest_sum(operation: NamedOperation) -> int:
    """The largest sum of products that the types allow."""
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


def of_products(
    operation: NamedOperation, function: Callable[..., Any], finish: Callable[..., Any], pack: Pack | None
) -> Computes:
    """What adds up products of integers, and scales the sums where the result is quantized.

    Args:
        operation: one of `PRODUCTS`, whose operands are quantized.
        function: the operation on floats, without attributes.
        finish: the activation of reals.
        pack: what brings a constant second input into the form that `function` takes it in.
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
    """Whether it adds up products of quantized integers."""
    return operation.type in PRODUCTS and is_quantized(operation.inputs[0])
