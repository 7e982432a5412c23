"""A function of `jax.numpy` as what computes an operation: in types that are wide enough, its results as said."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax.numpy as jnp

from nnadapter.drivers.tables.lowering import Computes
from nnadapter.drivers.xla.lowerings.activations import ACTIVATIONS
from nnadapter.drivers.xla.lowerings.conversion import converted
from nnadapter.drivers.xla.lowerings.integers import is_product, is_quantized, of_products, of_reals
from nnadapter.drivers.xla.packing import Pack, Packing
from nnadapter.ir.named_operation import NamedOperation
from nnadapter.ir.operand import DataType, Layout

Function = Callable[..., Any]
"""Values of the inputs, None for absent ones, and attributes by name -> the result, or a list of results."""

ALL_FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
ALL_NUMBERS = (*ALL_FLOATS, *INTEGERS)
HELD = (*ALL_NUMBERS, "bool")
"""Data types of operands."""
MOVED = (*HELD, "int4", "uint4")
"""What is moved, or becomes another type, may have 4 bits as well."""
LAYOUTS = ("NCHW", "NHWC")
"""What goes element by element, or says its axes, does not care for the layout."""

_NARROW = frozenset({DataType.FLOAT16, DataType.BFLOAT16})


def computes(operation: NamedOperation, function: Function, pack: Pack | None = None) -> Computes:
    """What computes `operation` by `function`.

    Floats of 16 bits are computed in float32 and rounded once, results have the data types that the operation says, and
    the activation that it fuses is applied.

    Args:
        operation: which.
        function: takes values and attributes.
        pack: what brings the second input into the form that `function` takes it in, where it is a constant.
    """
    attributes = {name: value for name, value in operation.attributes.items() if not name.startswith("fuse_")}
    finish = activation(operation)
    if is_product(operation):
        return of_products(operation, partial(function, **attributes), finish, pack)
    if is_quantized(operation.inputs[0]) and is_quantized(operation.output):
        return of_reals(operation, lambda *reals: finish(function(*reals, **attributes)))
    made = tuple(operand.type.dtype.array_type for operand in operation.outputs)

    def compute(*inputs: Any) -> Any:
        results = function(*map(widened, inputs), **attributes)
        if not isinstance(results, (list, tuple)):
            return converted(finish(results), made[0])
        return [converted(finish(result), dtype) for result, dtype in zip(results, made, strict=True)]

    return compute if pack is None else Packing(compute, {1: pack})


def moves(operation: NamedOperation, function: Function) -> Computes:
    """What moves the elements of `operation` by `function`, in the type that they have."""
    attributes = dict(operation.attributes)

    def compute(*inputs: Any) -> Any:
        return function(*inputs, **attributes)

    return compute


def channels_second(operation: NamedOperation, function: Function) -> Function:
    """`function`, which takes and gives [N, C, H, W], for pictures in the layout that the operation has."""
    if operation.input.type.layout is not Layout.NHWC:
        return function

    def turned(x: Any, *more: Any, **attributes: Any) -> Any:
        return function(x.transpose(0, 3, 1, 2), *more, **attributes).transpose(0, 2, 3, 1)

    return turned


def widened(value: Any) -> Any:
    """A value to compute with: what is narrower than float32 as float32."""
    if value is not None and value.dtype.name in _NARROW:
        return value.astype(jnp.float32)
    return value


def activation(operation: NamedOperation) -> Function:
    """The activation that an operation fuses."""
    code = str(operation.attributes.get("fuse_code", "none"))
    if code == "none":
        return jnp.asarray
    function = ACTIVATIONS[code]
    return lambda result: function(jnp.asarray(result), *operation.fuse_parameters)
