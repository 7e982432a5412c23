"""Inputs that have to fit each other, for `recipes`."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import DataType, Layout, OperandType
from nnadapter.ir.operations.matrix import PACKED_BITS
from nnadapter.ir.schema import OperationSchema
from nnadapter.testing.random_models.attributes import divisors
from nnadapter.testing.random_models.generic import INDICES, operands_of
from nnadapter.testing.random_models.maker import Maker
from nnadapter.testing.random_models.values import contents, indices

Operands = Callable[[Maker, OperationSchema], list[int]]
"""The inputs of one operation, by role."""

_MOSTLY_CONSTANT = 0.9
_SHARED = 0.3


def _channels(type_: OperandType) -> int:
    return type_.dimensions[type_.rank - 1 if type_.layout is Layout.NHWC else 1]


def _weights(maker: Maker, like: int, *shapes: tuple[int, ...]) -> list[int]:
    """Operands of these dimensions and the data type of `like`: constants, most of them, or what is at hand."""
    return [_weight(maker, maker.type_of(like).dtype, shape) for shape in shapes]


def _weight(maker: Maker, dtype: DataType, shape: tuple[int, ...]) -> int:
    operand = maker.at_hand(lambda type_: (type_.dtype, type_.dimensions) == (dtype, shape))
    if operand is not None and maker.chance(_SHARED):
        return operand
    return maker.fresh_of(dtype, shape, _MOSTLY_CONSTANT)


def convolution(maker: Maker, schema: OperationSchema) -> list[int]:
    """An image, a filter [O, C / group, kH, kW] for any group, and a bias or none."""
    image = maker.image(schema.inputs[0].dtypes)
    channels = _channels(maker.type_of(image))
    group = maker.random.choice(divisors(channels))
    outputs = group * maker.random.choice((1, 2))
    kernel = maker.random.choice((1, 2, 3)), maker.random.choice((1, 1, 3))
    shapes = [(outputs, channels // group, *kernel), (outputs,)]
    return [image, *_weights(maker, image, *shapes[: maker.random.choice((1, 2))])]


def transposed_convolution(maker: Maker, schema: OperationSchema) -> list[int]:
    """An image and a filter [C, O / group, kH, kW]; `attributes.transposed_convolution` chooses the group."""
    image = maker.image(schema.inputs[0].dtypes)
    kernel = maker.random.choice((1, 2, 3)), maker.random.choice((1, 2, 3))
    outputs = maker.random.choice((1, 2))
    return [image, *_weights(maker, image, (_channels(maker.type_of(image)), outputs, *kernel))]


def per_channel(maker: Maker, schema: OperationSchema) -> list[int]:
    """An input and a vector over its channels for every other role, all positive: one may be a variance."""
    (smallest, _), allowed = schema.ranks, schema.inputs[0].dtypes
    first = maker.at_hand(lambda type_: type_.dtype in allowed and type_.rank >= smallest)
    if first is None:
        first = maker.fresh_of(maker.dtype(allowed), maker.dimensions(4), 0.1)
    type_ = maker.type_of(first)
    vectors = [abs(contents(maker.random, type_.dtype, (_channels(type_),))) for _ in schema.inputs[1:]]
    return [first, *(maker.fresh(vector, constant=_MOSTLY_CONSTANT) for vector in vectors)]


def fully_connected(maker: Maker, schema: OperationSchema) -> list[int]:
    """An input, a weight [N, K], and a bias or none."""
    allowed = schema.inputs[0].dtypes
    first = maker.at_hand(lambda type_: type_.dtype in allowed and type_.rank >= 1)
    if first is None:
        first = maker.fresh_of(maker.dtype(allowed), maker.dimensions(2), 0.1)
    units = maker.random.choice((1, 2, 5))
    shapes = [(units, maker.type_of(first).dimensions[-1]), (units,)]
    return [first, *_weights(maker, first, *shapes[: maker.random.choice((1, 2))])]


def matrices(maker: Maker, schema: OperationSchema) -> list[int]:
    """Two matrices, stacks of them or vectors, that share a size; which is transposed is left to chance."""
    allowed = schema.inputs[0].dtypes
    first = maker.at_hand(lambda type_: type_.dtype in allowed and type_.rank >= 1)
    if first is None:
        first = maker.fresh_of(maker.dtype(allowed), maker.dimensions(3), 0.1)
    dimensions = maker.type_of(first).dimensions
    depth, columns = dimensions[-1], maker.random.choice((1, 2, 4))
    stack = tuple(1 if maker.chance(0.3) else size for size in dimensions[:-2])
    shapes = [(depth,), (depth, columns), (*stack, depth, columns), (columns, depth), (*stack, columns, depth)]
    return [first, maker.fresh_of(maker.type_of(first).dtype, maker.random.choice(shapes))]


def few_bits(maker: Maker, schema: OperationSchema) -> list[int]:
    """An input, weights of 2, 4 or 8 bits in blocks, scales, and zero points of any form or none."""
    allowed = schema.inputs[0].dtypes
    first = maker.at_hand(lambda type_: type_.dtype in allowed and type_.rank >= 1 and type_.dimensions[-1] > 0)
    if first is None:
        first = maker.fresh_of(maker.dtype(allowed), maker.dimensions(2), 0.1)
    type_, bits, size = maker.type_of(first), maker.random.choice(PACKED_BITS), maker.random.choice((1, 2, 4))
    units, blocks = maker.random.choice((1, 2, 5)), -(-type_.dimensions[-1] // (size * 8 // bits))
    chosen = [first, maker.fresh_of(DataType.UINT8, (units, blocks, size), _MOSTLY_CONSTANT)]
    chosen += _weights(maker, first, (units, blocks))
    points = maker.random.choice(("none", "packed", "reals"))
    if points == "packed":
        chosen.append(maker.fresh_of(DataType.UINT8, (units, -(-blocks * bits // 8)), _MOSTLY_CONSTANT))
    elif points == "reals":
        chosen += _weights(maker, first, (units, blocks))
    return chosen


def concatenated(maker: Maker, schema: OperationSchema) -> list[int]:
    """An operand and others of its dimensions, of which one axis may differ."""
    operands = operands_of(maker, schema)[:1]
    type_ = maker.type_of(operands[0])
    for _ in range(maker.random.choice((0, 1, 1, 2))):
        like = maker.at_hand(lambda other: (other.dtype, other.dimensions) == (type_.dtype, type_.dimensions))
        operands.append(like if like is not None and maker.chance(0.6) else _longer(maker, type_))
    return operands


def _longer(maker: Maker, type_: OperandType) -> int:
    dimensions = list(type_.dimensions)
    if dimensions:
        dimensions[maker.random.randrange(len(dimensions))] = maker.random.choice((1, 2))
    return maker.fresh_of(type_.dtype, tuple(dimensions))


def deep_image(maker: Maker, schema: OperationSchema) -> list[int]:
    """An image whose channels are a multiple of 4."""
    operand = maker.at_hand(lambda type_: type_.rank == 4 and _channels(type_) % 4 == 0)
    if operand is not None:
        return [operand]
    batch, height, width = maker.dimensions(3)
    return [
        maker.fresh_of(maker.dtype(schema.inputs[0].dtypes), (batch, maker.random.choice((4, 8)), height, width), 0.1)
    ]


def spread_behind(maker: Maker, schema: OperationSchema) -> list[int]:
    """An input, and for every other role what spreads to its last axes."""
    operands = operands_of(maker, schema)[:1]
    type_ = maker.type_of(operands[0])
    shape = type_.dimensions[maker.random.randint(0, max(0, type_.rank - 1)) :]
    return [*operands, *_weights(maker, operands[0], *[shape] * maker.random.choice((1, 2)))]


def gathered(maker: Maker, schema: OperationSchema) -> list[int]:
    """An input, and indices of any dimensions that are in range for every axis."""
    first = operands_of(maker, schema)[0]
    dimensions = maker.type_of(first).dimensions
    shape = maker.random.choice(((), (1,), (2,), (3,), (2, 2), (1, 3)))
    return [first, _indices(maker, shape, dimensions)]


def gathered_elements(maker: Maker, schema: OperationSchema) -> list[int]:
    """An input, and indices of its rank that are in range for every axis."""
    first = operands_of(maker, schema)[0]
    dimensions = maker.type_of(first).dimensions
    shape = tuple(maker.random.randint(1, max(size, 1)) for size in dimensions)
    return [first, _indices(maker, shape, dimensions)]


def scattered(maker: Maker, schema: OperationSchema) -> list[int]:
    """An input, positions of parts of it, none twice, and what is written there."""
    first = operands_of(maker, schema)[0]
    type_, random = maker.type_of(first), maker.random
    if type_.rank == 0:
        raise InvalidModelError("a scalar has no positions")
    depth = random.randint(1, type_.rank)
    places = prod(type_.dimensions[:depth])
    chosen = random.sample(range(places), min(places, random.randint(1, 4)))
    rows = np.stack(np.unravel_index(np.array(chosen, np.intp), type_.dimensions[:depth]), -1).astype(
        maker.dtype(INDICES).value
    )
    return [first, maker.fresh(rows), maker.fresh_of(type_.dtype, (len(chosen), *type_.dimensions[depth:]))]


def unpooled(maker: Maker, schema: OperationSchema) -> list[int]:
    """A picture, and positions of a larger one for its elements, none twice; `attributes.twice` says how large."""
    first = operands_of(maker, schema)[0]
    type_ = maker.type_of(first)
    places = maker.random.sample(range(4 * type_.size), type_.size)
    dtype = maker.dtype(schema.inputs[1].dtypes).value
    return [first, maker.fresh(np.array(places, dtype).reshape(type_.dimensions))]


def _indices(maker: Maker, shape: tuple[int, ...], dimensions: tuple[int, ...]) -> int:
    least = min(dimensions, default=0)
    if least == 0:
        raise InvalidModelError("nothing can be chosen from an input without elements")
    return maker.fresh(indices(maker.random, maker.dtype(INDICES), shape, least))
