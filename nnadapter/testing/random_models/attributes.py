"""Random operands and attributes for an operation. Attributes are chosen by name (`axis`) or by kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from string import ascii_lowercase
from types import MappingProxyType

import numpy as np

from nnadapter.errors import InvalidModelError
from nnadapter.ir import ABSENT, Attribute, AttributeKind, AttributeValue, DataType, OperandType, OperationSchema, Role
from nnadapter.ir.operations.linear_algebra import PACKED_BITS
from nnadapter.ir.operations.windows import FUSE_CODES
from nnadapter.testing.random_models.maker import Maker, indices

Types = Sequence[OperandType | None]
Choose = Callable[[Random, Attribute, Types], AttributeValue]
"""Chooses an attribute's value from input types."""

INDICES = frozenset({DataType.INT32, DataType.INT64})
_FUSE_PARAMETERS = MappingProxyType({"min": -0.5, "max": 1.5, "alpha": 0.25, "beta": 0.5})


def operands_of(maker: Maker, schema: OperationSchema) -> list[int]:
    """Choose an operand for each input of an operation."""
    operands: list[int] = []
    if schema.inputs:
        operands.append(_first(maker, schema))
    for role in schema.inputs[1:]:
        if role.optional and maker.chance(0.4):
            operands.append(ABSENT)
        else:
            operands += _operands_for_role(maker, schema, role, operands)
    if len(schema.inputs) == 1 and schema.inputs[0].variadic:
        operands += _operands_for_role(maker, schema, schema.inputs[0], operands)
    while operands and operands[-1] == ABSENT:
        operands.pop()
    return operands


def _first(maker: Maker, schema: OperationSchema) -> int:
    allowed, (smallest, largest) = schema.inputs[0].dtypes, schema.ranks
    operand = None
    if maker.chance(0.85):
        operand = maker.at_hand(
            lambda type_: type_.dtype in allowed and smallest <= type_.rank <= largest, quantized=maker.chance(0.5)
        )
    if operand is not None:
        return operand
    rank = maker.random.randint(smallest, max(smallest, min(largest, max(maker.ranks))))
    return maker.fresh_of(maker.dtype(allowed), maker.dimensions(rank), 0.1)


def _operands_for_role(maker: Maker, schema: OperationSchema, role: Role, operands: list[int]) -> list[int]:
    count = maker.random.choice((0, 1, 1, 2, 3)) if role.variadic else 1
    first = maker.type_of(operands[0])
    dtype = maker.dtype(role.dtypes) if first.dtype not in role.dtypes or maker.chance(0.2) else first.dtype
    if role.same_dtype_as is not None:
        position = next(index for index, other in enumerate(schema.inputs) if other.name == role.same_dtype_as)
        dtype = maker.type_of(operands[position]).dtype
    return [_other(maker, role, dtype, first.dimensions) for _ in range(count)]


def _other(maker: Maker, role: Role, dtype: DataType, dimensions: tuple[int, ...]) -> int:
    if maker.chance(0.5):
        operand = maker.at_hand(lambda type_: type_.dtype is dtype and _spreads(type_.dimensions, dimensions))
        if operand is not None:
            return operand
    shape = related(maker, dimensions)
    if role.dtypes <= INDICES and maker.chance(0.8):
        return maker.fresh(indices(maker.random, dtype, shape, min((*dimensions, 3))))
    return maker.fresh_of(dtype, shape)


def related(maker: Maker, dimensions: tuple[int, ...]) -> tuple[int, ...]:
    """Choose dimensions of another input; most choices broadcast to `dimensions`."""
    ways: tuple[Callable[[], tuple[int, ...]], ...] = (
        lambda: dimensions,
        lambda: dimensions,
        lambda: tuple(1 if maker.chance(0.4) else size for size in dimensions),
        lambda: dimensions[maker.random.randint(0, len(dimensions)) :],
        lambda: dimensions[-1:],
        lambda: dimensions[1:2],
        lambda: dimensions[:1],
        lambda: (),
        lambda: (maker.random.choice((1, 2, 3)), *dimensions) if len(dimensions) < 5 else dimensions,
        lambda: maker.dimensions(),
    )
    return maker.random.choice(ways)()


