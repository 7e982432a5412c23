"""Reference interpreter of models: run operations one by one.

Floating-point values are float64 within an operation and rounded to the output's type afterwards. Deviations of devices
are then due to their own arithmetic. Operations on images (see `IMAGES`) get `[N, C, H, W]` for either layout.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from nnadapter.errors import DriverError
from nnadapter.ir.definition.elementwise import NAMES, cast
from nnadapter.ir.definition.quantization import quantized_function
from nnadapter.ir.model import ABSENT, Model, Operation
from nnadapter.ir.operand import Array, DataType, Layout, dtype_name
from nnadapter.ir.operations import BROUGHT, FAMILIES, SCHEMAS, schema_of
from nnadapter.ir.operations.windows import FUSE_CODES, IMAGES


def by_definition(model: Model, inputs: Sequence[Array]) -> list[Array]:
    """Run `model`; inputs and results are in the order of `model.inputs` and `model.outputs`."""
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
    shapes = [np.shape(result) for result in results]
    expected = [model.operands[index].type.dimensions for index in operation.outputs]
    if shapes != expected:
        raise DriverError(
            f"the definition of {operation.type} of {BROUGHT.distribution_of(operation.type)} returned results of "
            f"shapes {shapes}, its shape rule infers {expected}; ask its vendor"
        )


def _compute(model: Model, operation: Operation, arguments: list[Array | None]) -> list[Array]:
    attributes: dict[str, Any] = dict(operation.attributes)
    fuse_code, parameters = attributes.pop("fuse_code", "none"), attributes.pop("fuse_parameters", ())
    wide: list[Any] = [_widened(value, operation.type) for value in arguments]
    channels_last = model.operands[operation.inputs[0]].type.layout is Layout.NHWC and operation.type in IMAGES
    if channels_last:
        wide[0] = np.transpose(wide[0], (0, 3, 1, 2))
    with np.errstate(all="ignore"):
        definition = FUNCTIONS.get(operation.type) or schema_of(operation.type).definition
        function: Any = quantized_function(model, operation, definition)
        activation = _ACTIVATIONS[fuse_code]
        results = function(*wide, finish=lambda result: activation(result, *parameters), **attributes)
    return [np.transpose(result, (0, 2, 3, 1)) for result in results] if channels_last else results


def _widened(value: Array | None, operation: str) -> Any:
    if value is None or operation == "BIT_CAST" or not DataType(dtype_name(value.dtype)).is_floating:
        return value
    if operation in _MOVING and value.dtype == np.float32:
        return value  # moving elements needs no extra precision
    return value.astype(np.float64)


_MOVING = frozenset({"RESHAPE", "TRANSPOSE", "EXPAND", "TILE", "CONCAT", "SPLIT", "SLICE", "GATHER", "GATHER_ELEMENTS"})

_NAMES = dict(pair.split() for pair in NAMES.split(","))
_FAMILIES = [
    import_module(f"nnadapter.ir.definition.{name}") for name in FAMILIES if name not in ("custom", "quantization")
]


def functions_over(xp: Any) -> dict[str, Callable[..., Any]]:
    """Return the definitions that work over any array namespace, applied to `xp`: numpy or jax.numpy."""
    named = {type_: getattr(xp, name) for type_, name in _NAMES.items()}
    shared = ChainMap(*(family.SHARED for family in _FAMILIES if hasattr(family, "SHARED")))
    return named | {type_: partial(function, xp) for type_, function in shared.items()}


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **functions_over(np),
    **ChainMap(*(family.FUNCTIONS for family in _FAMILIES)),
}
"""Operation type -> function for operands without quantization; for others, see `quantization`."""

_ACTIVATIONS: Mapping[str, Callable[..., Any]] = {
    **{code: FUNCTIONS[code.upper()] for code in FUSE_CODES if code.upper() in FUNCTIONS},
    "none": lambda result: result,
    "gelu_tanh": partial(FUNCTIONS["GELU"], approximate="tanh"),
    "swish": partial(FUNCTIONS["SWISH"], alpha=1.0),
}
"""Fuse code -> activation, which gets `fuse_parameters`."""
