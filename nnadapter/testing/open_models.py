"""Random models of the adapter IR with a size left open, and what they are at other sizes.

A model at known sizes is made first. Then one of its sizes becomes a traced number wherever an input has it, and the
schema's rules say of what size everything else is: what they decide on limits the sizes at which the model holds. So
each of those is a model of its own that the definition computes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from random import Random
from types import MappingProxyType
from typing import Any

import numpy as np

from nnadapter.errors import InvalidModelError
from nnadapter.ir.inferences import inferred
from nnadapter.ir.model import ABSENT, Model, Operation
from nnadapter.ir.operand import Array, Operand, OperandType
from nnadapter.ir.schema import AttributeValue
from nnadapter.ir.structure import SymbolicModel
from nnadapter.ir.tracing import Trace, Traced, current
from nnadapter.testing.random_models.maker import RandomCase

Dimensions = tuple[Any, ...]


@dataclass(frozen=True)
class DynamicCase:
    """A model with one size left open, and contents for its inputs at one size."""

    model: Model
    trace: Trace
    size: int
    """At which the contents are."""
    feeds: tuple[Array, ...]

    def at(self, size: int) -> RandomCase | None:
        """The model at another size, with contents of the same elements; None where the rules decide otherwise."""
        traced_values = self.trace.replay([size])
        if traced_values is None:
            return None
        pairs = zip(self.model.inputs, self.feeds, strict=True)
        feeds = tuple(_resized(feed, self.model.type_at(operand).dimensions, size) for operand, feed in pairs)
        return RandomCase(self._traced.filled(traced_values), feeds)

    @cached_property
    def _traced(self) -> SymbolicModel:
        return SymbolicModel(self.model)


def opened(random: Random, case: RandomCase) -> Iterator[DynamicCase]:
    """The model with each of its inputs' sizes left open, in an order by chance."""
    model = case.model
    sizes = sorted({size for operand in model.inputs for size in model.type_at(operand).dimensions if size})
    for size in random.sample(sizes, len(sizes)):
        trace = Trace()
        try:
            yield DynamicCase(_with_open_size(model, size, trace.variable(size)), trace, size, case.feeds)
        except (ArithmeticError, InvalidModelError):  # sizes that no longer go together
            continue


def _with_open_size(model: Model, size: int, variable: Traced) -> Model:
    types = [operand.type for operand in model.operands]
    for operand in model.inputs:
        types[operand] = _with(types[operand], _replaced(types[operand].dimensions, size, variable))
    operations = []
    for operation in model.operations:
        read = [None if operand == ABSENT else types[operand] for operand in operation.inputs]
        attributes = _attributes(operation, read, size, variable)
        quantized = [types[operand].quantized for operand in operation.outputs]
        complete, results = inferred(operation.type, read, attributes, quantized)
        for operand, type_ in zip(operation.outputs, results, strict=True):
            types[operand] = type_
        operations.append(Operation(operation.type, operation.inputs, operation.outputs, complete, operation.origins))
    operands = tuple(
        Operand(operand.name, type_, operand.lifetime, operand.value)
        for operand, type_ in zip(model.operands, types, strict=True)
    )
    return Model(operands, tuple(operations), model.inputs, model.outputs)


def _attributes(
    operation: Operation, read: Sequence[OperandType | None], size: int, variable: Traced
) -> Mapping[str, AttributeValue]:
    """Those of an operation, of which some name sizes of its result."""
    shaped, first = _SHAPED.get(operation.type), read[0] if read else None
    if shaped is None:
        return operation.attributes
    return {
        **operation.attributes,
        **shaped(operation.attributes, () if first is None else first.dimensions, size, variable),
    }


def _filled(attributes: Mapping[str, Any], dimensions: Dimensions, size: int, variable: Traced) -> dict[str, Any]:
    """Sizes that are equal to the one that is open are it."""
    return {"shape": _replaced(attributes["shape"], size, variable)}


def _reshaped(attributes: Mapping[str, Any], dimensions: Dimensions, size: int, variable: Traced) -> dict[str, Any]:
    """The same, and the largest is what is left of all elements."""
    named = _replaced(attributes["shape"], size, variable)
    sizes: Dimensions = current(named)
    if not sizes or 0 in sizes:
        return {"shape": named}
    largest = max(range(len(sizes)), key=sizes.__getitem__)
    other_elements = prod(named[:largest]) * prod(named[largest + 1 :])
    return {"shape": (*named[:largest], prod(dimensions) // other_elements, *named[largest + 1 :])}


def _resized_by_scales(
    attributes: Mapping[str, Any], dimensions: Dimensions, size: int, variable: Traced
) -> dict[str, Any]:
    """Axes whose scale is 1 have the size that they had; others are resized at one size alone."""
    each = zip(attributes["shape"], attributes["scales"], dimensions, strict=True)
    return {"shape": tuple(read if scale == 1 else named + 0 * int(read) for named, scale, read in each)}


_SHAPED: Mapping[str, Callable[[Mapping[str, Any], Dimensions, int, Traced], dict[str, Any]]] = MappingProxyType(
    {
        "EXPAND": _filled,
        "FILL": _filled,
        "RESHAPE": _reshaped,
        "RESIZE_NEAREST": _resized_by_scales,
        "RESIZE_LINEAR": _resized_by_scales,
    }
)
"""By operation, how attributes that name sizes follow from those of its first input."""


def _replaced(dimensions: Dimensions, size: int, variable: Traced) -> Dimensions:
    return tuple(variable if dimension == size else dimension for dimension in dimensions)


def _with(type_: OperandType, dimensions: Dimensions) -> OperandType:
    return OperandType(type_.dtype, dimensions, type_.layout, type_.quantization)


def _resized(feed: Array, dimensions: Dimensions, size: int) -> Array:
    """Contents whose open axes are of a size: the same elements, again from the first where they do not suffice."""
    for axis, dimension in enumerate(dimensions):
        if isinstance(dimension, Traced):
            feed = np.take(feed, np.arange(size) % feed.shape[axis], axis)
    return feed
