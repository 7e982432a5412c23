"""Schema rows made from signatures, and checks and shape rules for several families of operations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from itertools import pairwise, zip_longest
from typing import cast

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import ANY, FLOATING, INTEGER, NUMERIC, DataType, Layout, OperandType
from nnadapter.ir.schema import (
    Attribute,
    AttributeKind,
    Attributes,
    AttributeValue,
    FlopsRule,
    OperationSchema,
    Role,
    ShapeRule,
)
from nnadapter.records import dataclass, field

Dimensions = tuple[int, ...]
Types = Sequence[OperandType | None]
"""Input types by role; None if absent."""
Rule = Callable[..., OperandType | tuple[OperandType, ...]]
"""Shape rule: input types, and attributes as keywords -> output types."""
Formula = Callable[..., int]
"""FLOP formula: output types, then the arguments of a `Rule` -> FLOPs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(OperationSchema):
    """Schema row of a built-in operation."""

    cost: str = field(default="other", repr=False)
    """Name of an `nnadapter.costs.work.OperationClass`."""
    quantization: str = field(default="", repr=False)
    """Behavior with quantized operands: none or some of `moves`, `real`, `table`, `product`; see
    `operations.quantization`.
    """


@dataclass(frozen=True, slots=True)
class PerElement:
    """FLOP formula: a fixed number of steps per element of the output or the first input."""

    steps: int
    of_input: bool = False

    def __call__(self, types: Types, outputs: Sequence[OperandType], attributes: Attributes) -> int:
        counted = types[0] if self.of_input else outputs[0]
        assert counted is not None, "the first input is never optional"
        return self.steps * counted.size if self.steps else 0

    def __str__(self) -> str:
        suffix = f" for each element of the {'first input' if self.of_input else 'output'}"
        return f"{self.steps}{suffix if self.steps else ''}"


def per_input(steps: int) -> PerElement:
    """Return the FLOP formula of `steps` per element of the first input."""
    return PerElement(steps, of_input=True)


def row(
    signature: str,
    rule: Rule,
    flops: int | PerElement | Formula,
    source: str,
    *,
    cost: str,
    quantization: str = "",
) -> Row:
    """Return a row of the schema table. `flops` is a formula, or the steps per output element.

    `signature` looks like `TOP_K(input[1..]: number; k: int -> values, indices)`. `?` marks an optional input, `*` a
    variadic one, and `as x` the data type of x. Brackets contain ranks of the first input, or a list's length. The
    default output is `output`.
    """
    type_, _, parameters = signature.removesuffix(")").partition("(")
    parameters, _, outputs = parameters.partition(" -> ")
    inputs, _, attributes = parameters.partition("; ")
    roles = inputs.split(", ")
    return Row(
        type=type_,
        inputs=tuple(map(_role, roles)),
        attributes=tuple(map(_attribute, attributes.split(", "))) if attributes else (),
        outputs=tuple(outputs.removeprefix("*").split(", ")) if outputs else ("output",),
        variadic_outputs=outputs.startswith("*"),
        ranks=_ranks(roles[0]),
        infer=_named(type_, rule),
        flops=_flops(flops),
        source=source,
        cost=cost,
        quantization=quantization,
    )


def family(cost: str, quantization: str = "") -> Callable[..., Row]:
    """Return `row` with these arguments bound, for a family of operations."""
    return partial(row, cost=cost, quantization=quantization)


def read_table(text: str) -> list[list[str]]:
    """Return the rows of a text table, with cells separated by ` | `."""
    return [line.replace("| |", "|  |").split(" | ") for line in text.splitlines()]


_TYPES = {
    "any": ANY,
    "number": NUMERIC,
    "float": FLOATING,
    "integer": INTEGER,
    "index": frozenset({DataType.INT32, DataType.INT64}),
}


