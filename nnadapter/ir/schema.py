"""Row types of the schema table: roles, attributes, rules and documentation of an operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from nnadapter.ir.operand import ANY, Array, DataType, OperandType, Quantization, QuantizedType

AttributeValue = bool | int | float | str | tuple[int, ...] | tuple[float, ...]
"""Value of an attribute."""
Attributes = Mapping[str, AttributeValue]
ShapeRule = Callable[[Sequence[OperandType | None], Attributes], tuple[OperandType, ...]]
"""Shape rule: types of the inputs (None if absent) and attributes -> types of the outputs. Raises InvalidModelError."""
FlopsRule = Callable[[Sequence[OperandType | None], Sequence[OperandType], Attributes], int]
"""FLOP rule: types of inputs and outputs, attributes -> number of FLOPs; a multiply-add counts two."""

Definition = Callable[..., Any]
"""Reference implementation: input arrays, and attributes as keywords -> output array, or a list of them."""
QuantizationRule = Callable[[Sequence[OperandType | None], OperandType, Attributes], None]
"""Check of input types, quantized result type and attributes for consistency. Raises InvalidModelError."""


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
        dtypes: data types that the operation is defined for, which a device may support in part.
        optional: the input may be absent.
        variadic: the last role may take one or more operands.
        same_dtype_as: name of a role with the same data type.
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
        kind: type of the value. Lists are tuples.
        default: None makes the attribute required.
        choices: allowed strings; () for any.
        length: required length of a list; None for any.
    """

    name: str
    kind: AttributeKind
    default: AttributeValue | None = None
    choices: tuple[str, ...] = ()
    length: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """Inputs and attributes of an example. Results are computed, never stored."""

    inputs: tuple[Array | None, ...]
    """Arrays by role; None for an absent one."""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """Omitted attributes take their defaults."""
    quantizations: tuple[Quantization | None, ...] = ()
    """Quantizations by input; omitted trailing ones are None."""
    results: tuple[QuantizedType | None, ...] = ()
    """Types by output, for quantized results that no shape rule infers."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OperationDoc:
    """Documentation that an implementer of an operation needs, in addition to the schema row."""

    summary: str
    """Effect, in one or two sentences."""
    formula: str
    """Result as a plain-text formula of inputs and attributes."""
    inputs: Mapping[str, str]
    """Descriptions by role."""
    attributes: Mapping[str, str] = field(default_factory=dict)
    """Descriptions by name."""
    outputs: Mapping[str, str]
    """Descriptions by name."""
    example: Example
    traps: tuple[str, ...] = ()
    """Common mistakes, one sentence each."""
    flops: str = ""
    """FLOP formula in words, unless it is a constant per element."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationSchema:
    """One row of the schema table: the contract of an operation. `nnadapter.ir.schema_of("CONV_2D")` returns one.

    Args:
        type: name of the operation: NNAPI's or NNAdapter's if they have one.
        inputs: roles, in order.
        attributes: in the order of `Operation.attributes`.
        outputs: names of the outputs.
        variadic_outputs: the single output name covers one or more operands.
        ranks: smallest and largest rank of the first input.
        infer: shape rule. It gets the types of the inputs (None if absent) and all attributes, returns the types of the
            outputs, and raises InvalidModelError for inputs that do not fit.
        flops: FLOP rule: types of inputs, types of outputs, attributes -> count; a multiply-add counts two.
        quantized: check of a quantized result. With a check, the operation accepts quantized operands, and computes
            with their real values if its result is quantized. None: it computes with the integers only.
        definition: for a custom or external operation, its reference implementation in numpy: input arrays (None if
            absent, floating-point ones in float64), attributes as keywords -> output array or list of them. It must not
            write to its inputs. Built-in operations have theirs in `nnadapter.ir.definition`.
        always_quantized: every result is quantized.
        source: specification of the operation: an NNAPI or NNAdapter code, an ONNX op, a paper.
        doc: documentation of a custom or external operation. `nnadapter ops --describe` has that of built-in ones.
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
