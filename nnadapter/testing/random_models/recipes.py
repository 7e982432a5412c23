"""Table of recipes for random operations: inputs, attributes and values that the schema does not imply.

If `test_coverage` reports that random models lack an operation, add a recipe: `attributes` and `operands` choose
matching values, `sound` accepts values with a defined result. Otherwise add a reason to `UNREACHED`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from random import Random
from types import MappingProxyType

import numpy as np

from nnadapter.errors import InvalidModelError
from nnadapter.ir.model import ABSENT, Model
from nnadapter.ir.operand import Array, DataType, Layout, OperandType, Quantization, QuantizedType
from nnadapter.ir.operations import schema_of
from nnadapter.ir.operations.linear_algebra import PACKED_BITS
from nnadapter.ir.operations.recurrent import FUNCTIONS_PER_DIRECTION, GATES
from nnadapter.ir.schema import AttributeValue, OperationSchema
from nnadapter.records import dataclass
from nnadapter.testing.random_models import attributes
from nnadapter.testing.random_models.attributes import (
    INDICES,
    Attributes,
    Chosen,
    Types,
    attributes_of,
    divisors,
    input_type,
    operands_of,
)
from nnadapter.testing.random_models.maker import (
    Accept,
    Maker,
    Sound,
    compute_operation,
    contents,
    expect_tame,
    indices,
)

InputArrays = Sequence[Array | None]
AttributeValues = Mapping[str, AttributeValue]


def always(input_arrays: InputArrays, attributes: AttributeValues) -> bool:
    """Accept all inputs."""
    return True


def _pair(input_arrays: InputArrays) -> tuple[Array, Array]:
    x, y = input_arrays[0], input_arrays[1]
    assert x is not None and y is not None
    return x, y


def _integer(attributes: AttributeValues, name: str) -> int:
    value = attributes[name]
    assert isinstance(value, int)
    return value


def division(input_arrays: InputArrays, attributes: AttributeValues) -> bool:
    """Refuse integer division by 0, overflow, and real divisors near 0."""
    x, y = _pair(input_arrays)
    if x.dtype.kind == "f":
        return bool((np.abs(y) >= 0.125).all())
    overflows = x.dtype.kind == "i" and bool((x == np.iinfo(x.dtype).min).any()) and bool((y == -1).any())
    return bool((y != 0).all()) and not overflows


def power(input_arrays: InputArrays, attributes: AttributeValues) -> bool:
    """Refuse fractional powers of nonpositive bases, and negative exponents of integers."""
    x, y = _pair(input_arrays)
    if y.dtype.kind == "f" and (y != np.floor(y)).any() and (x <= 0).any():
        return False
    if x.dtype.kind == "f":
        return bool((x != 0).all())
    return bool((y >= 0).all() and (y == np.floor(y)).all() and np.abs(y).max(initial=0) <= 3)


def cast(input_arrays: InputArrays, attributes: AttributeValues) -> bool:
    """Refuse casts beyond the integer range."""
    value, target = input_arrays[0], DataType(str(attributes["to"]))
    assert value is not None
    if value.dtype == np.bool_ or target is DataType.BOOL or target.is_floating or value.dtype.kind != "f":
        return True
    limits = np.iinfo(np.dtype(target.value))
    truncated = np.trunc(value.astype(np.float64))
    return bool(((truncated >= limits.min) & (truncated <= limits.max)).all())


def in_range(input_arrays: InputArrays, attributes: AttributeValues) -> bool:
    """Accept indices within the axis, from either end."""
    value, chosen = _pair(input_arrays)
    size = value.shape[_integer(attributes, "axis")]
    return bool(((chosen >= -size) & (chosen < size)).all())


def of_the_batch(input_arrays: InputArrays, attributes: AttributeValues) -> bool:
    """Accept regions with valid batch indices."""
    pictures, regions = _pair(input_arrays)
    indices = input_arrays[2] if len(input_arrays) > 2 else regions[:, 0]
    return indices is None or bool(((indices >= 0) & (indices < pictures.shape[0])).all())


def apart_along_axis(input_arrays: InputArrays, attributes: AttributeValues) -> bool:
    """Refuse two updates of one position: ONNX defines no order."""
    value, chosen = _pair(input_arrays)
    axis = _integer(attributes, "axis")
    if attributes["reduction"] != "none" or not chosen.size:
        return True
    ordered = np.sort(chosen % max(value.shape[axis], 1), axis)
    return bool((np.diff(ordered, axis=axis) != 0).all())


def lengths(input_arrays: InputArrays, attributes: AttributeValues) -> bool:
    """Accept sequence lengths from 0 to the number of steps."""
    value, sequence_lengths = _pair(input_arrays)
    steps = value.shape[_integer(attributes, "time_axis")]
    return bool(((sequence_lengths >= 0) & (sequence_lengths <= steps)).all())


_LEAST_SPREAD = 0.05


def spread(axes_of: Callable[[int, AttributeValues], tuple[int, ...]]) -> Sound:
    """Return a check that refuses normalization of nearly equal numbers, since only rounding remains."""

    def sound(input_arrays: InputArrays, attributes: AttributeValues) -> bool:
        value = input_arrays[0]
        assert value is not None
        axes = axes_of(value.ndim, attributes)
        if 0 in value.shape:
            return True
        wide = value.astype(np.float64)
        single = all(value.shape[axis] == 1 for axis in axes)
        return single or bool((wide.std(axes) >= _LEAST_SPREAD * np.abs(wide).max(axes)).all())

    return sound


def axes_given(rank: int, attributes: AttributeValues) -> tuple[int, ...]:
    """Return the attribute `axes`."""
    axes = attributes["axes"]
    assert isinstance(axes, tuple)
    return tuple(int(axis) for axis in axes)


def axes_behind(rank: int, attributes: AttributeValues) -> tuple[int, ...]:
    """Return all axes from the attribute `axis` on."""
    return tuple(range(_integer(attributes, "axis"), rank))


def written(input_arrays: InputArrays, attributes: AttributeValues) -> bool:
    """Accept start positions in a cache if the update fits after them. In circular mode, all positions fit."""
    cache, updates = _pair(input_arrays)
    axis, starts = _integer(attributes, "axis"), input_arrays[2] if len(input_arrays) > 2 else None
    if starts is None:
        return True
    size, count = cache.shape[axis], updates.shape[axis]
    last = size - 1 if attributes["mode"] == "circular" else size - count
    return bool(((starts >= 0) & (starts <= last)).all())


Operands = Callable[[Maker, OperationSchema], list[int]]

_MOSTLY_CONSTANT = 0.9
_SHARED = 0.3


def _channels(type_: OperandType) -> int:
    return type_.dimensions[type_.rank - 1 if type_.layout is Layout.NHWC else 1]


def _weights(maker: Maker, like: int, *shapes: tuple[int, ...]) -> list[int]:
    return [_weight(maker, maker.type_of(like).dtype, shape) for shape in shapes]


def _weight(maker: Maker, dtype: DataType, shape: tuple[int, ...]) -> int:
    operand = maker.at_hand(lambda type_: (type_.dtype, type_.dimensions) == (dtype, shape))
    if operand is not None and maker.chance(_SHARED):
        return operand
    return maker.fresh_of(dtype, shape, _MOSTLY_CONSTANT)


def convolution(maker: Maker, schema: OperationSchema) -> list[int]:
    """Choose an image, a filter [O, C / group, kH, kW], and an optional bias."""
    image = maker.image(schema)
    channels = _channels(maker.type_of(image))
    group = maker.random.choice(divisors(channels))
    outputs = group * maker.random.choice((1, 2))
    kernel = maker.random.choice((1, 2, 3)), maker.random.choice((1, 1, 3))
    shapes = [(outputs, channels // group, *kernel), (outputs,)]
    return [image, *_weights(maker, image, *shapes[: maker.random.choice((1, 2))])]


def transposed_convolution(maker: Maker, schema: OperationSchema) -> list[int]:
    """Choose an image and a filter [C, O / group, kH, kW]."""
    image = maker.image(schema)
    kernel = maker.random.choice((1, 2, 3)), maker.random.choice((1, 2, 3))
    outputs = maker.random.choice((1, 2))
    return [image, *_weights(maker, image, (_channels(maker.type_of(image)), outputs, *kernel))]


def per_channel(maker: Maker, schema: OperationSchema) -> list[int]:
    """Choose an input, and positive vectors over its channels."""
    first = maker.like_first(schema, 4, lambda type_: type_.rank >= schema.ranks[0])
    type_ = maker.type_of(first)
    vectors = [abs(contents(maker.random, type_.dtype, (_channels(type_),))) for _ in schema.inputs[1:]]
    return [first, *(maker.fresh(vector, constant=_MOSTLY_CONSTANT) for vector in vectors)]


def fully_connected(maker: Maker, schema: OperationSchema) -> list[int]:
    """Choose an input, a weight [N, K], and an optional bias."""
    first = maker.like_first(schema, 2, lambda type_: type_.rank >= 1)
    units = maker.random.choice((1, 2, 5))
    shapes = [(units, maker.type_of(first).dimensions[-1]), (units,)]
    return [first, *_weights(maker, first, *shapes[: maker.random.choice((1, 2))])]


def matrices(maker: Maker, schema: OperationSchema) -> list[int]:
    """Choose an input, and a matrix, stack or vector to multiply it by, maybe transposed."""
    first = maker.like_first(schema, 3, lambda type_: type_.rank >= 1)
    dimensions = maker.type_of(first).dimensions
    depth, columns = dimensions[-1], maker.random.choice((1, 2, 4))
    stack = tuple(1 if maker.chance(0.3) else size for size in dimensions[:-2])
    shapes = [(depth,), (depth, columns), (*stack, depth, columns), (columns, depth), (*stack, columns, depth)]
    return [first, maker.fresh_of(maker.type_of(first).dtype, maker.random.choice(shapes))]


def few_bits(maker: Maker, schema: OperationSchema) -> list[int]:
    """Choose an input, packed weights of 2, 4 or 8 bits, scales, and optional zero points."""
    first = maker.like_first(schema, 2, lambda type_: type_.rank >= 1 and type_.dimensions[-1] > 0)
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
    """Choose operands of mostly equal shape; some differ in one axis."""
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
    """Choose an image with a multiple of 4 channels."""
    operand = maker.at_hand(lambda type_: type_.rank == 4 and _channels(type_) % 4 == 0)
    if operand is not None:
        return [operand]
    batch, height, width = maker.dimensions(3)
    return [
        maker.fresh_of(maker.dtype(schema.inputs[0].dtypes), (batch, maker.random.choice((4, 8)), height, width), 0.1)
    ]


def spread_behind(maker: Maker, schema: OperationSchema) -> list[int]:
    """Choose an input, and operands that broadcast to its last axes."""
    operands = operands_of(maker, schema)[:1]
    type_ = maker.type_of(operands[0])
    shape = type_.dimensions[maker.random.randint(0, max(0, type_.rank - 1)) :]
    return [*operands, *_weights(maker, operands[0], *[shape] * maker.random.choice((1, 2)))]


def gathered(maker: Maker, schema: OperationSchema) -> list[int]:
    """Choose an input, and indices within its smallest axis."""
    first = operands_of(maker, schema)[0]
    dimensions = maker.type_of(first).dimensions
    shape = maker.random.choice(((), (1,), (2,), (3,), (2, 2), (1, 3)))
    return [first, _indices(maker, shape, dimensions)]


def gathered_elements(maker: Maker, schema: OperationSchema) -> list[int]:
    """Choose an input, and indices of the same rank within its smallest axis."""
    first = operands_of(maker, schema)[0]
    dimensions = maker.type_of(first).dimensions
    shape = tuple(maker.random.randint(1, max(size, 1)) for size in dimensions)
    return [first, _indices(maker, shape, dimensions)]


def scattered(maker: Maker, schema: OperationSchema) -> list[int]:
    """Choose an input, distinct positions, and updates for them."""
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
    """Choose an image, and distinct positions in an image of twice the height and width."""
    first = operands_of(maker, schema)[0]
    type_ = maker.type_of(first)
    places = maker.random.sample(range(4 * type_.size), type_.size)
    dtype = maker.dtype(schema.inputs[1].dtypes).value
    return [first, maker.fresh(np.array(places, dtype).reshape(type_.dimensions))]


def _indices(maker: Maker, shape: tuple[int, ...], dimensions: tuple[int, ...]) -> int:
    least = min(dimensions, default=0)
    if least == 0:
        raise InvalidModelError("an empty input has no indices")
    return maker.fresh(indices(maker.random, maker.dtype(INDICES), shape, least))


_FUNCTIONS = ("tanh", "sigmoid", "relu", "softsign")


def _input(maker: Maker, schema: OperationSchema, rank: int) -> int:
    allowed = schema.inputs[0].dtypes
    operand = maker.at_hand(lambda type_: type_.rank == rank and type_.dtype in allowed and type_.layout == "NCHW")
    if operand is not None and 0 not in maker.type_of(operand).dimensions:
        return operand
    sizes = tuple(maker.random.choice((1, 2, 3)) for _ in range(rank))
    return maker.fresh(contents(maker.random, maker.dtype(allowed), sizes), constant=0.1)


def _optional(maker: Maker, dtype: DataType, shape: tuple[int, ...]) -> int:
    return maker.fresh_of(dtype, shape, _MOSTLY_CONSTANT) if maker.chance(0.5) else ABSENT


def recurrent(maker: Maker, schema: OperationSchema) -> list[int]:
    """Choose a sequence, weights for one or two directions, and some optional inputs."""
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
    """Return a function that chooses direction, clip, and activations without parameters."""

    def choose(random: Random, types: Types) -> Chosen:
        directions = input_type(types, 1).dimensions[0]
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
    """Choose queries, keys and values [N, T, features]."""
    dtype = maker.dtype(schema.inputs[0].dtypes)
    batch, steps, depth, width = (maker.random.choice((1, 2, 3)) for _ in range(4))
    shapes = (batch, steps, 2 * depth), (batch, steps, depth), (batch, steps, width)
    return [maker.fresh_of(dtype, shape, 0.1) for shape in shapes]


def linear_attention_attributes(random: Random, types: Types) -> Chosen:
    """Choose two query heads that share one key head, and the update rule without further inputs."""
    return {"query_heads": 2, "key_value_heads": 1, "scale": random.choice((0.5, 1.0)), "update_rule": "linear"}


def rotary(maker: Maker, schema: OperationSchema) -> list[int]:
    """Choose an input [N, H, T, D], and cosines and sines."""
    first = _input(maker, schema, 4)
    batch, _, steps, depth = maker.type_of(first).dimensions
    pairs = maker.random.randint(0, depth // 2)
    if pairs == 0:
        first = maker.fresh_of(maker.type_of(first).dtype, (batch, 2, steps, 4), 0.1)
        pairs = 2
    shape = maker.random.choice((batch, 1)), maker.random.choice((steps, 1)), pairs
    return [first, *(maker.fresh_of(maker.type_of(first).dtype, shape) for _ in range(2))]


def regions(maker: Maker, schema: OperationSchema) -> list[int]:
    """Choose an image, regions in and beyond it, and batch indices."""
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
    """Choose an image, a filter, offsets, and an optional bias and mask."""
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
    """Return the numbers of groups that filter and offsets imply."""
    _, per_group, height, width = input_type(types, 1).dimensions
    return {
        "group": input_type(types).dimensions[1] // per_group,
        "offset_group": input_type(types, 2).dimensions[1] // (2 * height * width),
        "strides": (1, 1),
        "pads": (0, 0, 0, 0),
        "dilations": (1, 1),
    }


def columns(maker: Maker, schema: OperationSchema) -> list[int]:
    """Choose columns (unfolded image blocks) that match `columns_attributes`."""
    batch, channels = maker.random.choice((1, 2)), maker.random.choice((1, 2, 3))
    return [maker.fresh_of(maker.dtype(schema.inputs[0].dtypes), (batch, channels * 4, 4), 0.1)]


def columns_attributes(random: Random, types: Types) -> Chosen:
    """Choose 2 by 2 blocks, overlapping or adjacent."""
    size, stride, pad = random.choice(((3, 1, 0), (4, 2, 0), (2, 2, 1)))
    return {
        "image_shape": (size, size),
        "kernel_shape": (2, 2),
        "strides": (stride, stride),
        "pads": (pad,) * 4,
        "dilations": (1, 1),
    }


def quantized(maker: Maker, schema: OperationSchema) -> list[int]:
    """Choose an operand with 8-bit quantization."""
    operand = maker.at_hand(lambda type_: type_.quantization is not None, quantized=True)
    if operand is not None and maker.chance(0.7):
        return [operand]
    chosen = quantized_type(maker.random)
    value = contents(maker.random, chosen.dtype, maker.dimensions())
    return [maker.fresh(value, quantization=chosen.quantization)]


def quantized_type(random: Random) -> QuantizedType:
    """Choose 8-bit quantization per tensor."""
    dtype = random.choice((DataType.INT8, DataType.UINT8))
    point = random.choice((0, 3, 128)) if dtype is DataType.UINT8 else random.choice((0, -5, 7))
    return QuantizedType(dtype, Quantization(scale=(random.choice((0.05, 0.125, 0.5)),), zero_point=(point,)))


def said_to_be(random: Random, types: Types) -> list[QuantizedType]:
    """Choose a quantization to reinterpret the input's integers with."""
    dtype = input_type(types).dtype
    return [QuantizedType(dtype, Quantization(scale=(random.choice((0.05, 0.5)),), zero_point=(0,)))]


