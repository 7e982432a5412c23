"""Inputs of operations with many roles that fit each other in one way only: recurrent layers, regions, deformations."""

from __future__ import annotations

from random import Random

import numpy as np

from nnadapter.ir.model import ABSENT
from nnadapter.ir.operand import DataType, Quantization, QuantizedType
from nnadapter.ir.operations.recurrent import FUNCTIONS_PER_DIRECTION, GATES
from nnadapter.ir.schema import OperationSchema
from nnadapter.testing.random_models.attributes import Attributes, Chosen, divisors
from nnadapter.testing.random_models.generic import INDICES, Types, first_of
from nnadapter.testing.random_models.maker import Maker
from nnadapter.testing.random_models.operands import _MOSTLY_CONSTANT
from nnadapter.testing.random_models.values import contents, indices

_FUNCTIONS = ("tanh", "sigmoid", "relu", "softsign")


def _input(maker: Maker, schema: OperationSchema, rank: int) -> int:
    """What the first role takes: an operand at hand of that rank, or a fresh one."""
    allowed = schema.inputs[0].dtypes
    operand = maker.at_hand(lambda type_: type_.rank == rank and type_.dtype in allowed and type_.layout == "NCHW")
    if operand is not None and 0 not in maker.type_of(operand).dimensions:
        return operand
    sizes = tuple(maker.random.choice((1, 2, 3)) for _ in range(rank))
    return maker.fresh(contents(maker.random, maker.dtype(allowed), sizes), constant=0.1)


def _optional(maker: Maker, dtype: DataType, shape: tuple[int, ...]) -> int:
    return maker.fresh_of(dtype, shape, _MOSTLY_CONSTANT) if maker.chance(0.5) else ABSENT


def recurrent(maker: Maker, schema: OperationSchema) -> list[int]:
    """A sequence, weights for one direction or two, and any of the optional inputs."""
    first = _input(maker, schema, 3)
    type_ = maker.type_of(first)
    (steps, batch, features), dtype = type_.dimensions, type_.dtype
    hidden, directions = maker.random.choice((1, 2, 3)), maker.random.choice((1, 1, 2))
    gates = GATES[schema.type] * hidden
    weights = [maker.fresh_of(dtype, (directions, gates, depth), _MOSTLY_CONSTANT) for depth in (features, hidden)]
    lengths = np.asarray([maker.random.randint(0, steps) for _ in range(batch)], np.int32)
    operands = [first, *weights, _optional(maker, dtype, (directions, 2 * gates))]
    operands.append(maker.fresh(lengths) if maker.chance(0.4) else ABSENT)
    operands.append(_optional(maker, dtype, (directions, batch, hidden)))
    if schema.type == "LSTM":
        shapes = (directions, batch, hidden), (directions, 3 * hidden)
        operands += [_optional(maker, dtype, shape) for shape in shapes]
    while operands[-1] == ABSENT:
        operands.pop()
    return operands


def recurrent_attributes(type_: str) -> Attributes:
    """Functions for as many directions as the weights have, none of which takes parameters."""

    def choose(random: Random, types: Types) -> Chosen:
        weights = types[1]
        assert weights is not None
        directions = weights.dimensions[0]
        names = [random.choice(_FUNCTIONS) for _ in range(FUNCTIONS_PER_DIRECTION[type_] * directions)]
        return {
            "direction": "bidirectional" if directions == 2 else random.choice(("forward", "reverse")),
            "activations": " ".join(names),
            "activation_alpha": (),
            "activation_beta": (),
            "clip": random.choice((float("inf"), 1.0)),
        }

    return choose


def linear_attention(maker: Maker, schema: OperationSchema) -> list[int]:
    """Queries, keys and values [N, T, features] of one to two heads, without a past, decay or rate."""
    dtype = maker.dtype(schema.inputs[0].dtypes)
    batch, steps, depth, width = (maker.random.choice((1, 2, 3)) for _ in range(4))
    shapes = (batch, steps, 2 * depth), (batch, steps, depth), (batch, steps, width)
    return [maker.fresh_of(dtype, shape, 0.1) for shape in shapes]


def linear_attention_attributes(random: Random, types: Types) -> Chosen:
    """Two heads of queries that share keys, and the rule that needs nothing else."""
    return {"query_heads": 2, "key_value_heads": 1, "scale": random.choice((0.5, 1.0)), "update_rule": "linear"}


