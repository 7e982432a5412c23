"""Families of invalid models: of attributes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from types import MappingProxyType
from typing import Any

from nnadapter.ir import (
    AttributeKind,
    Model,
    schema_of,
)
from nnadapter.ir.schema import Attribute
from nnadapter.testing.mutations.changes import (
    Mutated,
    Mutation,
    at,
    with_operation,
)


def _attribute(random: Random, model: Model, fits: Callable[[Attribute], bool]) -> tuple[int, str]:
    candidates = [
        (position, attribute.name)
        for position, operation in enumerate(model.operations)
        for attribute in schema_of(operation.type).attributes
        if fits(attribute)
    ]
    return random.choice(candidates)


def _set(model: Model, position: int, name: str, value: Any) -> Model:
    return with_operation(model, position, attributes={**model.operations[position].attributes, name: value})


def unknown_attribute(random: Random, model: Model) -> Mutated:
    """An attribute that the schema does not have."""
    position = random.randrange(len(model.operations))
    changed = _set(model, position, "axsi", 1)
    return changed, f"{at(model, position)}unknown attribute 'axsi'; "


def missing_attribute(random: Random, model: Model) -> Mutated:
    """An attribute of the schema that is not there."""
    position, name = _attribute(random, model, lambda attribute: True)
    attributes = {key: value for key, value in model.operations[position].attributes.items() if key != name}
    changed = with_operation(model, position, attributes=attributes)
    return changed, rf"{at(model, position)}attributes \['{name}'\] are missing, expected"


_WRONG: Mapping[AttributeKind, tuple[Any, ...]] = MappingProxyType(
    {
        AttributeKind.BOOL: (1, "true", None),
        AttributeKind.INT: (True, 1.5, "1", (1,)),
        AttributeKind.FLOAT: (True, "0.5", None, (0.5,)),
        AttributeKind.STRING: (3, None, b"none", ("none",)),
        AttributeKind.INTS: (1, (1.5,), ("1",), (True,), None),
        AttributeKind.FLOATS: (0.5, ("a",), None),
    }
)


def attribute_of_wrong_kind(random: Random, model: Model) -> Mutated:
    """A value of another kind than the schema says."""
    position, name = _attribute(random, model, lambda attribute: True)
    kind = {
        attribute_schema.name: attribute_schema.kind
        for attribute_schema in schema_of(model.operations[position].type).attributes
    }[name]
    changed = _set(model, position, name, random.choice(_WRONG[kind]))
    return changed, f"{at(model, position)}attribute {name!r} is .*expected a value of kind {kind.value}"


def attribute_beyond_its_choices(random: Random, model: Model) -> Mutated:
    """A text that is none of the choices."""
    position, name = _attribute(random, model, lambda attribute: bool(attribute.choices))
    return _set(
        model, position, name, "no choice"
    ), f"{at(model, position)}attribute {name!r} is 'no choice', expected one of"


def attribute_of_wrong_length(random: Random, model: Model) -> Mutated:
    """A list that is longer or shorter than the schema says."""
    position, name = _attribute(random, model, lambda attribute: attribute.length is not None)
    attribute_value: Any = model.operations[position].attributes[name]
    wrong = random.choice((attribute_value[1:], (*attribute_value, 1), ()))
    return _set(
        model, position, name, wrong
    ), f"{at(model, position)}attribute {name!r} is .*expected {len(attribute_value)} values"


def axis_out_of_range(random: Random, model: Model) -> Mutated:
    """An axis that the input does not have."""
    position, name = _attribute(
        random, model, lambda attribute: (attribute.name, attribute.kind) == ("axis", AttributeKind.INT)
    )
    return _set(model, position, name, random.choice((-1, 64))), f"{at(model, position)}.*axis .*expected"


def fuse_parameters_that_do_not_fit(random: Random, model: Model) -> Mutated:
    """A parameter more than the fused function takes."""
    position, name = _attribute(random, model, lambda attribute: attribute.name == "fuse_parameters")
    parameters: Any = model.operations[position].attributes[name]
    return _set(model, position, name, (*parameters, 1.0)), f"{at(model, position)}fuse_parameters has .*expected"


ATTRIBUTE_MUTATIONS: tuple[Mutation, ...] = (
    unknown_attribute,
    missing_attribute,
    attribute_of_wrong_kind,
    attribute_beyond_its_choices,
    attribute_of_wrong_length,
    axis_out_of_range,
    fuse_parameters_that_do_not_fit,
)
"""Every family of this file."""