def quantized_result(random: Random, types: Types) -> list[QuantizedType]:
    """Choose an 8-bit quantization for the result."""
    return [quantized_type(random)]


def not_quantized(random: Random, types: Types) -> list[QuantizedType]:
    """Return no quantization: results have their inferred types."""
    return []


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Functions that choose a random operation's inputs, attributes and quantization, and check its input values."""

    operands: Operands = operands_of
    attributes: attributes.Attributes = attributes.none
    results: Callable[[Random, Types], Sequence[QuantizedType]] = not_quantized
    sound: Sound = always
    knows_values: bool = True
    """False if `sound` accepts some inputs with undefined results; then the operation's definition raises an error."""


_RESIZED = Recipe(attributes=attributes.resized)

RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        "BATCH_NORMALIZATION": Recipe(operands=per_channel),
        "CAST": Recipe(attributes=attributes.cast, sound=cast),
        "CLIP": Recipe(attributes=attributes.clip),
        "COL_TO_IM": Recipe(operands=columns, attributes=columns_attributes),
        "CONCAT": Recipe(operands=concatenated),
        "CONV_2D": Recipe(operands=convolution, attributes=attributes.convolution),
        "CONV_2D_TRANSPOSE": Recipe(operands=transposed_convolution, attributes=attributes.transposed_convolution),
        "DEFORMABLE_CONV_2D": Recipe(operands=deformable, attributes=deformable_attributes),
        "DEPTH_TO_SPACE": Recipe(operands=deep_image),
        "DEQUANTIZE": Recipe(operands=quantized),
        "DIV": Recipe(sound=division),
        "FLOOR_DIV": Recipe(sound=division),
        "EINSUM": Recipe(attributes=attributes.equation, knows_values=False),
        "EXPAND": Recipe(attributes=attributes.expanded),
        "FULLY_CONNECTED": Recipe(operands=fully_connected),
        "GATHER": Recipe(operands=gathered, sound=in_range),
        "GATHER_ELEMENTS": Recipe(operands=gathered_elements, sound=in_range),
        "GRU": Recipe(operands=recurrent, attributes=recurrent_attributes("GRU")),
        "INSTANCE_NORMALIZATION": Recipe(operands=per_channel),
        "LAYER_NORMALIZATION": Recipe(
            operands=spread_behind, attributes=attributes.late_axis, sound=spread(axes_behind)
        ),
        "LINEAR_ATTENTION": Recipe(operands=linear_attention, attributes=linear_attention_attributes),
        "LOCAL_RESPONSE_NORMALIZATION": Recipe(attributes=attributes.response),
        "LSTM": Recipe(operands=recurrent, attributes=recurrent_attributes("LSTM")),
        "MAT_MUL": Recipe(operands=matrices),
        "MAT_MUL_N_BITS": Recipe(operands=few_bits, attributes=attributes.few_bits),
        "MAX_UNPOOL_2D": Recipe(operands=unpooled, attributes=attributes.twice, knows_values=False),
        "MAX_ROI_POOL": Recipe(operands=regions, sound=of_the_batch),
        "MEAN_VARIANCE_NORMALIZATION": Recipe(sound=spread(axes_given)),
        "MOD": Recipe(sound=division),
        "PAD": Recipe(attributes=attributes.pads),
        "POW": Recipe(sound=power),
        "QUANTIZE": Recipe(results=quantized_result),
        "RESHAPE": Recipe(attributes=attributes.shape),
        "RESIZE_LINEAR": _RESIZED,
        "RESIZE_NEAREST": _RESIZED,
        "REVERSE_SEQUENCE": Recipe(sound=lengths, knows_values=False),
        "RNN": Recipe(operands=recurrent, attributes=recurrent_attributes("RNN")),
        "ROI_ALIGN": Recipe(operands=regions, sound=of_the_batch),
        "ROTARY_EMBEDDING": Recipe(operands=rotary),
        "SLICE": Recipe(attributes=attributes.slices),
        "SPLIT": Recipe(attributes=attributes.split),
        "STORAGE_CAST": Recipe(results=said_to_be),
        "SCATTER_ELEMENTS": Recipe(sound=apart_along_axis, knows_values=False),
        "SCATTER_ND": Recipe(operands=scattered, knows_values=False),
        "TENSOR_SCATTER": Recipe(sound=written, knows_values=False),
        "TILE": Recipe(attributes=attributes.repeats),
        "TOP_K": Recipe(attributes=attributes.top_k),
        "TRANSPOSE": Recipe(attributes=attributes.perm),
    }
)