def rotary(maker: Maker, schema: OperationSchema) -> list[int]:
    """An input [N, H, T, D], and cosines and sines for some pairs of D."""
    first = _input(maker, schema, 4)
    batch, _, steps, depth = maker.type_of(first).dimensions
    pairs = maker.random.randint(0, depth // 2)
    if pairs == 0:
        first = maker.fresh_of(maker.type_of(first).dtype, (batch, 2, steps, 4), 0.1)
        pairs = 2
    shape = maker.random.choice((batch, 1)), maker.random.choice((steps, 1)), pairs
    return [first, *(maker.fresh_of(maker.type_of(first).dtype, shape) for _ in range(2))]


def regions(maker: Maker, schema: OperationSchema) -> list[int]:
    """A picture, regions within and beyond it, and the batch of each: an input of its own, or the first column."""
    first = _input(maker, schema, 4)
    type_ = maker.type_of(first)
    count, batch = maker.random.choice((1, 2, 3)), type_.dimensions[0]
    corners = np.asarray([_region(maker.random) for _ in range(count)])
    batches = indices(maker.random, DataType.INT64, (count,), batch) % batch
    if schema.type == "ROI_ALIGN":
        boxes = maker.fresh(corners.astype(type_.dtype.value))
        return [first, boxes, maker.fresh(batches.astype(maker.dtype(INDICES).value))]
    return [first, maker.fresh(np.column_stack([batches, corners]).astype(type_.dtype.value))]


def _region(random: Random) -> tuple[int, int, int, int]:
    left, top = random.randint(0, 3), random.randint(0, 3)
    return left, top, left + random.randint(0, 4), top + random.randint(0, 4)


def deformable(maker: Maker, schema: OperationSchema) -> list[int]:
    """A picture, a filter, offsets of the size of the result without pads and strides, a bias and a mask or none."""
    first = _input(maker, schema, 4)
    dtype = maker.type_of(first).dtype
    batch, channels, height, width = maker.type_of(first).dimensions
    group, offset_group = (maker.random.choice(divisors(channels)) for _ in range(2))
    kernel = maker.random.randint(1, min(2, height)), maker.random.randint(1, min(2, width))
    outputs = group * maker.random.choice((1, 2))
    sizes = height - kernel[0] + 1, width - kernel[1] + 1
    taps = offset_group * kernel[0] * kernel[1]
    operands = [
        first,
        maker.fresh_of(dtype, (outputs, channels // group, *kernel), _MOSTLY_CONSTANT),
        maker.fresh_of(dtype, (batch, 2 * taps, *sizes)),
        _optional(maker, dtype, (outputs,)),
        _optional(maker, dtype, (batch, taps, *sizes)),
    ]
    while operands[-1] == ABSENT:
        operands.pop()
    return operands


def deformable_attributes(random: Random, types: Types) -> Chosen:
    """The groups that `deformable` chose, seen from the filter and the offsets; neither pads nor strides."""
    filter_, offset = types[1], types[2]
    assert filter_ is not None and offset is not None
    _, per_group, height, width = filter_.dimensions
    return {
        "group": first_of(types).dimensions[1] // per_group,
        "offset_group": offset.dimensions[1] // (2 * height * width),
        "strides": (1, 1),
        "pads": (0, 0, 0, 0),
        "dilations": (1, 1),
    }


def columns(maker: Maker, schema: OperationSchema) -> list[int]:
    """Columns of four blocks of an image of 3 by 3, as `columns_attributes` has it."""
    batch, channels = maker.random.choice((1, 2)), maker.random.choice((1, 2, 3))
    return [maker.fresh_of(maker.dtype(schema.inputs[0].dtypes), (batch, channels * 4, 4), 0.1)]


def columns_attributes(random: Random, types: Types) -> Chosen:
    """Blocks of 2 by 2 that overlap in an image of 3 by 3, or lie beside each other in one of 4 by 4 or 2 by 2."""
    size, stride, pad = random.choice(((3, 1, 0), (4, 2, 0), (2, 2, 1)))
    return {
        "image_shape": (size, size),
        "kernel_shape": (2, 2),
        "strides": (stride, stride),
        "pads": (pad,) * 4,
        "dilations": (1, 1),
    }


def quantized(maker: Maker, schema: OperationSchema) -> list[int]:
    """One quantized operand, of 8 bits."""
    operand = maker.at_hand(lambda type_: type_.quantization is not None, quantized=True)
    if operand is not None and maker.chance(0.7):
        return [operand]
    chosen = quantized_type(maker.random)
    value = contents(maker.random, chosen.dtype, maker.dimensions())
    return [maker.fresh(value, quantization=chosen.quantization)]


def quantized_type(random: Random) -> QuantizedType:
    """A data type of 8 bits, quantized per tensor."""
    dtype = random.choice((DataType.INT8, DataType.UINT8))
    point = random.choice((0, 3, 128)) if dtype is DataType.UINT8 else random.choice((0, -5, 7))
    return QuantizedType(dtype, Quantization(scale=(random.choice((0.05, 0.125, 0.5)),), zero_point=(point,)))


def said_to_be(random: Random, types: Types) -> list[QuantizedType]:
    """Some quantization of the same integers."""
    dtype = first_of(types).dtype
    return [QuantizedType(dtype, Quantization(scale=(random.choice((0.05, 0.5)),), zero_point=(0,)))]


def quantized_result(random: Random, types: Types) -> list[QuantizedType]:
    """Some quantization to 8 bits."""
    return [quantized_type(random)]


def not_quantized(random: Random, types: Types) -> list[QuantizedType]:
    """What a result is follows from the operation."""
    return []
