"""What the schema table's rows are made of: roles, attributes, and the row itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from nnadapter.ir.operand import ANY, Array, DataType, OperandType, Quantization, QuantizedType

AttributeValue = bool | int | float | str | tuple[int, ...] | tuple[float, ...]
"""What an attribute may hold."""
Attributes = Mapping[str, AttributeValue]
ShapeRule = Callable[[Sequence[OperandType | None], Attributes], tuple[OperandType, ...]]
"""Types of the inputs (None where absent) and attributes -> types of the outputs; raises InvalidModelError."""
FlopsRule = Callable[[Sequence[OperandType | None], Sequence[OperandType], Attributes], int]
"""Types of inputs and outputs, attributes -> floating-point operations, a multiply-add counting two."""

Definition = Callable[..., Any]
"""Arrays of inputs, attributes by name -> the array of the output, or a list of those of the outputs."""
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
    """One input position of an operation.

    Args:
        name: such as "filter".
        dtypes: data types that the operation is defined for, not those that a device can do; any by default.
        optional: the input may be absent.
        variadic: the last role may stand for one or more operands.
        same_dtype_as: name of the role whose data type this one must have.
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
        kind: what it holds: `BOOL`, `INT`, `FLOAT`, `STRING`, `INTS` or `FLOATS`. Lists are tuples.
        default: taken when the attribute is not given; None makes it required.
        choices: for strings: what it may be; () for any text.
        length: for lists: how many values it must have; None for any number.
    """

    name: str
    kind: AttributeKind
    default: AttributeValue | None = None
    choices: tuple[str, ...] = ()
    length: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Example:
    """Inputs and attributes to try an operation with; results are computed, never written down."""

    inputs: tuple[Array | None, ...]
    """By role, None where an optional one is absent."""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """An attribute that is not given takes its default."""
    quantizations: tuple[Quantization | None, ...] = ()
    """By input; those at the end that are left out are not quantized."""
    results: tuple[QuantizedType | None, ...] = ()
    """By output, for those that are quantized and whose type no shape rule tells."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OperationDoc:
    """Documentation that a person needs to implement an operation, besides its row of the schema table."""

    summary: str
    """The effect, in a sentence or two."""
    formula: str
    """The result in terms of inputs and attributes, as plain text."""
    inputs: Mapping[str, str]
    """By role."""
    attributes: Mapping[str, str] = field(default_factory=dict)
    """By name."""
    outputs: Mapping[str, str]
    """By name."""
    example: Example
    traps: tuple[str, ...] = ()
    """Common mistakes, a sentence each."""
    flops: str = ""
    """The FLOP formula in words, if it is not so many steps per element."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationSchema:
    """One row of the schema table: what an operation may look like. `nnadapter.ir.schema_of("CONV_2D")` gives one.

    Args:
        type: the operation's name: NNAPI's or NNAdapter's where they have one.
        inputs: its roles, in order.
        attributes: in the order in which an operation has them.
        outputs: names of the outputs.
        variadic_outputs: the one output name stands for one or more operands.
        ranks: smallest and largest rank of the first input.
        infer: the shape rule: from the types of the inputs (None where absent) and all attributes to the types of the
            outputs. It raises InvalidModelError for what does not fit.
        flops: the FLOP formula: from types of inputs and outputs and attributes to a number; a multiply-add counts two.
        quantized: checks a quantized result. With one, the operation also takes quantized operands, and computes with
            the reals that they stand for if its result is quantized; None: it sees the integers alone.
        definition: for an operation from outside, the function in numpy that computes it: arrays of the inputs
            (None where absent; floating-point ones in float64) and attributes by name to the array of the output, or a
            list of those of the outputs. It writes to none of its inputs. `nnadapter.ir.definition` has the others'.
        always_quantized: has no result that is not quantized.
        source: where the meaning is written down: an NNAPI or NNAdapter code, an ONNX op, a paper.
        doc: what the reference says of an operation from outside; for those of this package,
            `nnadapter ops --describe` knows it.
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
        """The attribute of that name, or None."""
        return next((attribute for attribute in self.attributes if attribute.name == name), None)