def _spreads(first_shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    pairs = zip(reversed(first_shape), reversed(other), strict=False)
    return all(left == right or 1 in (left, right) for left, right in pairs)


def attributes_of(
    maker: Maker, schema: OperationSchema, types: Types, preset_values: Mapping[str, AttributeValue]
) -> dict[str, AttributeValue]:
    """Choose attributes that are not preset; sometimes omit those with defaults."""
    values = dict(preset_values)
    for attribute in schema.attributes:
        if attribute.name in values or (attribute.default is not None and maker.chance(0.3)):
            continue
        choose = BY_NAME.get(attribute.name) or _BY_KIND[attribute.kind]
        values[attribute.name] = choose(maker.random, attribute, types)
    if schema.attribute("fuse_code"):
        code = str(values.get("fuse_code", "none"))
        values["fuse_parameters"] = tuple(_FUSE_PARAMETERS[name] for name in FUSE_CODES[code][0])
    return values


def input_type(types: Types, position: int = 0) -> OperandType:
    """Return the type of an input; raise InvalidModelError if absent."""
    type_ = types[position] if position < len(types) else None
    if type_ is None:
        raise InvalidModelError(f"input {position} is absent")
    return type_


def axis_of(random: Random, types: Types) -> int:
    """Choose a random axis of the first input."""
    rank = input_type(types).rank
    if rank == 0:
        raise InvalidModelError("a scalar has no axis")
    return random.randrange(rank)


def _axis(random: Random, attribute: Attribute, types: Types) -> int:
    return axis_of(random, types)


def _axes(random: Random, attribute: Attribute, types: Types) -> tuple[int, ...]:
    rank = input_type(types).rank
    return tuple(sorted(random.sample(range(rank), random.randint(min(1, rank), rank))))


def _between(low: int, high: int) -> Choose:
    def choose(random: Random, attribute: Attribute, types: Types) -> AttributeValue:
        if attribute.kind is AttributeKind.INT:
            return random.randint(low, high)
        if isinstance(attribute.default, tuple) and attribute.length is None and random.random() < 0.2:
            return attribute.default
        count = attribute.length if attribute.length is not None else _count(attribute.name, types)
        return tuple(random.randint(low, high) for _ in range(count))

    return choose


def _count(name: str, types: Types) -> int:
    rank = types[0].rank if types and types[0] is not None else 1
    spatial = max(rank - 2, 0)
    return {"pads": 2 * spatial, "strides": spatial, "dilations": spatial, "kernel_shape": spatial}.get(name, rank)


def _bool(random: Random, attribute: Attribute, types: Types) -> bool:
    return random.random() < 0.5


def _float(random: Random, attribute: Attribute, types: Types) -> float:
    default = attribute.default if isinstance(attribute.default, float) else 1.0
    default = float(np.float32(default))  # ONNX attributes are float32
    return random.choice((default, default, 0.25, 0.5, 1.0, 2.0, -0.5))


def _string(random: Random, attribute: Attribute, types: Types) -> str:
    return random.choice(attribute.choices) if attribute.choices else str(attribute.default)


def _floats(random: Random, attribute: Attribute, types: Types) -> AttributeValue:
    if attribute.default is not None and random.random() < 0.5:
        return attribute.default
    count = attribute.length if attribute.length is not None else input_type(types).rank
    return tuple(random.choice((0.25, 0.5, 1.0, 2.0)) for _ in range(count))


def positive(random: Random, attribute: Attribute, types: Types) -> float:
    """Choose a float far enough from 0 to divide by."""
    return random.choice((1e-5, 1e-3, 0.1, 1.0))


def half(random: Random, attribute: Attribute, types: Types) -> str:
    """Choose the default in half of the cases, otherwise any choice."""
    return str(attribute.default) if random.random() < 0.5 else random.choice(attribute.choices)


BY_NAME: Mapping[str, Choose] = MappingProxyType(
    {
        "axis": _axis,
        "axes": _axes,
        "strides": _between(1, 2),
        "dilations": _between(1, 2),
        "kernel_shape": _between(1, 3),
        "pads": _between(0, 1),
        "size": _between(1, 4),
        "block_size": _between(1, 2),
        "epsilon": positive,
        "fuse_code": half,
    }
)
"""Attribute name -> function that chooses the attribute, for names with one meaning in all operations."""

_BY_KIND: Mapping[AttributeKind, Choose] = MappingProxyType(
    {
        AttributeKind.BOOL: _bool,
        AttributeKind.INT: _between(0, 3),
        AttributeKind.FLOAT: _float,
        AttributeKind.STRING: _string,
        AttributeKind.INTS: _between(0, 3),
        AttributeKind.FLOATS: _floats,
    }
)


Chosen = dict[str, AttributeValue]
Attributes = Callable[[Random, Types], Chosen]
"""Function that chooses some attributes; the others are chosen by name or kind."""


def none(random: Random, types: Types) -> Chosen:
    """Return no attributes, so that all are chosen by name or kind."""
    return {}


def divisors(number: int) -> list[int]:
    """Return divisors; raise InvalidModelError for 0."""
    if number == 0:
        raise InvalidModelError("0 has no divisors")
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def convolution(random: Random, types: Types) -> Chosen:
    """Return the number of groups that image and filter imply."""
    image, filter_ = input_type(types), input_type(types, 1)
    channels = image.dimensions[3 if image.layout == "NHWC" else 1]
    return {"group": max(1, channels // max(1, filter_.dimensions[1]))}


def transposed_convolution(random: Random, types: Types) -> Chosen:
    """Choose groups, strides, and output padding smaller than the strides, as ONNX requires."""
    group = random.choice(divisors(input_type(types, 1).dimensions[0]))
    strides = tuple(random.choice((1, 2)) for _ in range(2))
    padding = tuple(random.choice((0, 0, stride - 1)) for stride in strides)
    return {"group": group, "strides": strides, "output_padding": padding}


def cast(random: Random, types: Types) -> Chosen:
    """Choose a frequently used data type."""
    return {"to": random.choice(["float32", "float32", "float16", "int8", "uint8", "int32", "int64", "bool"])}


def equation(random: Random, types: Types) -> Chosen:
    """Choose an Einsum equation: one label per axis, often the same for equal sizes, and the labels of the result."""
    sizes: dict[str, int] = {}
    terms: list[str] = []
    for type_ in types:
        term = ""
        for size in () if type_ is None else type_.dimensions:
            shared = [label for label in sizes if sizes[label] == size and label not in term]
            label = random.choice(shared) if shared and random.random() < 0.6 else ascii_lowercase[len(sizes)]
            sizes[label], term = size, term + label
        terms.append(term)
    result = random.sample(list(sizes), random.randint(0, len(sizes)))
    return {"equation": ",".join(terms) + random.choice(("", f"->{''.join(result)}"))}


def twice(random: Random, types: Types) -> Chosen:
    """Return the `output_shape`: twice the height and width."""
    return {"output_shape": tuple(2 * size for size in input_type(types).dimensions[2:])}


def clip(random: Random, types: Types) -> Chosen:
    """Choose bounds, possibly infinite."""
    infinity = float("inf")
    return {"min": random.choice((-infinity, -1.0, 0.0, 0.5)), "max": random.choice((infinity, 1.0, 6.0, 0.5, -2.0))}


def few_bits(random: Random, types: Types) -> Chosen:
    """Return the number of bits and the block size that the weights imply."""
    depth, (_, blocks, size) = input_type(types).dimensions[-1], input_type(types, 1).dimensions
    fitting = [bits for bits in PACKED_BITS if -(-depth // (size * 8 // bits)) == blocks]
    bits = random.choice(fitting)
    return {"bits": bits, "block_size": size * 8 // bits}


def response(random: Random, types: Types) -> Chosen:
    """Choose normalization factors that keep the denominator away from 0."""
    return {"alpha": random.choice((1e-4, 0.5, 1.0)), "bias": random.choice((0.5, 1.0, 2.0)), "beta": 0.75}


def late_axis(random: Random, types: Types) -> Chosen:
    """Choose a normalization axis; the scale must broadcast to this and later axes."""
    first, second = input_type(types), input_type(types, 1)
    least = max(second.rank, 1)
    if least > first.rank:
        raise InvalidModelError("the scale has more axes than the input")
    return {"axis": random.randint(0, first.rank - least)}


def pads(random: Random, types: Types) -> Chosen:
    """Choose pads per axis, some negative."""
    return {"pads": tuple(random.choice((0, 0, 0, 1, 1, 2, -1)) for _ in range(2 * input_type(types).rank))}


def shape(random: Random, types: Types) -> Chosen:
    """Choose another shape with the same elements."""
    remaining_elements, result = input_type(types).size, list[int]()
    if remaining_elements == 0:
        return {"shape": input_type(types).dimensions}
    while len(result) < random.randint(0, 4):
        size = random.choice(
            [divisor for divisor in range(1, min(remaining_elements, 12) + 1) if remaining_elements % divisor == 0]
        )
        result.append(size)
        remaining_elements //= size
    if remaining_elements > 1 or random.random() < 0.2:
        result.append(remaining_elements)
    random.shuffle(result)
    return {"shape": tuple(result)}


def expanded(random: Random, types: Types) -> Chosen:
    """Choose a shape to broadcast to."""
    grown = tuple(random.choice((1, 2, 3)) if size == 1 else size for size in input_type(types).dimensions)
    front = tuple(random.choice((1, 2)) for _ in range(random.choice((0, 0, 1))))
    return {"shape": front + grown}


def repeats(random: Random, types: Types) -> Chosen:
    """Choose repeats per axis."""
    return {"repeats": tuple(random.choice((1, 1, 2, 3)) for _ in input_type(types).dimensions)}


def perm(random: Random, types: Types) -> Chosen:
    """Choose a permutation, sometimes to NHWC."""
    rank = input_type(types).rank
    if rank == 4 and random.random() < 0.3:
        return {"perm": (0, 2, 3, 1), "output_layout": "NHWC"}
    return {"perm": tuple(random.sample(range(rank), rank)), "output_layout": "NCHW"}


def slices(random: Random, types: Types) -> Chosen:
    """Choose bounds within axes, forward and backward."""
    dimensions = input_type(types).dimensions
    axes = random.sample(range(len(dimensions)), random.randint(0, len(dimensions)))
    chosen = [_slice(random, dimensions[axis]) for axis in axes]
    starts, ends, steps = (tuple(bounds[part] for bounds in chosen) for part in range(3))
    return {"axes": tuple(axes), "starts": starts, "ends": ends, "steps": steps}


def _slice(random: Random, size: int) -> tuple[int, int, int]:
    step = random.choice((1, 1, 2, 3, -1, -2))
    if step > 0:
        start = random.randint(0, max(0, size - 1))
        return start, random.randint(min(start + 1, size), size), step
    return max(0, size - 1), random.choice((0, -(size + 1))), step


def split(random: Random, types: Types) -> Chosen:
    """Choose an axis, and the sizes of its parts."""
    axis = axis_of(random, types)
    size = input_type(types).dimensions[axis]
    cuts = sorted(random.randint(0, size) for _ in range(random.choice((0, 1, 1, 2))))
    return {"axis": axis, "split": tuple(b - a for a, b in zip([0, *cuts], [*cuts, size], strict=True))}


def top_k(random: Random, types: Types) -> Chosen:
    """Choose an axis, and how many elements to select."""
    axis = axis_of(random, types)
    return {"axis": axis, "k": random.randint(1, max(1, input_type(types).dimensions[axis])), "sorted": True}


def resized(random: Random, types: Types) -> Chosen:
    """Choose sizes, and compute their scales."""
    dimensions = input_type(types).dimensions
    sizes = tuple(size if random.random() < 0.5 else random.choice((1, 2, 3, 5, 2 * size)) for size in dimensions)
    return {
        "shape": sizes,
        "scales": tuple(
            target_size / max(1, source_size) for target_size, source_size in zip(sizes, dimensions, strict=True)
        ),
    }
