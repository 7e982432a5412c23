"""A function of `jax.numpy` as what computes an operation: in a type that is wide enough, its results as they should be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp

from nnadapter.drivers.tables.lowering import Computes
from nnadapter.drivers.xla.lowerings.activations import ACTIVATIONS
from nnadapter.drivers.xla.lowerings.conversion import converted
from nnadapter.drivers.xla.lowerings.integers import is_product, is_quantized, of_products, of_reals
from nnadapter.ir.named_operation import NamedOperation
from nnadapter.ir.operand import DataType

Function = Callable[..., Any]
"""Values of the inputs, None for absent ones, and attributes by name -> the result, or a list of results."""

ALL_FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
ALL_NUMBERS = (*ALL_FLOATS, *INTEGERS)
HELD = (*ALL_NUMBERS, "bool")
"""Data types of operands: what moves takes all of them."""
LAYOUTS = ("NCHW", "NHWC")
"""What goes element by element, or says its axes, does not care for the layout."""

_NARROW = frozenset({DataType.FLOAT16, DataType.BFLOAT16})


def computes(operation: NamedOperation, function: Function, *more: Any) -> Computes:
    """What computes `operation` by `function`.

    Floats of 16 bits are computed in float32 and rounded once, results have the data types that the operation says, and
    the activation that it fuses is applied.

    Args:
        operation: which.
        function: takes values and attributes.
        more: what it is given behind the values of the inputs.
    """
    attributes = dict(operation.attributes)
    finish = activation(operation, attributes)
    if is_product(operation):
        return of_products(operation, partial(function, **attributes), finish)
    if is_quantized(operation.inputs[0]) and is_quantized(operation.output):
        return of_reals(operation, lambda *reals: finish(function(*reals, *more, **attributes)))
    made = tuple(operand.type.dtype.array_type for operand in operation.outputs)

    def compute(*inputs: Any) -> Any:
        results = function(*map(widened, inputs), *more, **attributes)
        if not isinstance(results, (list, tuple)):
            return converted(finish(results), made[0])
        return [converted(finish(result), dtype) for result, dtype in zip(results, made, strict=True)]

    return compute if len(made) == 1 and not operation.schema.variadic_outputs else several(compute)


def several(compute: Computes) -> Computes:
    """The same, that gives a list also where it is of one."""

    def computed(*inputs: Any) -> Any:
        results = compute(*inputs)
        return results if isinstance(results, (list, tuple)) else [results]

    return computed


def moves(operation: NamedOperation, function: Function, *more: Any) -> Computes:
    """What moves the elements of `operation` by `function`, in the type that they have."""
    attributes = dict(operation.attributes)

    def compute(*inputs: Any) -> Any:
        return function(*inputs, *more, **attributes)

    return compute


def widened(value: Any) -> Any:
    """A value to compute with: what is narrower than float32 as float32."""
    if value is not None and value.dtype.name in _NARROW:
        return value.astype(jnp.float32)
    return value


def activation(operation: NamedOperation, attributes: Mapping[str, Any]) -> Function:
    """The activation that an operation fuses; its attributes are taken out of `attributes`."""
    assert isinstance(attributes, dict)
    code, parameters = attributes.pop("fuse_code", "none"), attributes.pop("fuse_parameters", ())
    if code == "none":
        return jnp.asarray
    function = ACTIVATIONS[code]
    return lambda result: function(jnp.asarray(result), *parameters)


def lowered_by(functions: Mapping[str, Function]) -> Callable[[NamedOperation], Computes]:
    """Lower operations that compute, each by its function."""
    return lambda operation: computes(operation, functions[operation.type])


def moved_by(functions: Mapping[str, Function]) -> Callable[[NamedOperation], Computes]:
    """Lower operations that move, each by its function."""
    return lambda operation: moves(operation, functions[operation.type])


def dimensions(operation: NamedOperation) -> Sequence[int]:
    """Dimensions of the first result."""
    return operation.output.type.dimensions