@cache
def _role(text: str) -> Role:
    text, _, same = text.partition(" as ")
    text, _, types = text.partition(": ")
    name = text.partition("[")[0].removeprefix("*")
    sets = [_TYPES.get(word) or frozenset({DataType(word)}) for word in (types or "any").split("|")]
    return Role(
        name.removesuffix("?"),
        sets[0] if len(sets) == 1 else frozenset().union(*sets),
        optional=name.endswith("?"),
        variadic=text.startswith("*"),
        same_dtype_as=same or None,
    )


def _ranks(text: str) -> tuple[int, int]:
    low, span, high = text.partition("[")[2].partition("]")[0].partition("..")
    return (int(low), int(high or (64 if span else low))) if low else (0, 64)


@cache
def _attribute(text: str) -> Attribute:
    text, is_optional, default = text.partition(" = ")
    name, _, kind = text.partition(": ")
    kind, _, choices = kind.removesuffix(")").partition("(")
    kind, _, length = kind.removesuffix("]").partition("[")
    allowed = tuple(choices.split("|")) if choices else ()
    if kind == "dtype":
        kind, allowed = "string", tuple(data_type.value for data_type in DataType)
    return Attribute(
        name,
        AttributeKind(kind),
        _DEFAULTS[kind](default) if is_optional else None,
        allowed,
        int(length) if length else None,
    )


_DEFAULTS: dict[str, Callable[[str], AttributeValue]] = {
    "bool": lambda text: text == "True",
    "int": int,
    "float": float,
    "string": str,
    "ints": lambda text: tuple(map(int, text.strip("()").split())),
    "floats": lambda text: tuple(map(float, text.strip("()").split())),
}


