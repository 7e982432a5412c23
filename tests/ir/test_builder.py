"""What the builder says to somebody who builds by hand."""

from __future__ import annotations

import numpy as np
import pytest

from nnadapter.errors import InvalidModelError
from nnadapter.ir import DataType, ModelBuilder, OperandType

_VECTOR = OperandType(DataType.FLOAT32, (3,))


def test_types_may_be_written_as_words_and_lists():
    builder = ModelBuilder()
    x = builder.add_input("x", OperandType("float32", [np.int64(2), 3]))
    assert builder.type_of(x) == OperandType(DataType.FLOAT32, (2, 3))
    assert all(type(size) is int for size in builder.type_of(x).dimensions)


@pytest.mark.parametrize(
    ("type_", "message"),
    [
        ("float32", "operand 'x' is 'float32', expected an OperandType"),
        (OperandType("float33", (3,)), "operand 'x' is 'float33', expected one of bool, int4"),
        (OperandType("float32", 3), "has dimensions 3, expected whole numbers"),
        (OperandType("float32", (None, 3)), r"has dimensions \(None, 3\), expected whole numbers, every one known"),
        (OperandType("float32", (2.0,)), "expected whole numbers"),
        (OperandType("float32", (-1, 3)), r"has dimensions \[-1, 3\], expected none below 0"),
    ],
)
def test_types_that_are_none(type_, message):
    with pytest.raises(InvalidModelError, match=message):
        ModelBuilder().add_input("x", type_)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([1.0], "constant 'c' is list, expected a numpy array"),
        (np.array(["a"]), "constant 'c' holds <U1, expected one of bool"),
        (np.array([1j]), "constant 'c' holds complex128"),
    ],
)
def test_constants_that_are_none(value, message):
    with pytest.raises(InvalidModelError, match=message):
        ModelBuilder().add_constant("c", value)


@pytest.mark.parametrize("index", [1, 7, -2])
def test_operands_that_were_not_added(index):
    builder = ModelBuilder()
    builder.add_input("x", _VECTOR)
    for use in (
        lambda: builder.add_operation("RELU", (index,)),
        lambda: builder.type_of(index),
        lambda: builder.value_of(index),
        lambda: builder.finish([index]),
    ):
        with pytest.raises(InvalidModelError, match=rf"{index} is (none|no operand) of the"):
            use()
