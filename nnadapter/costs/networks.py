"""Small networks of mixed operations: what a calibration predicts of them, beside what they take, is how far it is off.

Chains of one operation do not tell that: a device fuses some operations of a network, and others find its caches cold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from nnadapter.costs.probes import random_constant
from nnadapter.ir.builder import ModelBuilder
from nnadapter.ir.model import Model
from nnadapter.ir.operand import DataType, OperandType
from nnadapter.ir.schema import AttributeValue


def networks() -> Mapping[str, Model]:
    """Return the networks by name: each a block that is repeated."""
    return {name: _network(block, dimensions, repeats) for name, block, dimensions, repeats in _TABLE}


_Block = Callable[[ModelBuilder, int], int]


def _network(block: _Block, dimensions: tuple[int, ...], repeats: int) -> Model:
    builder = ModelBuilder()
    value = builder.add_input("x", OperandType(DataType.FLOAT32, dimensions))
    for _ in range(repeats):
        value = block(builder, value)
    return builder.finish([value])


def _constant(builder: ModelBuilder, value: int, *dimensions: int) -> int:
    return builder.add_constant(f"c{value}", random_constant(*dimensions))


def _add(builder: ModelBuilder, type_: str, inputs: Sequence[int], **attributes: AttributeValue) -> int:
    return builder.add_operation(type_, inputs, attributes)[0]


def _residual(builder: ModelBuilder, value: int) -> int:
    """Convolutions over 3 x 3, over 3 x 3 by itself per channel, and over points, and what went in added."""
    channels, branch = builder.type_of(value).dimensions[1], value
    for kernel, group in ((3, 1), (3, channels), (1, 1)):
        weight = _constant(builder, branch, channels, channels // group, kernel, kernel)
        branch = _add(builder, "CONV_2D", [branch, weight], pads=(kernel // 2,) * 4, group=group)
        branch = _add(builder, "RELU", [branch])
    return _add(builder, "ADD", [branch, value])


def _convolutions(builder: ModelBuilder, value: int) -> int:
    """Over 3 x 3, the width kept, and what is below 0 cut off."""
    channels = builder.type_of(value).dimensions[1]
    conv = _add(builder, "CONV_2D", [value, _constant(builder, value, channels, channels, 3, 3)], pads=(1,) * 4)
    return _add(builder, "RELU", [conv])


def _products(builder: ModelBuilder, value: int) -> int:
    """Few rows, so that reading weights takes as long as computing."""
    _, width = builder.type_of(value).dimensions
    return _add(builder, "RELU", [_product(builder, value, width, width)])


def _recurrent_block(builder: ModelBuilder, value: int) -> int:
    """One step after the other, and what went in added."""
    dimensions = builder.type_of(value).dimensions
    width = dimensions[2]
    names = (f"w{value}", f"r{value}")
    weights = [builder.add_constant(name, random_constant(1, 4 * width, width)) for name in names]
    output = _add(builder, "RESHAPE", [_add(builder, "LSTM", [value, *weights])], shape=dimensions)
    return _add(builder, "ADD", [output, value])


def _transformer(builder: ModelBuilder, value: int) -> int:
    """Two products with a function between, what went in added, then two more, and the whole normalized."""
    rows, width = builder.type_of(value).dimensions
    scores = _add(builder, "TANH", [_product(builder, value, width, rows)])
    middle = _add(builder, "ADD", [_product(builder, scores, rows, width), value])
    wide = _product(builder, middle, width, 4 * width)
    gate = _add(builder, "ERF", [wide])
    narrow = _product(builder, _add(builder, "MUL", [wide, gate]), 4 * width, width)
    return _add(builder, "SOFTMAX", [_add(builder, "ADD", [narrow, middle])], axis=1)


def _product(builder: ModelBuilder, value: int, rows: int, columns: int) -> int:
    return _add(builder, "MAT_MUL", [value, _constant(builder, value, rows, columns)])


def _small(builder: ModelBuilder, value: int) -> int:
    """Operations so small that what each costs by itself decides."""
    _, width = builder.type_of(value).dimensions
    left, right = builder.add_operation("SPLIT", [value], {"axis": 1, "split": (width // 4, width - width // 4)})
    value = _add(builder, "CONCAT", [right, left], axis=1)
    value = _add(builder, "SOFTMAX", [_add(builder, "TANH", [value])], axis=1)
    value = _add(builder, "MUL", [value, _constant(builder, value, width)])
    return _add(builder, "ADD", [_product(builder, value, width, width), value])


def _shrinking(builder: ModelBuilder, value: int) -> int:
    """Over 3 x 3 in steps of two, channels doubled, and how far each number is let through is a function of it."""
    channels = builder.type_of(value).dimensions[1]
    weight = _constant(builder, value, 2 * channels, channels, 3, 3)
    conv = _add(builder, "CONV_2D", [value, weight], pads=(1,) * 4, strides=(2, 2))
    return _add(builder, "MUL", [conv, _add(builder, "SIGMOID", [conv])])


def _joined(builder: ModelBuilder, value: int) -> int:
    """Scaled and shifted per channel, and what a convolution to 12 channels makes beside what it reads."""
    channels = builder.type_of(value).dimensions[1]
    scale, shift = (builder.add_constant(f"{name}{value}", random_constant(channels, 1, 1)) for name in ("s", "t"))
    hidden = _add(builder, "ADD", [_add(builder, "MUL", [value, scale]), shift])
    weight = _constant(builder, hidden, 12, channels, 3, 3)
    hidden = _add(builder, "CONV_2D", [_add(builder, "RELU", [hidden]), weight], pads=(1,) * 4)
    return _add(builder, "CONCAT", [value, hidden], axis=1)


def _separable(builder: ModelBuilder, value: int) -> int:
    """Wide by points, 5 x 5 by itself per channel, channels weighed, narrow again, what went in added."""
    channels = builder.type_of(value).dimensions[1]
    wide, branch = 3 * channels, value
    weight = _constant(builder, branch, wide, channels, 1, 1)
    branch = _add(builder, "RELU", [_add(builder, "CONV_2D", [branch, weight])])
    weight = _constant(builder, branch, wide, 1, 5, 5)
    branch = _add(builder, "RELU", [_add(builder, "CONV_2D", [branch, weight], pads=(2,) * 4, group=wide)])
    gate = _add(builder, "REDUCE_MEAN", [branch], axes=(2, 3), keepdims=True)
    gate = _add(builder, "SIGMOID", [_add(builder, "CONV_2D", [gate, _constant(builder, gate, wide, wide, 1, 1)])])
    branch = _add(builder, "MUL", [branch, gate])
    projection = _add(builder, "CONV_2D", [branch, _constant(builder, branch, channels, wide, 1, 1)])
    return _add(builder, "ADD", [projection, value])


def _line(builder: ModelBuilder, value: int) -> int:
    """Over 1 x 5, and a function that keeps numbers small."""
    channels = builder.type_of(value).dimensions[1]
    weight = _constant(builder, value, channels, channels, 1, 5)
    return _add(builder, "TANH", [_add(builder, "CONV_2D", [value, weight], pads=(0, 2, 0, 2))])


def _attention(builder: ModelBuilder, value: int) -> int:
    """Rows of average 0 and spread 1; every row looks at every row, by four heads; what went in added."""
    rows, width = builder.type_of(value).dimensions
    scale = builder.add_constant(f"s{value}", random_constant(width))
    x = _add(builder, "LAYER_NORMALIZATION", [value, scale], axis=1)
    parts = []
    for perm in ((1, 0, 2), (1, 2, 0), (1, 0, 2)):
        part = _add(builder, "RESHAPE", [_product(builder, x, width, width)], shape=(rows, 4, width // 4))
        parts.append(_add(builder, "TRANSPOSE", [part], perm=perm))
        x = _add(builder, "ADD", [x, _constant(builder, parts[-1], width)])
    scores = _add(builder, "SOFTMAX", [_add(builder, "MAT_MUL", parts[:2])], axis=2)
    mixed = _add(builder, "TRANSPOSE", [_add(builder, "MAT_MUL", [scores, parts[2]])], perm=(1, 0, 2))
    mixed = _add(builder, "RESHAPE", [mixed], shape=(rows, width))
    return _add(builder, "ADD", [_product(builder, mixed, width, width), value])


def _gated(builder: ModelBuilder, value: int) -> int:
    """Two products multiplied, a third behind, what went in added."""
    _, width = builder.type_of(value).dimensions
    projection = _product(builder, value, width, 2 * width)
    gate = _add(builder, "MUL", [projection, _add(builder, "SIGMOID", [projection])])
    right = _add(builder, "MAT_MUL", [value, builder.add_constant(f"r{value}", random_constant(width, 2 * width))])
    return _add(builder, "ADD", [_product(builder, _add(builder, "MUL", [gate, right]), 2 * width, width), value])


def _spelled_out(builder: ModelBuilder, value: int) -> int:
    """Rows of average 0 and bounded size, by sums and products, and a function of each number."""
    _, width = builder.type_of(value).dimensions
    value = _add(builder, "ADD", [value, _constant(builder, value, width)])
    away = _add(builder, "SUB", [value, _add(builder, "REDUCE_MEAN", [value], axes=(1,), keepdims=True)])
    size = _add(builder, "REDUCE_MEAN", [_add(builder, "MUL", [away, away])], axes=(1,), keepdims=True)
    hidden = _add(builder, "SUB", [away, _add(builder, "MUL", [away, _add(builder, "SIGMOID", [size])])])
    return _add(builder, "TANH", [_add(builder, "MUL", [hidden, _constant(builder, hidden, width)])])


def _normalized(builder: ModelBuilder, value: int) -> int:
    """Two products with a function between, what went in added, and rows of average 0 and spread 1."""
    width = builder.type_of(value).dimensions[2]
    hidden = _add(builder, "TANH", [_product(builder, value, width, 2 * width)])
    hidden = _add(builder, "ADD", [_product(builder, hidden, 2 * width, width), value])
    scale = builder.add_constant(f"s{hidden}", random_constant(width))
    return _add(builder, "LAYER_NORMALIZATION", [hidden, scale], axis=2)


def _hard_swish_block(builder: ModelBuilder, value: int) -> int:
    """Over points and over 3 x 3, what went in added, and a function of straight pieces."""
    channels, branch = builder.type_of(value).dimensions[1], value
    for kernel in (1, 3):
        weight = _constant(builder, branch, channels, channels, kernel, kernel)
        branch = _add(builder, "CONV_2D", [branch, weight], pads=(kernel // 2,) * 4)
    return _add(builder, "HARD_SWISH", [_add(builder, "ADD", [branch, value])])


_TABLE: Sequence[tuple[str, _Block, tuple[int, ...], int]] = (
    ("residual, narrow", _residual, (1, 16, 28, 28), 3),
    ("residual, wide", _residual, (1, 64, 28, 28), 2),
    ("residual, ragged", _residual, (1, 20, 20, 20), 3),
    ("convolutions", _convolutions, (1, 32, 40, 40), 4),
    ("convolutions, ragged", _convolutions, (1, 24, 32, 32), 3),
    ("shrinking", _shrinking, (1, 6, 64, 64), 4),
    ("joined", _joined, (1, 24, 28, 28), 4),
    ("separable", _separable, (1, 24, 28, 28), 2),
    ("separable, small", _separable, (1, 40, 14, 14), 3),
    ("line", _line, (1, 24, 1, 400), 4),
    ("line, wide", _line, (1, 64, 1, 120), 3),
    ("hard", _hard_swish_block, (1, 32, 40, 40), 3),
    ("normalized", _normalized, (1, 24, 96), 3),
    ("normalized, wide", _normalized, (1, 96, 192), 2),
    ("transformer, narrow", _transformer, (32, 64), 3),
    ("transformer, wide", _transformer, (64, 256), 2),
    ("attention, narrow", _attention, (48, 96), 2),
    ("attention, wide", _attention, (100, 192), 2),
    ("products", _products, (8, 512), 4),
    ("products, one row", _products, (1, 256), 4),
    ("gated", _gated, (20, 128), 3),
    ("spelled out", _spelled_out, (64, 128), 3),
    ("spelled out, large", _spelled_out, (200, 400), 2),
    ("recurrent", _recurrent_block, (16, 1, 96), 2),
    ("recurrent, long", _recurrent_block, (48, 1, 48), 1),
    ("small", _small, (8, 64), 4),
    ("small, one row", _small, (1, 32), 6),
)
