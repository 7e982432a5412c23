"""Conversion of nodes to CUSTOM: kernel calls, or ONNX ops that a device takes unconverted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from nnadapter.converters.context import ConversionContext, invalid
from nnadapter.converters.registry import NodeWriter, OnnxNode, Reason, Refusal, exporter
from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import OperandType
from nnadapter.ir.operations.custom import CUSTOM, CustomCall
from nnadapter.onnx.schemas import schema_defaults
from nnadapter.records import dataclass, field
from partition.graph import Unsupported

Answer = Callable[
    [OnnxNode, int, Mapping[str, object], Sequence[OperandType | None], tuple[OperandType, ...] | None],
    tuple[OperandType, ...] | Unsupported,
]
"""(node, op version, attributes, input types, output types if known) -> output types, or the reason for a refusal."""


@dataclass(frozen=True, eq=False)
class KernelCalls:
    """Nodes that custom kernels compute or devices take unconverted."""

    answer: Answer
    ops: frozenset[tuple[str, str]] = frozenset()
    """(domain, op type) with a kernel."""
    domains: frozenset[str] = frozenset()
    opsets: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    forced: frozenset[str] = frozenset()
    """Nodes to convert to calls despite a converter."""

    def concerns(self, node: OnnxNode) -> bool:
        return self.has_kernel(node) or node.domain in self.domains

    def has_kernel(self, node: OnnxNode) -> bool:
        return (node.domain, node.op_type) in self.ops

    def version_of(self, node: OnnxNode) -> int:
        """Return the op's schema version; without a schema, its domain's opset."""
        return node.since_version or self.opsets.get(node.domain, 1)


def attributes_of(node: OnnxNode) -> dict[str, object]:
    """Return attributes with the schema's defaults."""
    return {**schema_defaults(node.domain, node.op_type, node.since_version), **node.attributes}


def convert_call(calls: KernelCalls, context: ConversionContext, node: OnnxNode) -> None:
    """Convert a node to CUSTOM, with the output types from `calls.answer`, or raise Refusal."""
    operands = [context.operand(name) if name else None for name in node.inputs]
    types = [None if operand is None else _with_static_sizes(context.type_of(operand)) for operand in operands]
    attributes = attributes_of(node)
    output_types = calls.answer(node, calls.version_of(node), attributes, types, _declared(context, node))
    if isinstance(output_types, Unsupported):
        raise Refusal(output_types.reason, output_types.detail)
    if len(node.outputs) > len(output_types):
        raise invalid(f"{node.op_type} has {len(node.outputs)} outputs; its kernel returns {len(output_types)}")
    present = tuple(position for position, operand in enumerate(operands) if operand is not None)
    call = CustomCall(
        domain=node.domain,
        op_type=node.op_type,
        since_version=calls.version_of(node),
        attributes=attributes,
        present=present,
        outputs=output_types,
    )
    if not present:
        raise Refusal(Reason.UNSUPPORTED_OPERATION, f"{node.op_type} has no inputs; kernels need at least one")
    try:
        written = call.to_attributes()
    except InvalidModelError as error:
        raise Refusal(Reason.UNSUPPORTED_ATTRIBUTE, f"{node.op_type}: {error}") from error
    context.add(CUSTOM, [index for index in operands if index is not None], written, outputs=node.outputs)


def _with_static_sizes(type_: OperandType) -> OperandType:
    """Drop symbolic sizes, because a kernel's answer holds for concrete ones only."""
    return OperandType(type_.dtype, tuple(int(size) for size in type_.dimensions), type_.layout, type_.quantization)


def _declared(context: ConversionContext, node: OnnxNode) -> tuple[OperandType, ...] | None:
    try:
        return tuple(_with_static_sizes(context.declared(name)) for name in node.outputs if name)
    except Refusal:
        return None


@exporter(CUSTOM)
def export_custom(write: NodeWriter) -> Sequence[str]:
    """Export CUSTOM as its op, in its domain and version."""
    call = CustomCall.of(write.operation.attributes)
    names = [name or "" for name in call.spread(write.inputs)]
    return write.of_version(call.domain, call.op_type, call.since_version, names, len(call.outputs), call.attributes)
