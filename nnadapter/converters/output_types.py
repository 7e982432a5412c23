"""Types of what a node makes, where onnx does not know its op: those of the operations that it is converted to."""

from __future__ import annotations

from collections.abc import Mapping

from nnadapter.converters.context import ConversionContext
from nnadapter.converters.registry import lookup
from nnadapter.ir.operand import Array, OperandType
from nnadapter.onnx.node import OnnxNode
from nnadapter.onnx.refusal import Refusal
from partition.graph import Value


def output_types(
    node: OnnxNode, values: Mapping[str, Value], constants: Mapping[str, Array]
) -> Mapping[str, OperandType] | None:
    """Return the types of a node's outputs by name, None where it has no converter or is refused.

    Args:
        node: the node.
        values: what is known of the values that it reads.
        constants: the contents of those that are known.
    """
    convert = lookup(node.domain, node.op_type, node.since_version)
    if convert is None:
        return None
    context = ConversionContext(values, constants)
    context.begin(node)
    try:
        convert(context, node)
    except Refusal:
        return None
    made = context.operand_of
    return {name: context.type_of(made[name]) for name in node.outputs if name in made}
