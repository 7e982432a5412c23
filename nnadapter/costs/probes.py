"""The programs that a calibration times: chains of one operation, short and long, in several sizes.

What a chain's further links take is what the operation takes: launch and transfers are the same for both lengths.
Links differ from each other, and none undoes another, so that a compiler has nothing to take away.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from nnadapter.costs.classes import OperationClass, channels_of, class_of
from nnadapter.costs.riding import Kind, Reading, layout_changes, producers_of
from nnadapter.ir.builder import ModelBuilder
from nnadapter.ir.model import ABSENT, Model
from nnadapter.ir.operand import Array, DataType, OperandType
from nnadapter.ir.operations import schema_of
from nnadapter.ir.schema import AttributeValue

SHORT, LONG = 1, 5
"""Links of a chain."""

Link = Callable[[ModelBuilder, int, int], int]
"""Adds one link: the builder, the operand it works on, its number -> the operand it makes, of the same type."""


@dataclass(frozen=True, slots=True)
class OperationWork:
    """Work of one operation of a model."""

    kind: Kind
    flops: float
    nbytes: float
    """Read and made, weights included."""
    channels: tuple[int, int] = (0, 0)
    """See `channels_of`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One size of one class."""

    kind: Kind
    """Of the operation that is to be measured, in the further links of a chain."""
    dimensions: tuple[int, ...]
    """Of what the chain works on."""
    link: Link

    def model(self, length: int) -> Model:
        """The chain of so many links."""
        builder = ModelBuilder()
        value = builder.add_input("x", OperandType(DataType.FLOAT32, self.dimensions))
        for number in range(length):
            value = self.link(builder, value, number)
        return builder.finish([value])


def probes() -> tuple[Probe, ...]:
    """Every probe, small ones first; a kind that others lean on comes before them."""
    convolution, matrix, light = OperationClass.CONVOLUTION, OperationClass.MATRIX, OperationClass.ELEMENTWISE
    tables, images = ((16, 64), (256, 64), (1024, 256)), ((1, 16, 14, 14), (1, 32, 28, 28), (1, 64, 56, 56))
    products = ((16, 64), (256, 64), (1024, 128))
    piecewise = OperationClass.PIECEWISE
    return (
        *_sizes(Kind(light, light), _elementwise, (*tables, (2048, 512))),
        *_sizes(Kind(OperationClass.FUNCTION, light), _function, tables),
        *_sizes(Kind(OperationClass.MOVEMENT), _movement, (*tables, (2048, 512))),
        *_sizes(Kind(light), _behind(_movement, _elementwise), tables),
        *_sizes(Kind(OperationClass.FUNCTION), _behind(_movement, _function), tables),
        *_sizes(Kind(piecewise), _behind(_movement, _hard), tables),
        *_sizes(Kind(OperationClass.REDUCTION), _reduction, tables),
        *_sizes(Kind(OperationClass.NORMALIZATION), _normalization, tables),
        *_sizes(Kind(OperationClass.SUM_NORMALIZATION), _normalized_sum, ((1, 8, 64), (1, 64, 128), (1, 128, 256))),
        *_sizes(Kind(matrix), _matrix, ((1, 128), (64, 128), (1, 1024), (32, 512), (256, 512))),
        *_sizes(Kind(OperationClass.PAIRED), _paired, ((4, 16, 16), (4, 48, 48), (4, 112, 112))),
        *_sizes(Kind(light, matrix), _behind(_matrix, _sums), products),
        *_sizes(Kind(OperationClass.FUNCTION, matrix), _behind(_matrix, _function), products),
        *_sizes(Kind(OperationClass.RECURRENT), _recurrent, ((8, 1, 64), (32, 1, 64), (16, 1, 192))),
        *_sizes(
            Kind(OperationClass.DEPTHWISE),
            partial(_convolution, kernel=3, depthwise=True),
            ((1, 8, 8, 8), (1, 128, 28, 28), (1, 32, 56, 56)),
        ),
        *_sizes(
            Kind(convolution),
            partial(_convolution, kernel=1),
            ((1, 16, 8, 8), (1, 16, 56, 56), (1, 64, 28, 28), (1, 512, 7, 7), (1, 40, 28, 28), (1, 100, 14, 14)),
        ),
        *_sizes(
            Kind(convolution),
            partial(_convolution, kernel=3),
            (
                *((1, 16, 14, 14), (1, 256, 7, 7), (1, 64, 28, 28), (1, 64, 56, 56), (1, 32, 40, 40)),
                *((1, 20, 40, 40), (1, 24, 28, 28), (1, 36, 14, 14)),
            ),
        ),
        *_sizes(Kind(convolution), _along_a_line, ((1, 32, 1, 400), (1, 64, 1, 256))),
        *_sizes(Kind(OperationClass.NARROW), partial(_convolution, kernel=1), ((1, 12, 28, 28),)),
        *_sizes(
            Kind(OperationClass.NARROW),
            partial(_convolution, kernel=3),
            ((1, 8, 8, 8), (1, 8, 64, 64), (1, 12, 28, 28)),
        ),
        *_sizes(Kind(OperationClass.NARROW), _there_and_back, ((1, 3, 64, 64),)),
        *_sizes(Kind(OperationClass.LAYOUT), _behind(partial(_convolution, kernel=1), _movement), images),
        *_sizes(Kind(light, convolution), _behind(partial(_convolution, kernel=1), _sums), images),
        *_sizes(Kind(OperationClass.FUNCTION, convolution), _behind(partial(_convolution, kernel=1), _gate), images),
        *_sizes(Kind(piecewise, convolution), _behind(partial(_convolution, kernel=1), _hard), images),
    )


def tensors_model(tensors: int) -> Model:
    """A model with next to no work and so many inputs, for what a launch and a transfer cost."""
    builder = ModelBuilder()
    type_ = OperandType(DataType.FLOAT32, (4, 4))
    value, *addends = [builder.add_input(f"x{number}", type_) for number in range(tensors)]
    for other in addends or [value]:
        (value,) = builder.add_operation("ADD", [value, other])
    return builder.finish([value])


def work_of(model: Model) -> tuple[OperationWork, ...]:
    """Return the work of every operation by itself: FLOPs, and bytes read and made; and what it comes behind.

    Behind that come changes of layout.
    """
    classes = [class_of(model, operation) for operation in model.operations]
    readings = _readings(model)
    carriers = producers_of(classes, readings, frozenset(model.outputs))
    works = []
    for each, carrier in zip(model.operations, carriers, strict=True):
        inputs = [model.type_of(operand) for operand in each.inputs if operand != ABSENT]
        outputs = [model.operands[operand].type for operand in each.outputs]
        flops = schema_of(each.type).flops(inputs, outputs, each.attributes)
        nbytes = sum(type_.nbytes for type_ in (*inputs, *outputs) if type_ is not None)
        works.append(
            OperationWork(Kind(class_of(model, each), carrier), float(flops), float(nbytes), channels_of(model, each))
        )
    for change in layout_changes(classes, carriers, readings):
        moved = 2.0 * model.operands[change.value].type.nbytes
        works.append(OperationWork(Kind(OperationClass.LAYOUT), 0.0, moved))
    return tuple(works)


def _readings(model: Model) -> list[Reading]:
    maker = {operand: number for number, operation in enumerate(model.operations) for operand in operation.outputs}
    size = [model.operands[operation.outputs[0]].type.nbytes for operation in model.operations]
    return [
        Reading(number, maker[operand], model.operands[operand].type.nbytes == size[number], operand)
        for number, operation in enumerate(model.operations)
        for operand in operation.inputs
        if operand in maker
    ]


def _sizes(kind: Kind, link: Link, sizes: tuple[tuple[int, ...], ...]) -> tuple[Probe, ...]:
    return tuple(Probe(kind=kind, dimensions=dimensions, link=link) for dimensions in sizes)


def random_constant(*dimensions: int) -> Array:
    """Return the same numbers always, of a size that keeps sums over all but the first axis near 1."""
    fan_in = max(1.0, float(np.prod(dimensions[1:])))
    generator = np.random.default_rng(dimensions)
    numbers: Array = generator.standard_normal(dimensions, np.float32)
    numbers /= np.float32(np.sqrt(fan_in))
    return numbers


def _elementwise(builder: ModelBuilder, value: int, number: int) -> int:
    """Sums and products in turn, with a constant of the same size."""
    numbers = random_constant(*builder.type_of(value).dimensions)
    other = builder.add_constant(f"c{number}", numbers + np.float32(1 + number))
    return builder.add_operation(("ADD", "MUL")[number % 2], [value, other])[0]


def _function(builder: ModelBuilder, value: int, number: int) -> int:
    return builder.add_operation("TANH", [value])[0]


def _normalization(builder: ModelBuilder, value: int, number: int) -> int:
    """Shares of a row, and rows around 0 of spread 1, in turn."""
    if number % 2 == 0:
        return builder.add_operation("SOFTMAX", [value], {"axis": 1})[0]
    scale = builder.add_constant(f"s{number}", random_constant(builder.type_of(value).dimensions[1]))
    return builder.add_operation("LAYER_NORMALIZATION", [value, scale], {"axis": 1})[0]


def _hard(builder: ModelBuilder, value: int, number: int) -> int:
    return builder.add_operation("HARD_SWISH", [value])[0]


def _normalized_sum(builder: ModelBuilder, value: int, number: int) -> int:
    """What a function of each number makes, beside what it reads: rows around 0 of spread 1."""
    scale = builder.add_constant(f"s{number}", random_constant(builder.type_of(value).dimensions[2]))
    (other,) = builder.add_operation("TANH", [value])
    (value,) = builder.add_operation("ADD", [value, other])
    return builder.add_operation("LAYER_NORMALIZATION", [value, scale], {"axis": 2})[0]


def _reduction(builder: ModelBuilder, value: int, number: int) -> int:
    """The mean of each row, and a difference that brings the size back."""
    (mean,) = builder.add_operation("REDUCE_MEAN", [value], {"axes": (1,), "keepdims": True})
    return builder.add_operation("SUB", [value, mean])[0]


def _movement(builder: ModelBuilder, value: int, number: int) -> int:
    """Two parts, never the same ones, change places."""
    width = builder.type_of(value).dimensions[1]
    parts = (width // 4 + number, width - width // 4 - number)
    left, right = builder.add_operation("SPLIT", [value], {"axis": 1, "split": parts})
    return builder.add_operation("CONCAT", [right, left], {"axis": 1})[0]


def _matrix(builder: ModelBuilder, value: int, number: int) -> int:
    """Another weight for each link, as in a network."""
    width = builder.type_of(value).dimensions[1]
    weight = builder.add_constant(f"w{number}", random_constant(width, width) + np.float32(number * 1e-4))
    return builder.add_operation("MAT_MUL", [value, weight])[0]


def _paired(builder: ModelBuilder, value: int, number: int) -> int:
    """Rows of [batch, rows, rows] mixed by shares that come from themselves."""
    (shares,) = builder.add_operation("SOFTMAX", [value], {"axis": 2})
    return builder.add_operation("MAT_MUL", [shares, value])[0]


def _convolution(builder: ModelBuilder, value: int, number: int, *, kernel: int, depthwise: bool = False) -> int:
    channels = builder.type_of(value).dimensions[1]
    inner, group = (1, channels) if depthwise else (channels, 1)
    numbers = random_constant(channels, inner, kernel, kernel)
    weight = builder.add_constant(f"w{number}", numbers + np.float32(number * 1e-4))
    # pads = (top, left, bottom, right)
    attributes: dict[str, AttributeValue] = {"pads": (kernel // 2,) * 4, "group": group}
    return builder.add_operation("CONV_2D", [value, weight], attributes)[0]


def _along_a_line(builder: ModelBuilder, value: int, number: int) -> int:
    """Over 1 x 5."""
    channels = builder.type_of(value).dimensions[1]
    weight = builder.add_constant(f"w{number}", random_constant(channels, channels, 1, 5) + np.float32(number * 1e-4))
    return builder.add_operation("CONV_2D", [value, weight], {"pads": (0, 2, 0, 2)})[0]


def _there_and_back(builder: ModelBuilder, value: int, number: int) -> int:
    """Few channels to many, as pictures are read, and back."""
    few, many = builder.type_of(value).dimensions[1], 32
    wide = builder.add_constant(f"w{number}", random_constant(many, few, 3, 3) + np.float32(number * 1e-4))
    narrow = builder.add_constant(f"n{number}", random_constant(few, many, 1, 1) + np.float32(number * 1e-4))
    (conv,) = builder.add_operation("CONV_2D", [value, wide], {"pads": (1,) * 4})
    return builder.add_operation("CONV_2D", [conv, narrow])[0]


def _behind(carrier: Link, rider: Link) -> Link:
    """One link behind another one."""
    return lambda builder, value, number: rider(builder, carrier(builder, value, number), number)


def _sums(builder: ModelBuilder, value: int, number: int) -> int:
    """What stands behind most products: a number per channel or column, and what is below 0 cut off."""
    dimensions = builder.type_of(value).dimensions
    shape = (dimensions[1], 1, 1) if len(dimensions) == 4 else dimensions[1:]
    other = builder.add_constant(f"b{number}", random_constant(*shape))
    (value,) = builder.add_operation("ADD", [value, other])
    return builder.add_operation("RELU", [value])[0]


def _gate(builder: ModelBuilder, value: int, number: int) -> int:
    """How far each number is let through is a function of it."""
    (share,) = builder.add_operation("SIGMOID", [value])
    return builder.add_operation("MUL", [value, share])[0]


def _recurrent(builder: ModelBuilder, value: int, number: int) -> int:
    """Inputs are [steps, 1, width]."""
    dimensions = builder.type_of(value).dimensions
    width = dimensions[2]
    weights = [
        builder.add_constant(f"{name}{number}", random_constant(1, 4 * width, width) + np.float32(number * 1e-4))
        for name in ("w", "r")
    ]
    output = builder.add_operation("LSTM", [value, *weights])[0]
    return builder.add_operation("RESHAPE", [output], {"shape": dimensions})[0]
