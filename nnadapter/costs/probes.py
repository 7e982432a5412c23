"""Programs for calibration: chains of one operation, small mixed networks, and their ONNX form.

A long chain minus a short one gives the time of the further operations, without launch and transfers. Links differ and
do not cancel, so that a compiler cannot remove any. Mixed networks show the error of a calibration: a device fuses some
of their operations, and finds its caches cold for others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from nnadapter.costs.work import Kind, OperationClass, Reading, channels_of, class_of, layout_changes, producers_of
from nnadapter.ir import ABSENT, Array, AttributeValue, DataType, Model, ModelBuilder, OperandType, schema_of
from nnadapter.onnx.construction import build
from nnadapter.records import dataclass
from partition.graph import Value

if TYPE_CHECKING:
    import onnx


SHORT, LONG = 1, 5

Link = Callable[[ModelBuilder, int, int], int]
"""(builder, operand, number of the link) -> result of the same type."""


@dataclass(frozen=True, slots=True)
class OperationWork:
    """Work of one operation."""

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
        """Return the chain of `length` links."""
        builder = ModelBuilder()
        value = builder.add_input("x", OperandType(DataType.FLOAT32, self.dimensions))
        for number in range(length):
            value = self.link(builder, value, number)
        return builder.finish([value])


def probes() -> tuple[Probe, ...]:
    """Return every probe, small ones first, and kinds after the kinds that they depend on."""
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
    """Return a model of nearly no work, to measure launches and transfers."""
    builder = ModelBuilder()
    type_ = OperandType(DataType.FLOAT32, (4, 4))
    value, *addends = [builder.add_input(f"x{number}", type_) for number in range(tensors)]
    for other in addends or [value]:
        (value,) = builder.add_operation("ADD", [value, other])
    return builder.finish([value])


def work_of(model: Model) -> tuple[OperationWork, ...]:
    """Return the work of every operation with its fusion, then that of layout changes."""
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


def random_constant(*dimensions: int) -> Array:
    """Return deterministic numbers, scaled so that sums over all axes except the first stay near 1."""
    fan_in = max(1.0, float(np.prod(dimensions[1:])))
    generator = np.random.default_rng(dimensions)
    numbers: Array = generator.standard_normal(dimensions, np.float32)
    numbers /= np.float32(np.sqrt(fan_in))
    return numbers


def _elementwise(builder: ModelBuilder, value: int, number: int) -> int:
    numbers = random_constant(*builder.type_of(value).dimensions)
    other = builder.add_constant(f"c{number}", numbers + np.float32(1 + number))
    return builder.add_operation(("ADD", "MUL")[number % 2], [value, other])[0]


def _function(builder: ModelBuilder, value: int, number: int) -> int:
    return builder.add_operation("TANH", [value])[0]


def _normalization(builder: ModelBuilder, value: int, number: int) -> int:
    if number % 2 == 0:
        return builder.add_operation("SOFTMAX", [value], {"axis": 1})[0]
    scale = builder.add_constant(f"s{number}", random_constant(builder.type_of(value).dimensions[1]))
    return builder.add_operation("LAYER_NORMALIZATION", [value, scale], {"axis": 1})[0]


def _hard(builder: ModelBuilder, value: int, number: int) -> int:
    return builder.add_operation("HARD_SWISH", [value])[0]


def _normalized_sum(builder: ModelBuilder, value: int, number: int) -> int:
    scale = builder.add_constant(f"s{number}", random_constant(builder.type_of(value).dimensions[2]))
    (other,) = builder.add_operation("TANH", [value])
    (value,) = builder.add_operation("ADD", [value, other])
    return builder.add_operation("LAYER_NORMALIZATION", [value, scale], {"axis": 2})[0]


def _reduction(builder: ModelBuilder, value: int, number: int) -> int:
    (mean,) = builder.add_operation("REDUCE_MEAN", [value], {"axes": (1,), "keepdims": True})
    return builder.add_operation("SUB", [value, mean])[0]


def _movement(builder: ModelBuilder, value: int, number: int) -> int:
    """Swap two parts, split differently in each link."""
    width = builder.type_of(value).dimensions[1]
    parts = (width // 4 + number, width - width // 4 - number)
    first_part, second_part = builder.add_operation("SPLIT", [value], {"axis": 1, "split": parts})
    return builder.add_operation("CONCAT", [second_part, first_part], {"axis": 1})[0]


def _matrix(builder: ModelBuilder, value: int, number: int) -> int:
    width = builder.type_of(value).dimensions[1]
    weight = builder.add_constant(f"w{number}", random_constant(width, width) + np.float32(number * 1e-4))
    return builder.add_operation("MAT_MUL", [value, weight])[0]


def _paired(builder: ModelBuilder, value: int, number: int) -> int:
    (shares,) = builder.add_operation("SOFTMAX", [value], {"axis": 2})
    return builder.add_operation("MAT_MUL", [shares, value])[0]


def _convolution(builder: ModelBuilder, value: int, number: int, *, kernel: int, depthwise: bool = False) -> int:
    channels = builder.type_of(value).dimensions[1]
    inner, group = (1, channels) if depthwise else (channels, 1)
    numbers = random_constant(channels, inner, kernel, kernel)
    weight = builder.add_constant(f"w{number}", numbers + np.float32(number * 1e-4))
    attributes: dict[str, AttributeValue] = {"pads": (kernel // 2,) * 4, "group": group}
    return builder.add_operation("CONV_2D", [value, weight], attributes)[0]


def _along_a_line(builder: ModelBuilder, value: int, number: int) -> int:
    channels = builder.type_of(value).dimensions[1]
    weight = builder.add_constant(f"w{number}", random_constant(channels, channels, 1, 5) + np.float32(number * 1e-4))
    return builder.add_operation("CONV_2D", [value, weight], {"pads": (0, 2, 0, 2)})[0]


def _there_and_back(builder: ModelBuilder, value: int, number: int) -> int:
    """Convolve few channels to many, as on images, and back."""
    few, many = builder.type_of(value).dimensions[1], 32
    wide = builder.add_constant(f"w{number}", random_constant(many, few, 3, 3) + np.float32(number * 1e-4))
    narrow = builder.add_constant(f"n{number}", random_constant(few, many, 1, 1) + np.float32(number * 1e-4))
    (conv,) = builder.add_operation("CONV_2D", [value, wide], {"pads": (1,) * 4})
    return builder.add_operation("CONV_2D", [conv, narrow])[0]


def _compose_links(carrier: Link, rider: Link) -> Link:
    return lambda builder, value, number: rider(builder, carrier(builder, value, number), number)


def _sums(builder: ModelBuilder, value: int, number: int) -> int:
    """Add bias and ReLU, which usually follow products."""
    dimensions = builder.type_of(value).dimensions
    shape = (dimensions[1], 1, 1) if len(dimensions) == 4 else dimensions[1:]
    other = builder.add_constant(f"b{number}", random_constant(*shape))
    (value,) = builder.add_operation("ADD", [value, other])
    return builder.add_operation("RELU", [value])[0]


def _gate(builder: ModelBuilder, value: int, number: int) -> int:
    (share,) = builder.add_operation("SIGMOID", [value])
    return builder.add_operation("MUL", [value, share])[0]


def _recurrent(builder: ModelBuilder, value: int, number: int) -> int:
    dimensions = builder.type_of(value).dimensions
    width = dimensions[2]
    weights = [
        builder.add_constant(f"{name}{number}", random_constant(1, 4 * width, width) + np.float32(number * 1e-4))
        for name in ("w", "r")
    ]
    output = builder.add_operation("LSTM", [value, *weights])[0]
    return builder.add_operation("RESHAPE", [output], {"shape": dimensions})[0]


def networks() -> Mapping[str, Model]:
    """Return the mixed networks by name, each a repeated block."""
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
    channels, branch = builder.type_of(value).dimensions[1], value
    for kernel, group in ((3, 1), (3, channels), (1, 1)):
        weight = _constant(builder, branch, channels, channels // group, kernel, kernel)
        branch = _add(builder, "CONV_2D", [branch, weight], pads=(kernel // 2,) * 4, group=group)
        branch = _add(builder, "RELU", [branch])
    return _add(builder, "ADD", [branch, value])


def _convolutions(builder: ModelBuilder, value: int) -> int:
    channels = builder.type_of(value).dimensions[1]
    conv = _add(builder, "CONV_2D", [value, _constant(builder, value, channels, channels, 3, 3)], pads=(1,) * 4)
    return _add(builder, "RELU", [conv])


def _products(builder: ModelBuilder, value: int) -> int:
    _, width = builder.type_of(value).dimensions
    return _add(builder, "RELU", [_product(builder, value, width, width)])


def _recurrent_block(builder: ModelBuilder, value: int) -> int:
    dimensions = builder.type_of(value).dimensions
    width = dimensions[2]
    names = (f"w{value}", f"r{value}")
    weights = [builder.add_constant(name, random_constant(1, 4 * width, width)) for name in names]
    output = _add(builder, "RESHAPE", [_add(builder, "LSTM", [value, *weights])], shape=dimensions)
    return _add(builder, "ADD", [output, value])


def _transformer(builder: ModelBuilder, value: int) -> int:
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
    _, width = builder.type_of(value).dimensions
    first_part, second_part = builder.add_operation(
        "SPLIT", [value], {"axis": 1, "split": (width // 4, width - width // 4)}
    )
    value = _add(builder, "CONCAT", [second_part, first_part], axis=1)
    value = _add(builder, "SOFTMAX", [_add(builder, "TANH", [value])], axis=1)
    value = _add(builder, "MUL", [value, _constant(builder, value, width)])
    return _add(builder, "ADD", [_product(builder, value, width, width), value])


def _shrinking(builder: ModelBuilder, value: int) -> int:
    channels = builder.type_of(value).dimensions[1]
    weight = _constant(builder, value, 2 * channels, channels, 3, 3)
    conv = _add(builder, "CONV_2D", [value, weight], pads=(1,) * 4, strides=(2, 2))
    return _add(builder, "MUL", [conv, _add(builder, "SIGMOID", [conv])])


def _joined(builder: ModelBuilder, value: int) -> int:
    channels = builder.type_of(value).dimensions[1]
    scale, shift = (builder.add_constant(f"{name}{value}", random_constant(channels, 1, 1)) for name in ("s", "t"))
    hidden = _add(builder, "ADD", [_add(builder, "MUL", [value, scale]), shift])
    weight = _constant(builder, hidden, 12, channels, 3, 3)
    hidden = _add(builder, "CONV_2D", [_add(builder, "RELU", [hidden]), weight], pads=(1,) * 4)
    return _add(builder, "CONCAT", [value, hidden], axis=1)


def _separable(builder: ModelBuilder, value: int) -> int:
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
    channels = builder.type_of(value).dimensions[1]
    weight = _constant(builder, value, channels, channels, 1, 5)
    return _add(builder, "TANH", [_add(builder, "CONV_2D", [value, weight], pads=(0, 2, 0, 2))])


def _attention(builder: ModelBuilder, value: int) -> int:
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
    _, width = builder.type_of(value).dimensions
    projection = _product(builder, value, width, 2 * width)
    gate = _add(builder, "MUL", [projection, _add(builder, "SIGMOID", [projection])])
    right = _add(builder, "MAT_MUL", [value, builder.add_constant(f"r{value}", random_constant(width, 2 * width))])
    return _add(builder, "ADD", [_product(builder, _add(builder, "MUL", [gate, right]), 2 * width, width), value])


def _spelled_out(builder: ModelBuilder, value: int) -> int:
    _, width = builder.type_of(value).dimensions
    value = _add(builder, "ADD", [value, _constant(builder, value, width)])
    away = _add(builder, "SUB", [value, _add(builder, "REDUCE_MEAN", [value], axes=(1,), keepdims=True)])
    size = _add(builder, "REDUCE_MEAN", [_add(builder, "MUL", [away, away])], axes=(1,), keepdims=True)
    hidden = _add(builder, "SUB", [away, _add(builder, "MUL", [away, _add(builder, "SIGMOID", [size])])])
    return _add(builder, "TANH", [_add(builder, "MUL", [hidden, _constant(builder, hidden, width)])])


def _normalized(builder: ModelBuilder, value: int) -> int:
    width = builder.type_of(value).dimensions[2]
    hidden = _add(builder, "TANH", [_product(builder, value, width, 2 * width)])
    hidden = _add(builder, "ADD", [_product(builder, hidden, 2 * width, width), value])
    scale = builder.add_constant(f"s{hidden}", random_constant(width))
    return _add(builder, "LAYER_NORMALIZATION", [hidden, scale], axis=2)


def _hard_swish_block(builder: ModelBuilder, value: int) -> int:
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


OPSET = 17


def onnx_form(model: Model) -> onnx.ModelProto:
    """Return a model in opset 17, constants as initializers."""
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
        op_type, attributes, lists = _OPS[operation.type](operation.attributes)
        if operation.type == "LSTM":
            attributes = {**attributes, "hidden_size": model.operands[operation.inputs[2]].type.dimensions[2]}
        inputs, outputs = ([names[operand] for operand in group] for group in (operation.inputs, operation.outputs))
        for sizes in lists:
            inputs.append(f"{outputs[0]} sizes")
            constants[inputs[-1]] = np.array(sizes, np.int64)
        nodes.append((op_type, inputs, outputs, attributes))
    model_inputs, model_outputs = ([values[operand] for operand in group] for group in (model.inputs, model.outputs))
    return build(nodes, model_inputs, model_outputs, constants, OPSET)


_Ops = Callable[[Mapping[str, Any]], tuple[str, Mapping[str, Any], tuple[tuple[int, ...], ...]]]
_OPS: Mapping[str, _Ops] = {
    "ADD": lambda _: ("Add", {}, ()),
    "SUB": lambda _: ("Sub", {}, ()),
    "MUL": lambda _: ("Mul", {}, ()),
    "TANH": lambda _: ("Tanh", {}, ()),
    "SIGMOID": lambda _: ("Sigmoid", {}, ()),
    "ERF": lambda _: ("Erf", {}, ()),
    "HARD_SWISH": lambda _: ("HardSwish", {}, ()),
    "RELU": lambda _: ("Relu", {}, ()),
    "MAT_MUL": lambda _: ("MatMul", {}, ()),
    "SOFTMAX": lambda attributes: ("Softmax", {"axis": attributes["axis"]}, ()),
    "CONCAT": lambda attributes: ("Concat", {"axis": attributes["axis"]}, ()),
    "SPLIT": lambda attributes: ("Split", {"axis": attributes["axis"]}, (attributes["split"],)),
    "LSTM": lambda attributes: ("LSTM", {"direction": attributes["direction"]}, ()),
    "RESHAPE": lambda attributes: ("Reshape", {}, (attributes["shape"],)),
    "TRANSPOSE": lambda attributes: ("Transpose", {"perm": attributes["perm"]}, ()),
    "LAYER_NORMALIZATION": lambda attributes: ("LayerNormalization", {"axis": attributes["axis"]}, ()),
    "BATCH_NORMALIZATION": lambda _: ("BatchNormalization", {}, ()),
    "REDUCE_MEAN": lambda attributes: (
        "ReduceMean",
        {"axes": attributes["axes"], "keepdims": int(attributes["keepdims"])},
        (),
    ),
    "CONV_2D": lambda attributes: (
        "Conv",
        {name: attributes[name] for name in ("pads", "strides", "dilations", "group")},
        (),
    ),
}
"""Operation type -> op type, attributes, and further integer inputs."""
