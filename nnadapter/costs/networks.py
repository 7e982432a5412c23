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
    return {
        name: _network(block, dimensions, repeats)
        for name, block, dimensions, repeats in (
            ("residual, narrow", _residual, (1, 16, 28, 28), 3),
            ("residual, wide", _residual, (1, 64, 28, 28), 2),
            ("convolutions", _convolutions, (1, 32, 40, 40), 4),
            ("transformer, narrow", _transformer, (32, 64), 3),
            ("transformer, wide", _transformer, (64, 256), 2),
            ("products", _products, (8, 512), 4),
            ("recurrent", _recurrent, (16, 1, 96), 2),
            ("small", _small, (8, 64), 4),
        )
    }


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
    made = _add(builder, "CONV_2D", [value, _constant(builder, value, channels, channels, 3, 3)], pads=(1,) * 4)
    return _add(builder, "RELU", [made])


def _products(builder: ModelBuilder, value: int) -> int:
    """Few rows, so that reading weights takes as long as computing."""
    _, width = builder.type_of(value).dimensions
    return _add(builder, "RELU", [_product(builder, value, width, width)])


def _recurrent(builder: ModelBuilder, value: int) -> int:
    """One step after the other, and what went in added."""
    dimensions = builder.type_of(value).dimensions
    width = dimensions[2]
    names = (f"w{value}", f"r{value}")
    weights = [builder.add_constant(name, random_constant(1, 4 * width, width)) for name in names]
    made = _add(builder, "RESHAPE", [_add(builder, "LSTM", [value, *weights])], shape=dimensions)
    return _add(builder, "ADD", [made, value])


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