FROM_SCHEMA = Recipe(knows_values=False)
"""Recipe of operations outside the table."""

UNREACHED: Mapping[str, str] = MappingProxyType({"CUSTOM": "its kernel is defined elsewhere"})
"""Operation without random models -> reason."""


def attempt(maker: Maker, type_: str, accept: Accept) -> bool:
    """Add a random operation by its recipe; return False, without a change, on failure."""
    recipe, schema = RECIPES.get(type_, FROM_SCHEMA), schema_of(type_)
    mark, inputs, values = maker.builder.mark(), list(maker.inputs), dict(maker.values)
    try:
        operands = recipe.operands(maker, schema)
        types = [None if operand == ABSENT else maker.type_of(operand) for operand in operands]
        chosen = attributes_of(maker, schema, types, recipe.attributes(maker.random, types))
        outputs = maker.builder.add_operation(
            type_,
            operands,
            chosen,
            origins=[f"n{len(maker.produced_operands)}"],
            quantized=recipe.results(maker.random, types),
        )
        model = maker.builder.finish(())
        input_arrays = [None if operand == ABSENT else maker.values[operand] for operand in operands]
        if not recipe.sound(input_arrays, model.operations[-1].attributes):
            raise InvalidModelError("the values make the result undefined")
        if not accept(model):
            raise InvalidModelError("the caller's filter rejects the operation")
        results = _results(recipe, model, input_arrays)
        expect_tame(results)
    except InvalidModelError as error:
        maker.refusals.append(str(error))
        maker.builder.undo(mark)
        maker.inputs, maker.values = inputs, values
        return False
    maker.values.update(zip(outputs, results, strict=True))
    maker.produced_operands.extend(outputs)
    maker.read.update(operands)
    return True


def _results(recipe: Recipe, model: Model, input_arrays: InputArrays) -> list[Array]:
    try:
        return compute_operation(model, len(model.operations) - 1, input_arrays)
    except (IndexError, ValueError) as error:
        if recipe.knows_values:
            raise
        raise InvalidModelError(f"the definition has no result for these values: {error}") from error
