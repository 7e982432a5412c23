"""What the schema table's rows are made of: roles, attributes, and the row itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from nnadapter.ir.operand import ANY, DataType, OperandType

AttributeValue = bool | int | float | str | tuple[int, ...] | tuple[float, ...]
"""What an attribute may hold."""
Attributes = Mapping[str, AttributeValue]
ShapeRule = Callable[[Sequence[OperandType | None], Attributes], tuple[OperandType, ...]]
"""Types of the inputs (None where absent) and attributes -> types of the outputs; raises InvalidModelError."""
FlopsRule = Callable[[Sequence[OperandType | None], Sequence[OperandType], Attributes], int]
"""Types of inputs and outputs, attributes -> floating-point operations, a multiply-add counting two."""

QuantizationRule = Callable[[Sequence[OperandType | None], OperandType, Attributes], None]
"""Types of the inputs, a quantized result, attributes; raises InvalidModelError if they do not belong together."""


class AttributeKind(StrEnum):
    """The type of an attribute."""

    BOOL = "bool"
    INT = "int"
    FLOAT = "float"
    STRING = "string"
    INTS = "ints"
    FLOATS = "floats"


@dataclass(frozen=True, slots=True)
class Role:
    """One input position of an operation."""

    name: str
    dtypes: frozenset[DataType] = ANY
    """Data types that the operation is defined for, not those that a device can do."""
    optional: bool = False
    """May be absent."""
    variadic: bool = False
    """The last role may stand for one or more operands."""
    same: str | None = None
    """Name of the role whose data type this one must have."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """One named attribute of an operation."""

    name: str
    kind: AttributeKind
    default: AttributeValue | None = None
    """Taken when the attribute is not given; None makes it required."""
    choices: tuple[str, ...] = ()
    """For strings: what it may be."""
    length: int | None = None
    """For lists: how many values it must have; None for any number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationSchema:
    """One row of the schema table."""

    type: str
    """The operation's name: NNAPI's or NNAdapter's where they have one."""
    inputs: tuple[Role, ...]
    attributes: tuple[Attribute, ...] = ()
    outputs: tuple[str, ...] = ("output",)
    """Names of the outputs."""
    variadic_outputs: bool = False
    """The one output name stands for one or more operands."""
    ranks: tuple[int, int] = (0, 64)
    """Smallest and largest rank of the first input."""
    infer: ShapeRule = field(repr=False)
    """The shape rule."""
    flops: FlopsRule = field(repr=False)
    """The FLOP formula."""
    quantized: QuantizationRule | None = field(default=None, repr=False)
    """Checks a quantized result. With one, the operation also takes quantized operands, and computes with the reals
    that they stand for if its result is quantized; None: it sees the integers alone."""
    always_quantized: bool = False
    """Has no result that is not quantized."""
    source: str
    """Where the meaning is written down: an NNAPI or NNAdapter code, an ONNX op, a paper."""

    def attribute(self, name: str) -> Attribute | None:
        """The attribute of that name, or None."""
        return next((attribute for attribute in self.attributes if attribute.name == name), None)