def _named(type_: str, rule: Rule) -> ShapeRule:
    def infer(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
        try:
            results = rule(*types, **attributes)
        except InvalidModelError as error:
            raise InvalidModelError(f"{type_}: {error}") from None
        return results if isinstance(results, tuple) else (results,)

    return infer


def _flops(formula: int | PerElement | Formula) -> FlopsRule:
    if isinstance(formula, int):
        return PerElement(formula)
    if isinstance(formula, PerElement):
        return formula

    def flops(types: Types, outputs: Sequence[OperandType], attributes: Attributes) -> int:
        return formula(outputs, *types, **attributes)

    return flops


def floats(attributes: Attributes, name: str) -> tuple[float, ...]:
    """Return the value of an attribute that is a list of floats."""
    return cast("tuple[float, ...]", attributes[name])


def like(type_: OperandType, dimensions: Dimensions | None = None, dtype: DataType | None = None) -> OperandType:
    """Return `type_`, with other dimensions or another data type if passed."""
    dimensions = type_.dimensions if dimensions is None else dimensions
    dtype = dtype or type_.dtype
    if dimensions == type_.dimensions and dtype is type_.dtype and type_.quantization is None:
        return type_
    layout = type_.layout if len(dimensions) == 4 else Layout.NCHW
    return OperandType(dtype, dimensions, layout)


def layout_of(types: Iterable[OperandType], rank: int) -> Layout:
    """Return NHWC if the rank is 4 and an operand has that layout, otherwise NCHW."""
    if rank != 4:
        return Layout.NCHW
    nhwc = any(type_.layout is Layout.NHWC and type_.rank == 4 for type_ in types)
    return Layout.NHWC if nhwc else Layout.NCHW


def as_first(first: OperandType, *others: OperandType | None, **attributes: object) -> OperandType:
    """Return the type of the first input."""
    return like(first)


def along_axis(first: OperandType, axis: int, **attributes: object) -> OperandType:
    """Return the type of the first input after a check of the axis."""
    check_axis(axis, first.rank)
    return like(first)


def broadcast(shapes: Sequence[Dimensions]) -> Dimensions:
    """Return the dimensions to which shapes broadcast, as in numpy. Raises InvalidModelError."""
    result = shapes[0]
    for shape in shapes[1:]:
        if len(shape) != len(result) or shape != result:  # comparing symbolic sizes of different axes would add guards
            result = _broadcast_two(result, shape)
    return result


def _broadcast_two(first: Dimensions, second: Dimensions) -> Dimensions:
    reversed_result = []
    for first_size, second_size in zip_longest(reversed(first), reversed(second), fillvalue=1):
        if first_size != second_size and first_size != 1 and second_size != 1:
            raise InvalidModelError(
                f"dimensions {list(first)} and {list(second)} do not broadcast: {first_size} against {second_size}, "
                "expected equal sizes or a 1"
            )
        reversed_result.append(second_size if first_size == 1 else first_size)
    return tuple(reversed(reversed_result))


def check_broadcasts_to(name: str, dimensions: Dimensions, target: Dimensions) -> None:
    """Raise InvalidModelError unless `dimensions` broadcast to `target`."""
    if broadcast((target, dimensions)) != target:
        raise InvalidModelError(
            f"{name} has dimensions {list(dimensions)}, expected dimensions that broadcast to {list(target)}"
        )


def check_axis(axis: int, rank: int) -> int:
    """Return `axis`, or raise InvalidModelError unless it is in [0, rank)."""
    if not 0 <= axis < rank:
        raise InvalidModelError(f"axis is {axis}, expected one of 0 to {rank - 1} for an input of rank {rank}")
    return axis


def check_axes(axes: Sequence[int], rank: int) -> None:
    """Raise InvalidModelError unless axes are in [0, rank), ascending and not empty."""
    if not axes or any(axis >= next_axis for axis, next_axis in pairwise(axes)):
        raise InvalidModelError(f"axes is {list(axes)}, expected at least one, ascending, no duplicates")
    for axis in axes:
        check_axis(axis, rank)


def check_vector(name: str, type_: OperandType | None, length: int) -> None:
    """Raise InvalidModelError unless an operand is absent or has dimensions [length]."""
    if type_ is not None and type_.dimensions != (length,):
        raise InvalidModelError(f"{name} has dimensions {list(type_.dimensions)}, expected [{length}]")


def check_at_least(smallest: int, **lists: Sequence[int]) -> None:
    """Raise InvalidModelError if a value of a list attribute is less than `smallest`."""
    for name, values in lists.items():
        # `min` would compare symbolic sizes with each other and add guards
        if any(value < smallest for value in values):
            raise InvalidModelError(f"{name} is {list(values)}, expected every value to be at least {smallest}")


def check_length(length: int, **lists: Sequence[object]) -> None:
    """Raise InvalidModelError unless list attributes have `length` values."""
    for name, values in lists.items():
        if len(values) != length:
            raise InvalidModelError(f"{name} has {len(values)} values {list(values)}, expected {length}")


def check_dimensions(name: str, type_: OperandType | None, expected: Dimensions) -> None:
    """Raise InvalidModelError unless an operand is absent or has dimensions `expected`."""
    if type_ is not None and type_.dimensions != expected:
        raise InvalidModelError(f"{name} has dimensions {list(type_.dimensions)}, expected {list(expected)}")


def check_onnx_order(type_: OperandType) -> None:
    """Raise InvalidModelError if an image is NHWC."""
    if type_.layout is not Layout.NCHW:
        raise InvalidModelError(f"input has layout {type_.layout.value}, expected NCHW, the only layout supported")


def check_indices(indices: OperandType, first: OperandType, axis: int) -> None:
    """Raise InvalidModelError if `indices` has another rank than `first`, or is larger along axes other than `axis`."""
    if indices.rank != first.rank:
        raise InvalidModelError(f"indices has rank {indices.rank}, expected {first.rank} as input")
    for other, (size, limit) in enumerate(zip(indices.dimensions, first.dimensions, strict=True)):
        if other != axis and size > limit:
            raise InvalidModelError(f"indices has {size} elements along axis {other}, expected at most {limit}")
