"""Reference interpreter of models: run operations one by one.

Floating-point values are float64 within an operation and rounded to the output's type afterwards, so that devices are
compared at the tolerance of their own arithmetic. Operations on images (see `IMAGES`) get `[N, C, H, W]` for either
layout.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from nnadapter.errors import DriverError
from nnadapter.ir.definition.attention import FUNCTIONS as ATTENTION
from nnadapter.ir.definition.convolution import FUNCTIONS as CONVOLUTION
from nnadapter.ir.definition.elementwise import ACTIVATIONS, NAMES, cast
from nnadapter.ir.definition.elementwise import FUNCTIONS as ELEMENTWISE
from nnadapter.ir.definition.elementwise import SHARED as SHARED_ELEMENTWISE
from nnadapter.ir.definition.indexing import FUNCTIONS as INDEXING
from nnadapter.ir.definition.linear_algebra import FUNCTIONS as LINEAR_ALGEBRA
from nnadapter.ir.definition.linear_algebra import SHARED as SHARED_LINEAR_ALGEBRA
from nnadapter.ir.definition.movement import FUNCTIONS as MOVEMENT
from nnadapter.ir.definition.movement import SHARED as SHARED_MOVEMENT
from nnadapter.ir.definition.normalization import FUNCTIONS as NORMALIZATION
from nnadapter.ir.definition.normalization import SHARED as SHARED_NORMALIZATION
from nnadapter.ir.definition.pooling import FUNCTIONS as POOLING
from nnadapter.ir.definition.quantization import quantized_function
from nnadapter.ir.definition.recurrent import FUNCTIONS as RECURRENT
from nnadapter.ir.definition.reduction import FUNCTIONS as REDUCTION
from nnadapter.ir.definition.reduction import SHARED as SHARED_REDUCTION
from nnadapter.ir.definition.resampling import FUNCTIONS as RESAMPLING
from nnadapter.ir.model import ABSENT, Model, Operation
from nnadapter.ir.operand import Array, DataType, Layout, dtype_name
from nnadapter.ir.operations import BROUGHT, SCHEMAS, schema_of
from nnadapter.ir.operations.windows import IMAGES


def by_definition(model: Model, inputs: Sequence[Array]) -> list[Array]:
    """Run `model`; return arrays in the order of `model.outputs`. `inputs` are in the order of `model.inputs`."""
    values: dict[int, Array] = {
        index: operand.value for index, operand in enumerate(model.operands) if operand.value is not None
    }
    for index, array in zip(model.inputs, inputs, strict=True):
        _expect(model, index, np.asarray(array))
        values[index] = np.asarray(array)
    for operation in model.operations:
        arguments = [None if index == ABSENT else values[index] for index in operation.inputs]
        results = _compute(model, operation, arguments)
        if operation.type not in SCHEMAS:
            _check_results(model, operation, results)
        for index, result in zip(operation.outputs, results, strict=True):
            values[index] = cast(result, model.operands[index].type.dtype)
            _expect(model, index, values[index])
    return [values[index] for index in model.outputs]


def _expect(model: Model, index: int, value: Array) -> None:
    operand = model.operands[index]
    assert value.shape == operand.type.dimensions, f"{operand.name}: {value.shape}, the model says {operand.type}"
    assert value.dtype == np.dtype(operand.type.dtype), f"{operand.name}: {value.dtype}, the model says {operand.type}"


def _check_results(model: Model, operation: Operation, results: Sequence[Any]) -> None:
    """Raise DriverError if an external definition disagrees with its own shape rule."""
    shapes = [np.shape(result) for result in results]
    expected = [model.operands[index].type.dimensions for index in operation.outputs]
    if shapes != expected:
        raise DriverError(
            f"the definition of {operation.type} of {BROUGHT.distribution_of(operation.type)} returned results of "
            f"shapes {shapes}, its shape rule infers {expected}; ask its vendor"
        )


def _compute(model: Model, operation: Operation, arguments: list[Array | None]) -> list[Array]:
    attributes = dict(operation.attributes)
    fuse_code, parameters = attributes.pop("fuse_code", "none"), attributes.pop("fuse_parameters", ())
    wide: list[Any] = [_widened(value, operation.type) for value in arguments]
    channels_last = model.operands[operation.inputs[0]].type.layout is Layout.NHWC and operation.type in IMAGES
    if channels_last:
        wide[0] = np.transpose(wide[0], (0, 3, 1, 2))
    with np.errstate(all="ignore"):
        activation = ACTIVATIONS.get(str(fuse_code), _as_it_is)
        function: Any = quantized_function(model, operation, _function_of(operation.type))
        activation_parameters: tuple[Any, ...] = parameters if isinstance(parameters, tuple) else ()
        results = function(*wide, finish=lambda result: activation(result, *activation_parameters), **attributes)
    return [np.transpose(result, (0, 2, 3, 1)) for result in results] if channels_last else results


def _function_of(type_: str) -> Callable[..., Any] | None:
    return FUNCTIONS.get(type_) or (None if type_ in SCHEMAS else schema_of(type_).definition)


def _as_it_is(result: Array) -> Array:
    return result


def _widened(value: Array | None, operation: str) -> Any:
    if value is None or operation == "BIT_CAST" or not DataType(dtype_name(value.dtype)).is_floating:
        return value
    if operation in _MOVING and value.dtype == np.float32:
        return value  # moving elements needs no extra precision
    return value.astype(np.float64)


_MOVING = frozenset({"RESHAPE", "TRANSPOSE", "EXPAND", "TILE", "CONCAT", "SPLIT", "SLICE", "GATHER", "GATHER_ELEMENTS"})

_NAMES = dict(pair.split() for pair in NAMES.split(","))
_SHARED = {**SHARED_ELEMENTWISE, **SHARED_LINEAR_ALGEBRA, **SHARED_MOVEMENT, **SHARED_NORMALIZATION, **SHARED_REDUCTION}


def functions_over(xp: Any) -> dict[str, Callable[..., Any]]:
    """Return the definitions that work over any array namespace, for one of them: numpy or jax.numpy."""
    named = {type_: getattr(xp, name) for type_, name in _NAMES.items()}
    return named | {type_: partial(function, xp) for type_, function in _SHARED.items()}


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **functions_over(np),
    **ATTENTION,
    **CONVOLUTION,
    **ELEMENTWISE,
    **INDEXING,
    **LINEAR_ALGEBRA,
    **MOVEMENT,
    **NORMALIZATION,
    **POOLING,
    **RECURRENT,
    **REDUCTION,
    **RESAMPLING,
}
"""Operation type -> function, except for quantized operands; see `quantization`."""
