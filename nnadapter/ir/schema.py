"""Rows of the schema table: input roles, attributes, rules and documentation of one operation each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from nnadapter.ir.operand import ANY, Array, DataType, OperandType, Quantization, QuantizedType
from nnadapter.records import dataclass, field

AttributeValue = bool | int | float | str | tuple[int, ...] | tuple[float, ...]
Attributes = Mapping[str, AttributeValue]
ShapeRule = Callable[[Sequence[OperandType | None], Attributes], tuple[OperandType, ...]]
"""Shape rule: input types (None if absent) and attributes -> output types. Raises InvalidModelError."""
FlopsRule = Callable[[Sequence[OperandType | None], Sequence[OperandType], Attributes], int]
"""FLOP rule: input types, output types and attributes -> FLOPs. A multiply-add counts two."""

Definition = Callable[..., Any]
"""Reference implementation: input arrays, and attributes as keywords -> output array, or list of arrays."""
QuantizationRule = Callable[[Sequence[OperandType | None], OperandType, Attributes], None]
"""Check of a quantized result: input types, result type, attributes. Raises InvalidModelError."""


def ints(attributes: Attributes, name: str) -> tuple[int, ...]:
    """Return the value of an attribute that is a list of integers."""
    return attributes[name]  # type: ignore[return-value]


class AttributeKind(StrEnum):
    """Type of an attribute."""

    BOOL = "bool"
    INT = "int"
    FLOAT = "float"
    STRING = "string"
    INTS = "ints"
    FLOATS = "floats"


@dataclass(frozen=True, slots=True)
class Role:
    """One input position of an operation.

    Args:
        name: such as "filter".
        dtypes: data types that the operation is defined for.
        optional: may be absent.
        variadic: the last role may take several operands.
        same_dtype_as: role with the same data type.
    """

    name: str
    dtypes: frozenset[DataType] = ANY
    optional: bool = False
    variadic: bool = False
    same_dtype_as: str | None = None


@dataclass(frozen=True, slots=True)
class Attribute:
    """One named attribute of an operation.

    Args:
        name: such as "strides".
        kind: type of the value; lists are tuples.
        default: None if required.
        choices: allowed strings; () for any.
        length: of a list; None for any.
    """

    name: str
    kind: AttributeKind
    default: AttributeValue | None = None
    choices: tuple[str, ...] = ()
    length: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """Example for the documentation of an operation. Its results are computed by the definition."""

    inputs: tuple[Array | None, ...]
    """Arrays by role; None if absent."""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    quantizations: tuple[Quantization | None, ...] = ()
    """Quantization of each input, None if not quantized."""
    results: tuple[QuantizedType | None, ...] = ()
    """Data type and quantization of each output, None if the shape rule infers its type."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OperationDoc:
    """Documentation for implementers of an operation."""

    summary: str
    formula: str
    inputs: Mapping[str, str]
    attributes: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str]
    example: Example
    traps: tuple[str, ...] = ()
    flops: str = ""
    """FLOPs in words; empty if they are a constant per element."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationSchema:
    """One row of the schema table, such as `nnadapter.ir.schema_of("CONV_2D")`.

    Args:
        type: NNAPI's or NNAdapter's name if there is one.
        inputs: roles, in order.
        attributes: in order.
        outputs: names.
        variadic_outputs: the only output name covers several operands.
        ranks: smallest and largest rank of the first input.
        infer: shape rule; raises InvalidModelError for inputs that do not fit.
        flops: FLOP rule; a multiply-add counts two.
        quantized: check of a quantized result. If set, the operation accepts quantized operands and computes with real
            values if its result is quantized; otherwise it sees integers only.
        definition: reference implementation in numpy of an external operation: input arrays (None if absent,
            floating-point ones in float64), attributes as keywords -> output array or list. It must not modify inputs.
        always_quantized: every result is quantized.
        source: specification: an NNAPI or NNAdapter code, an ONNX op, a paper.
        doc: documentation of an external operation.
    """

    type: str
    inputs: tuple[Role, ...]
    attributes: tuple[Attribute, ...] = ()
    outputs: tuple[str, ...] = ("output",)
    variadic_outputs: bool = False
    ranks: tuple[int, int] = (0, 64)
    infer: ShapeRule = field(repr=False)
    flops: FlopsRule = field(repr=False)
    quantized: QuantizationRule | None = field(default=None, repr=False)
    definition: Definition | None = field(default=None, repr=False)
    always_quantized: bool = False
    source: str
    doc: OperationDoc | None = field(default=None, repr=False, compare=False)

    def attribute(self, name: str) -> Attribute | None:
        """Return the attribute with this name, or None."""
        return next((attribute for attribute in self.attributes if attribute.name == name), None)
