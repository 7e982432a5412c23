"""The programs that a calibration times: chains of one operation, short and long, in several sizes.

What a chain's further links take is what the operation takes: launch and transfers are the same for both lengths.
Links differ from each other, and none undoes another, so that a compiler has nothing to take away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from nnadapter.costs.classes import OperationClass, class_of
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
class ClassWork:
    """Work of the operations of one class in a model."""

    operations: int = 0
    flops: float = 0.0
    nbytes: float = 0.0

    def __add__(self, other: ClassWork) -> ClassWork:
        """Both together."""
        return ClassWork(self.operations + other.operations, self.flops + other.flops, self.nbytes + other.nbytes)

    def __sub__(self, other: ClassWork) -> ClassWork:
        """What this has beside the other."""
        return ClassWork(self.operations - other.operations, self.flops - other.flops, self.nbytes - other.nbytes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """One size of one class."""

    operation_class: OperationClass
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
    """Every probe, small ones first; a class that others lean on comes before them."""
    return (
        *_sizes(OperationClass.ELEMENTWISE, _elementwise, ((16, 64), (256, 64), (1024, 256), (2048, 512))),
        *_sizes(OperationClass.FUNCTION, _function, ((16, 64), (256, 64), (1024, 256))),
        *_sizes(OperationClass.MOVEMENT, _movement, ((16, 64), (256, 64), (1024, 256), (2048, 512))),
        *_sizes(OperationClass.REDUCTION, _reduction, ((16, 64), (256, 64), (1024, 256))),
        *_sizes(OperationClass.NORMALIZATION, _normalization, ((16, 64), (256, 64), (1024, 256))),
        *_sizes(OperationClass.MATRIX, _matrix, ((1, 128), (64, 128), (1, 1024), (32, 512), (256, 512))),
        *_sizes(
            OperationClass.DEPTHWISE,
            partial(_convolution, kernel=3, depthwise=True),
            ((1, 8, 8, 8), (1, 128, 28, 28), (1, 32, 56, 56)),
        ),
        *_sizes(
            OperationClass.CONVOLUTION,
            partial(_convolution, kernel=1),
            ((1, 16, 8, 8), (1, 16, 56, 56), (1, 64, 28, 28), (1, 512, 7, 7)),
        ),
        *_sizes(
            OperationClass.CONVOLUTION,
            partial(_convolution, kernel=3),
            ((1, 16, 14, 14), (1, 8, 64, 64), (1, 256, 7, 7), (1, 64, 28, 28), (1, 64, 56, 56)),
        ),
    )


def tensors_model(tensors: int) -> Model:
    """A model with next to no work and so many inputs, for what a launch and a transfer cost."""
    builder = ModelBuilder()
    type_ = OperandType(DataType.FLOAT32, (4, 4))
    value, *others = [builder.add_input(f"x{number}", type_) for number in range(tensors)]
    for other in others or [value]:
        (value,) = builder.add_operation("ADD", [value, other])
    return builder.finish([value])


def work_of(model: Model) -> Mapping[OperationClass, ClassWork]:
    """Return the work in a model by class, every operation by itself: FLOPs, and bytes read and made."""
    work_by_class: dict[OperationClass, ClassWork] = {}
    for operation in model.operations:
        inputs = [model.type_of(operand) for operand in operation.inputs if operand != ABSENT]
        outputs = [model.operands[operand].type for operand in operation.outputs]
        flops = schema_of(operation.type).flops(inputs, outputs, operation.attributes)
        nbytes = sum(type_.nbytes for type_ in (*inputs, *outputs) if type_ is not None)
        each = class_of(model, operation)
        work_by_class[each] = work_by_class.get(each, ClassWork()) + ClassWork(1, float(flops), float(nbytes))
    return work_by_class


def _sizes(each: OperationClass, link: Link, sizes: tuple[tuple[int, ...], ...]) -> tuple[Probe, ...]:
    return tuple(Probe(operation_class=each, dimensions=dimensions, link=link) for dimensions in sizes)


def random_constant(*dimensions: int) -> Array:
    """Return the same numbers always, of a size that keeps sums over all but the first axis near 1."""
    fan_in = max(1.0, float(np.prod(dimensions[1:])))
    generator = np.random.default_rng(dimensions)
    numbers: Array = generator.standard_normal(dimensions) / np.sqrt(fan_in)
    return numbers.astype(np.float32)


def _elementwise(builder: ModelBuilder, value: int, number: int) -> int:
    """Sums and products in turn, with a constant of the same size."""
    numbers = random_constant(*builder.type_of(value).dimensions)
    other = builder.add_constant(f"c{number}", numbers + np.float32(1 + number))
    return builder.add_operation(("ADD", "MUL")[number % 2], [value, other])[0]


def _function(builder: ModelBuilder, value: int, number: int) -> int:
    return builder.add_operation("TANH", [value])[0]


def _normalization(builder: ModelBuilder, value: int, number: int) -> int:
    return builder.add_operation("SOFTMAX", [value], {"axis": 1})[0]


def _reduction(builder: ModelBuilder, value: int, number: int) -> int:
    """The largest of each row, and a difference that brings the size back."""
    (largest,) = builder.add_operation("REDUCE_MAX", [value], {"axes": (1,), "keepdims": True})
    return builder.add_operation("SUB", [value, largest])[0]


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


def _convolution(builder: ModelBuilder, value: int, number: int, *, kernel: int, depthwise: bool = False) -> int:
    channels = builder.type_of(value).dimensions[1]
    inner, group = (1, channels) if depthwise else (channels, 1)
    numbers = random_constant(channels, inner, kernel, kernel)
    weight = builder.add_constant(f"w{number}", numbers + np.float32(number * 1e-4))
    # pads = (top, left, bottom, right)
    attributes: dict[str, AttributeValue] = {"pads": (kernel // 2,) * 4, "group": group}
    return builder.add_operation("CONV_2D", [value, weight], attributes)[0]
