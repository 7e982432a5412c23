"""Families of invalid models: of what operands say of themselves."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from re import escape
from typing import Any

import numpy as np

from nnadapter.ir import (
    Layout,
    Lifetime,
    Model,
    Operand,
)
from nnadapter.testing.mutations.changes import (
    Mutated,
    Mutation,
    named,
    operands_of,
    with_operand,
    with_type,
)


def duplicate_name(random: Random, model: Model) -> Mutated:
    """Two operands of one name."""
    first, other = random.sample(range(len(model.operands)), 2)
    name = model.operands[first].name
    return with_operand(model, other, name=name), f"operand {max(first, other)} is called {escape(repr(name))}"


def name_is_no_text(random: Random, model: Model) -> Mutated:
    """A name that is no text."""
    index = random.randrange(len(model.operands))
    return with_operand(model, index, name=random.choice((None, 7, b"x"))), f"operand {index} .*expected a text"


def negative_dimension(random: Random, model: Model) -> Mutated:
    """A dimension below 0."""
    index = random.randrange(len(model.operands))
    return with_type(model, index, dimensions=(2, -1)), f"{named(model, index)}.*expected no dimension below 0"


def unknown_dimension(random: Random, model: Model) -> Mutated:
    """A dimension that is no whole number."""
    index = random.randrange(len(model.operands))
    size = random.choice((None, "N", 2.0))
    return with_type(model, index, dimensions=(2, size)), f"{named(model, index)}.*expected whole numbers"


def unknown_data_type(random: Random, model: Model) -> Mutated:
    """A data type that is none."""
    index = random.randrange(len(model.operands))
    dtype = random.choice(("float33", None, np.float32))
    return with_type(model, index, dtype=dtype), f"{named(model, index)}.*expected a DataType"


def layout_of_another_rank(random: Random, model: Model) -> Mutated:
    """A layout of images on what is none."""
    indices = [index for index, operand in enumerate(model.operands) if operand.type.rank != 4]
    index = random.choice(indices)
    return with_type(model, index, layout=Layout.NHWC), f"{named(model, index)}.*expected rank 4"


def constant_without_value(random: Random, model: Model) -> Mutated:
    """A constant that holds nothing."""
    index = random.choice(operands_of(model, Lifetime.CONSTANT))
    return with_operand(model, index, value=None), f"{named(model, index)} is constant and has no contents"


def value_of_another_lifetime(random: Random, model: Model) -> Mutated:
    """Contents on what is no constant."""
    index = random.choice(operands_of(model, Lifetime.MODEL_INPUT, Lifetime.MODEL_OUTPUT, Lifetime.TEMPORARY))
    type_ = model.operands[index].type
    return with_operand(model, index, value=np.zeros(type_.dimensions)), f"{named(model, index)}.*has contents"


def _with_value(random: Random, model: Model, change: Callable[[Any], Any]) -> tuple[Model, int]:
    index = random.choice(operands_of(model, Lifetime.CONSTANT))
    return with_operand(model, index, value=change(model.operands[index].value)), index


def value_of_wrong_data_type(random: Random, model: Model) -> Mutated:
    """A constant that holds another data type than it says."""
    changed, index = _with_value(random, model, lambda value: value.astype(np.complex64))
    return changed, f"{named(model, index)} holds complex64.*expected its type"


def value_of_wrong_shape(random: Random, model: Model) -> Mutated:
    """A constant that holds other dimensions than it says."""
    changed, index = _with_value(random, model, lambda value: np.stack([value, value]))
    return changed, f"{named(model, index)} holds .*expected its type"


def value_that_is_no_array(random: Random, model: Model) -> Mutated:
    """A constant that holds a list."""
    changed, index = _with_value(random, model, lambda value: value.tolist())
    return changed, f"{named(model, index)} .*expected a numpy array"


def value_of_another_byte_order(random: Random, model: Model) -> Mutated:
    """A constant in the byte order of other machines."""
    indices = [index for index in operands_of(model, Lifetime.CONSTANT) if _swappable(model.operands[index])]
    if not indices:
        return None
    index = random.choice(indices)
    value: Any = model.operands[index].value
    swapped = value.astype(value.dtype.newbyteorder())
    return with_operand(model, index, value=swapped), f"{named(model, index)} .*byte order"


def _swappable(operand: Operand) -> bool:
    return operand.value is not None and operand.value.dtype.kind in "iuf" and operand.value.dtype.itemsize > 1


OPERAND_MUTATIONS: tuple[Mutation, ...] = (
    duplicate_name,
    name_is_no_text,
    negative_dimension,
    unknown_dimension,
    unknown_data_type,
    layout_of_another_rank,
    constant_without_value,
    value_of_another_lifetime,
    value_of_wrong_data_type,
    value_of_wrong_shape,
    value_that_is_no_array,
    value_of_another_byte_order,
)
"""Every family of this file."""
