"""Boundary types of programs with dynamic shapes, shared among identical models."""

from __future__ import annotations

import pytest

from nnadapter.drivers.native import DynamicSignatures, NumberedSizes
from nnadapter.ir import DataType, ModelBuilder, OperandType
from nnadapter.ir.symbolic_numbers import SymbolicTrace


def model_of(rows: int, columns: int, width: int = 3, *, operation: str = "RELU"):
    """Build a model with two symbolic dimensions."""
    trace = SymbolicTrace()
    builder = ModelBuilder()
    dimensions = (trace.variable(rows), trace.variable(columns), width)
    x = builder.add_input("x", OperandType(DataType.FLOAT32, dimensions))
    (y,) = builder.add_operation(operation, (x,), outputs=["y"])
    return builder.finish([y]), trace


def sized(borders: DynamicSignatures, model, sizes):
    by_run = borders.of(model, NumberedSizes(model))
    return by_run.at(by_run.sizes.of(sizes))


def test_models_with_the_same_types_share_signatures():
    borders = DynamicSignatures()
    first, other = model_of(2, 5)[0], model_of(7, 4, operation="SIGMOID")[0]
    assert sized(borders, first, [6, 8]) is sized(borders, other, [6, 8])
    assert sized(borders, first, [6, 8]) is not sized(borders, first, [8, 6])
    assert sized(borders, first, [6, 8]) is not sized(borders, model_of(2, 5, 4)[0], [6, 8])


@pytest.mark.parametrize("sizes", [(6, 8), (0, 1), (1, 1), (3, 3)])
def test_signature_has_types_for_concrete_sizes(sizes):
    model, _ = model_of(2, 5)
    signature = sized(DynamicSignatures(), model, sizes)
    assert list(signature.c_sizes) == list(sizes)
    assert signature.types.inputs == tuple(model.type_at(operand).at(sizes) for operand in model.inputs)
    assert signature.types.outputs == tuple(model.type_at(operand).at(sizes) for operand in model.outputs)
    assert signature.types.inputs[0].dimensions == (*sizes, 3)


def test_old_signatures_are_evicted():
    borders = DynamicSignatures()
    model, _ = model_of(2, 5)
    first = sized(borders, model, [6, 8])
    for rows in range(20):
        sized(borders, model, [rows, 1])
    assert sized(borders, model, [6, 8]) is not first
