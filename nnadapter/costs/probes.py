"""Programs for calibration: chains of one operation, small mixed networks, and their ONNX form.

A long chain minus a short one gives the time of the further operations, without launch and transfers. Links differ, so
that a compiler cannot remove any. Mixed networks show a calibration's error: a device fuses some of their operations,
and finds its caches cold for others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from nnadapter.costs.work import Kind, OperationClass, Reading, channels_of, class_of, layout_changes, producers_of
from nnadapter.ir import ABSENT, AttributeValue, DataType, Model, ModelBuilder, OperandType, schema_of
from nnadapter.onnx.construction import build
from nnadapter.records import dataclass
from partition.graph import Value

if TYPE_CHECKING:
    import onnx


SHORT, LONG = 1, 5

Link = Callable[["_Builder", int, int], int]
"""(builder, operand, number of the link) -> result of the same type."""


@dataclass(frozen=True, slots=True)
class OperationWork:
    """FLOPs and bytes of one operation, with its kind."""

    kind: Kind
    flops: float
    nbytes: float
    channels: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Chain of one operation at one size."""

    kind: Kind
    dimensions: tuple[int, ...]
    link: Link

    def model(self, length: int) -> Model:
        builder = _Builder()
        value = builder.add_input("x", OperandType(DataType.FLOAT32, self.dimensions))
        for number in range(length):
            value = self.link(builder, value, number)
        return builder.finish([value])


def probes() -> tuple[Probe, ...]:
    """Return every probe. A kind follows the other kinds that its chains contain."""
    convolution, matrix, light = OperationClass.CONVOLUTION, OperationClass.MATRIX, OperationClass.ELEMENTWISE
    tables, images = ((16, 64), (256, 64), (1024, 256)), ((1, 16, 14, 14), (1, 32, 28, 28), (1, 64, 56, 56))
    products = ((16, 64), (256, 64), (1024, 128))
    piecewise = OperationClass.PIECEWISE
    return (
        *_sizes(Kind(light, light), _elementwise, (*tables, (2048, 512))),
        *_sizes(Kind(OperationClass.FUNCTION, light), _function, tables),
        *_sizes(Kind(OperationClass.MOVEMENT), _movement, (*tables, (2048, 512))),
        *_sizes(Kind(light), _compose_links(_movement, _elementwise), tables),
        *_sizes(Kind(OperationClass.FUNCTION), _compose_links(_movement, _function), tables),
        *_sizes(Kind(piecewise), _compose_links(_movement, _hard), tables),
        *_sizes(Kind(OperationClass.REDUCTION), _reduction, tables),
        *_sizes(Kind(OperationClass.NORMALIZATION), _normalization, tables),
        *_sizes(Kind(OperationClass.SUM_NORMALIZATION), _normalized_sum, ((1, 8, 64), (1, 64, 128), (1, 128, 256))),
        *_sizes(Kind(matrix), _matrix, ((1, 128), (64, 128), (1, 1024), (32, 512), (256, 512))),
        *_sizes(Kind(OperationClass.PAIRED), _paired, ((4, 16, 16), (4, 48, 48), (4, 112, 112))),
        *_sizes(Kind(light, matrix), _compose_links(_matrix, _sums), products),
        *_sizes(Kind(OperationClass.FUNCTION, matrix), _compose_links(_matrix, _function), products),
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
        *_sizes(Kind(OperationClass.LAYOUT), _compose_links(partial(_convolution, kernel=1), _movement), images),
        *_sizes(Kind(light, convolution), _compose_links(partial(_convolution, kernel=1), _sums), images),
        *_sizes(
            Kind(OperationClass.FUNCTION, convolution), _compose_links(partial(_convolution, kernel=1), _gate), images
        ),
        *_sizes(Kind(piecewise, convolution), _compose_links(partial(_convolution, kernel=1), _hard), images),
    )


