"""What is known of operators beyond what onnx knows: that is said by who prepares a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from nnadapter.ir.operand import Array, OperandType
from nnadapter.onnx.node import OnnxNode
from partition.graph import Value
from partition.verdict import Unsupported

TypeRule = Callable[[OnnxNode, int, Sequence[Value | None]], Sequence[OperandType] | None]
"""A node of an op that onnx knows nothing of, the version of its op, and what is known of its inputs (None where one is
absent) -> the types of its outputs, or None."""
TypesByConversion = Callable[[OnnxNode, Mapping[str, Value], Mapping[str, Array]], Mapping[str, OperandType] | None]
"""A node, what is known of values and the contents of constants -> the types of its outputs by name, or None."""
Rules = Mapping[tuple[str, str], TypeRule]
"""By domain and op type."""
NO_RULES: Rules = MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False)
class Operators:
    """What converters and kernels know of operators."""

    has_converter: Callable[[str, str, int], bool]
    """Whether there is a converter, by domain, op type and schema version."""
    contradiction: Callable[[OnnxNode, Mapping[str, Value], Mapping[str, Array]], Unsupported | None]
    """What is wrong with a node, by what is known of values and the contents of constants."""
    output_types: TypesByConversion = lambda node, values, constants: None
    """Types of the results of an op that onnx knows nothing of and that has a converter."""
    rules: Rules = field(default_factory=lambda: NO_RULES)
    """Types of the results of ops that onnx knows nothing of."""
