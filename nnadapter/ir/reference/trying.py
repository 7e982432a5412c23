"""Examples, run by the definition."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nnadapter.errors import FAILURES, InvalidModelError, describe
from nnadapter.ir.builder import ModelBuilder
from nnadapter.ir.definition import FUNCTIONS, by_definition
from nnadapter.ir.definition.quantized import QUANTIZED_FUNCTIONS
from nnadapter.ir.model import ABSENT, Model
from nnadapter.ir.operand import Array, DataType, OperandType
from nnadapter.ir.operations import schema_of
from nnadapter.ir.reference.meaning import Example
from nnadapter.ir.verification import verify


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tried:
    """An example with what came of it."""

    model: Model
    """The example as a model of one operation."""
    inputs: tuple[tuple[OperandType, Array] | None, ...]
    """By role, None where an optional one is absent."""
    outputs: tuple[tuple[OperandType, Array | None], ...]
    """Computed by definition; None where there is none."""
    flops: int
    """By the row's formula."""


def tried(type_: str, example: Example) -> Tried:
    """Return an example with its results.

    Raises:
        InvalidModelError: inputs or attributes do not fit the operation, or a definition from outside fails.
    """
    builder = ModelBuilder()
    quantizations = (*example.quantizations, *[None] * len(example.inputs))
    types = [
        None
        if array is None
        else OperandType(DataType(array.dtype.name), array.shape, quantization=quantizations[position])
        for position, array in enumerate(example.inputs)
    ]
    operands = [
        ABSENT if input_type is None else builder.add_input(f"input{position}", input_type)
        for position, input_type in enumerate(types)
    ]
    results = builder.add_operation(type_, operands, example.attributes, quantized=example.results)
    model = builder.finish(results)
    verify(model)
    attributes = model.operations[0].attributes
    result_types = [model.type_at(result) for result in results]
    arrays = [array for array in example.inputs if array is not None]
    return Tried(
        model=model,
        inputs=tuple(
            None if array is None or input_type is None else (input_type, array)
            for input_type, array in zip(types, example.inputs, strict=True)
        ),
        outputs=tuple(zip(result_types, _results(model, arrays), strict=True)),
        flops=schema_of(type_).flops(types, result_types, attributes),
    )


def _results(model: Model, arrays: Sequence[Array]) -> Sequence[Array | None]:
    (operation,) = model.operations
    if operation.type in FUNCTIONS or operation.type in QUANTIZED_FUNCTIONS:
        return by_definition(model, arrays)
    if schema_of(operation.type).definition is None:
        return [None] * len(operation.outputs)
    try:
        return by_definition(model, arrays)
    except FAILURES as error:
        message = f"the definition of {operation.type} fails with its own example: {describe(error)}; ask its vendor"
        raise InvalidModelError(message) from error