def tensors_model(tensors: int) -> Model:
    """Return a nearly empty model, to measure launches and transfers."""
    builder = ModelBuilder()
    type_ = OperandType(DataType.FLOAT32, (4, 4))
    value, *addends = [builder.add_input(f"x{number}", type_) for number in range(tensors)]
    for other in addends or [value]:
        (value,) = builder.add_operation("ADD", [value, other])
    return builder.finish([value])


def work_of(model: Model) -> tuple[OperationWork, ...]:
    """Return the work of each operation, with its producer class if fused, then the work of each layout change."""
    classes = [class_of(model, operation) for operation in model.operations]
    readings = _readings(model)
    carriers = producers_of(classes, readings, frozenset(model.outputs))
    works = []
    for operation, carrier in zip(model.operations, carriers, strict=True):
        inputs = [model.type_of(operand) for operand in operation.inputs if operand != ABSENT]
        outputs = [model.operands[operand].type for operand in operation.outputs]
        flops = schema_of(operation.type).flops(inputs, outputs, operation.attributes)
        nbytes = sum(type_.nbytes for type_ in (*inputs, *outputs) if type_ is not None)
        works.append(
            OperationWork(
                Kind(class_of(model, operation), carrier), float(flops), float(nbytes), channels_of(model, operation)
            )
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


class _Builder(ModelBuilder):
    def dimensions(self, operand: int) -> tuple[int, ...]:
        return self.type_of(operand).dimensions

    def apply(self, type_: str, *inputs: int, **attributes: AttributeValue) -> int:
        return self.add_operation(type_, inputs, attributes)[0]

    def constant(self, *dimensions: int, shift: float = 0.0) -> int:
        """Add deterministic numbers plus `shift`, scaled so that sums over all axes but the first stay near 1."""
        fan_in = max(1.0, float(np.prod(dimensions[1:])))
        numbers = np.random.default_rng(dimensions).standard_normal(dimensions, np.float32)
        numbers /= np.float32(np.sqrt(fan_in))
        return self.add_constant(f"c{len(self._operands)}", numbers + np.float32(shift))

    def product(self, value: int, columns: int) -> int:
        return self.apply("MAT_MUL", value, self.constant(self.dimensions(value)[-1], columns))

    def swap(self, value: int, first: int) -> int:
        """Move the first `first` columns of a table after the others."""
        parts = self.add_operation("SPLIT", [value], {"axis": 1, "split": (first, self.dimensions(value)[1] - first)})
        return self.apply("CONCAT", *parts[::-1], axis=1)


def _elementwise(builder: _Builder, value: int, number: int) -> int:
    other = builder.constant(*builder.dimensions(value), shift=1 + number)
    return builder.apply(("ADD", "MUL")[number % 2], value, other)


def _function(builder: _Builder, value: int, number: int) -> int:
    return builder.apply("TANH", value)


def _normalization(builder: _Builder, value: int, number: int) -> int:
    if number % 2 == 0:
        return builder.apply("SOFTMAX", value, axis=1)
    scale = builder.constant(builder.dimensions(value)[1])
    return builder.apply("LAYER_NORMALIZATION", value, scale, axis=1)


def _hard(builder: _Builder, value: int, number: int) -> int:
    return builder.apply("HARD_SWISH", value)


def _normalized_sum(builder: _Builder, value: int, number: int) -> int:
    scale = builder.constant(builder.dimensions(value)[2])
    total = builder.apply("ADD", value, builder.apply("TANH", value))
    return builder.apply("LAYER_NORMALIZATION", total, scale, axis=2)


def _reduction(builder: _Builder, value: int, number: int) -> int:
    return builder.apply("SUB", value, builder.apply("REDUCE_MEAN", value, axes=(1,), keepdims=True))


def _movement(builder: _Builder, value: int, number: int) -> int:
    return builder.swap(value, builder.dimensions(value)[1] // 4 + number)


def _matrix(builder: _Builder, value: int, number: int) -> int:
    width = builder.dimensions(value)[1]
    return builder.apply("MAT_MUL", value, builder.constant(width, width, shift=number * 1e-4))


def _paired(builder: _Builder, value: int, number: int) -> int:
    return builder.apply("MAT_MUL", builder.apply("SOFTMAX", value, axis=2), value)


def _convolution(builder: _Builder, value: int, number: int, *, kernel: int, depthwise: bool = False) -> int:
    channels = builder.dimensions(value)[1]
    inner, group = (1, channels) if depthwise else (channels, 1)
    weight = builder.constant(channels, inner, kernel, kernel, shift=number * 1e-4)
    return builder.apply("CONV_2D", value, weight, pads=(kernel // 2,) * 4, group=group)


def _along_a_line(builder: _Builder, value: int, number: int) -> int:
    channels = builder.dimensions(value)[1]
    weight = builder.constant(channels, channels, 1, 5, shift=number * 1e-4)
    return builder.apply("CONV_2D", value, weight, pads=(0, 2, 0, 2))


def _there_and_back(builder: _Builder, value: int, number: int) -> int:
    few, many = builder.dimensions(value)[1], 32
    wide = builder.constant(many, few, 3, 3, shift=number * 1e-4)
    narrow = builder.constant(few, many, 1, 1, shift=number * 1e-4)
    return builder.apply("CONV_2D", builder.apply("CONV_2D", value, wide, pads=(1,) * 4), narrow)


def _compose_links(carrier: Link, rider: Link) -> Link:
    return lambda builder, value, number: rider(builder, carrier(builder, value, number), number)


def _sums(builder: _Builder, value: int, number: int) -> int:
    dimensions = builder.dimensions(value)
    bias = builder.constant(*((dimensions[1], 1, 1) if len(dimensions) == 4 else dimensions[1:]))
    return builder.apply("RELU", builder.apply("ADD", value, bias))


def _gate(builder: _Builder, value: int, number: int) -> int:
    return builder.apply("MUL", value, builder.apply("SIGMOID", value))


def _recurrent(builder: _Builder, value: int, number: int) -> int:
    dimensions = builder.dimensions(value)
    width = dimensions[2]
    weights = [builder.constant(1, 4 * width, width, shift=number * 1e-4) for _ in range(2)]
    return builder.apply("RESHAPE", builder.apply("LSTM", value, *weights), shape=dimensions)


def networks() -> Mapping[str, Model]:
    """Return the small mixed networks by name, each a repeated block."""
    return {name: _network(block, dimensions, repeats) for name, block, dimensions, repeats in _TABLE}


_Block = Callable[[_Builder, int], int]


def _network(block: _Block, dimensions: tuple[int, ...], repeats: int) -> Model:
    builder = _Builder()
    value = builder.add_input("x", OperandType(DataType.FLOAT32, dimensions))
    for _ in range(repeats):
        value = block(builder, value)
    return builder.finish([value])


def _residual(builder: _Builder, value: int) -> int:
    channels, branch = builder.dimensions(value)[1], value
    for kernel, group in ((3, 1), (3, channels), (1, 1)):
        weight = builder.constant(channels, channels // group, kernel, kernel)
        branch = builder.apply("CONV_2D", branch, weight, pads=(kernel // 2,) * 4, group=group)
        branch = builder.apply("RELU", branch)
    return builder.apply("ADD", branch, value)


def _convolutions(builder: _Builder, value: int) -> int:
    channels = builder.dimensions(value)[1]
    conv = builder.apply("CONV_2D", value, builder.constant(channels, channels, 3, 3), pads=(1,) * 4)
    return builder.apply("RELU", conv)


def _products(builder: _Builder, value: int) -> int:
    _, width = builder.dimensions(value)
    return builder.apply("RELU", builder.product(value, width))


def _recurrent_block(builder: _Builder, value: int) -> int:
    dimensions = builder.dimensions(value)
    width = dimensions[2]
    weights = [builder.constant(1, 4 * width, width) for _ in range(2)]
    output = builder.apply("RESHAPE", builder.apply("LSTM", value, *weights), shape=dimensions)
    return builder.apply("ADD", output, value)


def _transformer(builder: _Builder, value: int) -> int:
    rows, width = builder.dimensions(value)
    scores = builder.apply("TANH", builder.product(value, rows))
    middle = builder.apply("ADD", builder.product(scores, width), value)
    wide = builder.product(middle, 4 * width)
    gate = builder.apply("ERF", wide)
    narrow = builder.product(builder.apply("MUL", wide, gate), width)
    return builder.apply("SOFTMAX", builder.apply("ADD", narrow, middle), axis=1)


def _small(builder: _Builder, value: int) -> int:
    _, width = builder.dimensions(value)
    value = builder.apply("TANH", builder.swap(value, width // 4))
    value = builder.apply("SOFTMAX", value, axis=1)
    value = builder.apply("MUL", value, builder.constant(width))
    return builder.apply("ADD", builder.product(value, width), value)


def _shrinking(builder: _Builder, value: int) -> int:
    channels = builder.dimensions(value)[1]
    weight = builder.constant(2 * channels, channels, 3, 3)
    conv = builder.apply("CONV_2D", value, weight, pads=(1,) * 4, strides=(2, 2))
    return builder.apply("MUL", conv, builder.apply("SIGMOID", conv))


def _joined(builder: _Builder, value: int) -> int:
    channels = builder.dimensions(value)[1]
    scale, shift = (builder.constant(channels, 1, 1) for _ in range(2))
    hidden = builder.apply("ADD", builder.apply("MUL", value, scale), shift)
    weight = builder.constant(12, channels, 3, 3)
    hidden = builder.apply("CONV_2D", builder.apply("RELU", hidden), weight, pads=(1,) * 4)
    return builder.apply("CONCAT", value, hidden, axis=1)


def _separable(builder: _Builder, value: int) -> int:
    channels = builder.dimensions(value)[1]
    wide, branch = 3 * channels, value
    weight = builder.constant(wide, channels, 1, 1)
    branch = builder.apply("RELU", builder.apply("CONV_2D", branch, weight))
    weight = builder.constant(wide, 1, 5, 5)
    branch = builder.apply("RELU", builder.apply("CONV_2D", branch, weight, pads=(2,) * 4, group=wide))
    gate = builder.apply("REDUCE_MEAN", branch, axes=(2, 3), keepdims=True)
    gate = builder.apply("SIGMOID", builder.apply("CONV_2D", gate, builder.constant(wide, wide, 1, 1)))
    branch = builder.apply("MUL", branch, gate)
    projection = builder.apply("CONV_2D", branch, builder.constant(channels, wide, 1, 1))
    return builder.apply("ADD", projection, value)


def _line(builder: _Builder, value: int) -> int:
    channels = builder.dimensions(value)[1]
    weight = builder.constant(channels, channels, 1, 5)
    return builder.apply("TANH", builder.apply("CONV_2D", value, weight, pads=(0, 2, 0, 2)))


def _attention(builder: _Builder, value: int) -> int:
    rows, width = builder.dimensions(value)
    scale = builder.constant(width)
    x = builder.apply("LAYER_NORMALIZATION", value, scale, axis=1)
    parts = []
    for perm in ((1, 0, 2), (1, 2, 0), (1, 0, 2)):
        part = builder.apply("RESHAPE", builder.product(x, width), shape=(rows, 4, width // 4))
        parts.append(builder.apply("TRANSPOSE", part, perm=perm))
        x = builder.apply("ADD", x, builder.constant(width))
    scores = builder.apply("SOFTMAX", builder.apply("MAT_MUL", *parts[:2]), axis=2)
    mixed = builder.apply("TRANSPOSE", builder.apply("MAT_MUL", scores, parts[2]), perm=(1, 0, 2))
    mixed = builder.apply("RESHAPE", mixed, shape=(rows, width))
    return builder.apply("ADD", builder.product(mixed, width), value)


def _gated(builder: _Builder, value: int) -> int:
    _, width = builder.dimensions(value)
    projection = builder.product(value, 2 * width)
    gate = builder.apply("MUL", projection, builder.apply("SIGMOID", projection))
    right = builder.product(value, 2 * width)
    return builder.apply("ADD", builder.product(builder.apply("MUL", gate, right), width), value)


def _spelled_out(builder: _Builder, value: int) -> int:
    _, width = builder.dimensions(value)
    value = builder.apply("ADD", value, builder.constant(width))
    away = builder.apply("SUB", value, builder.apply("REDUCE_MEAN", value, axes=(1,), keepdims=True))
    size = builder.apply("REDUCE_MEAN", builder.apply("MUL", away, away), axes=(1,), keepdims=True)
    hidden = builder.apply("SUB", away, builder.apply("MUL", away, builder.apply("SIGMOID", size)))
    return builder.apply("TANH", builder.apply("MUL", hidden, builder.constant(width)))


def _normalized(builder: _Builder, value: int) -> int:
    width = builder.dimensions(value)[2]
    hidden = builder.apply("TANH", builder.product(value, 2 * width))
    hidden = builder.apply("ADD", builder.product(hidden, width), value)
    scale = builder.constant(width)
    return builder.apply("LAYER_NORMALIZATION", hidden, scale, axis=2)


def _hard_swish_block(builder: _Builder, value: int) -> int:
    channels, branch = builder.dimensions(value)[1], value
    for kernel in (1, 3):
        weight = builder.constant(channels, channels, kernel, kernel)
        branch = builder.apply("CONV_2D", branch, weight, pads=(kernel // 2,) * 4)
    return builder.apply("HARD_SWISH", builder.apply("ADD", branch, value))


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


OPSET = 17


def onnx_form(model: Model) -> onnx.ModelProto:
    """Convert a probe to ONNX, in opset 17."""
    names = [operand.name.replace("%", "v") for operand in model.operands]
    values = [
        Value(name, operand.type.dtype.value, tuple(operand.type.dimensions))
        for name, operand in zip(names, model.operands, strict=True)
    ]
    constants = {
        name: operand.value for name, operand in zip(names, model.operands, strict=True) if operand.value is not None
    }
    nodes = []
    for operation in model.operations:
        attributes = {name: operation.attributes[name] for name in _ATTRIBUTES.get(operation.type, ())}
        if operation.type == "LSTM":
            attributes["hidden_size"] = model.operands[operation.inputs[2]].type.dimensions[2]
        inputs, outputs = ([names[operand] for operand in group] for group in (operation.inputs, operation.outputs))
        if operation.type in _INPUT_ATTRIBUTES:
            inputs.append(f"{outputs[0]} sizes")
            constants[inputs[-1]] = np.array(operation.attributes[_INPUT_ATTRIBUTES[operation.type]], np.int64)
        nodes.append((_OP_TYPES[operation.type], inputs, outputs, attributes))
    model_inputs, model_outputs = ([values[operand] for operand in group] for group in (model.inputs, model.outputs))
    return build(nodes, model_inputs, model_outputs, constants, OPSET)


_OP_TYPES: Mapping[str, str] = {
    "ADD": "Add",
    "SUB": "Sub",
    "MUL": "Mul",
    "TANH": "Tanh",
    "SIGMOID": "Sigmoid",
    "ERF": "Erf",
    "HARD_SWISH": "HardSwish",
    "RELU": "Relu",
    "MAT_MUL": "MatMul",
    "SOFTMAX": "Softmax",
    "CONCAT": "Concat",
    "SPLIT": "Split",
    "LSTM": "LSTM",
    "RESHAPE": "Reshape",
    "TRANSPOSE": "Transpose",
    "LAYER_NORMALIZATION": "LayerNormalization",
    "REDUCE_MEAN": "ReduceMean",
    "CONV_2D": "Conv",
}
_ATTRIBUTES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("SOFTMAX", "CONCAT", "SPLIT", "LAYER_NORMALIZATION"), ("axis",)),
    "LSTM": ("direction",),
    "TRANSPOSE": ("perm",),
    "REDUCE_MEAN": ("axes", "keepdims"),
    "CONV_2D": ("pads", "strides", "dilations", "group"),
}
"""Attributes that have the same name and meaning in ONNX."""
_INPUT_ATTRIBUTES = {"SPLIT": "split", "RESHAPE": "shape"}
