"""Telling a node that is wrong from one that a device lacks something for.

onnx's schemas know which attributes and types an op has, and not which values of them mean anything. Converters do:
they refuse what contradicts the specification as invalid, whatever a device can do.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from nnadapter.converters.context import ConversionContext
from nnadapter.converters.registry import lookup
from nnadapter.ir.operand import Array
from nnadapter.onnx.node import OnnxNode
from nnadapter.onnx.refusal import Refusal
from partition.graph import Value
from partition.verdict import Reason, Unsupported


def contradiction(
    node: OnnxNode, values: Mapping[str, Value], constants: Mapping[str, Array] = MappingProxyType({})
) -> Unsupported | None:
    """Return what is wrong with a node, None if nothing is known to be.

    Args:
        node: the node.
        values: what is known of the values that it reads and makes.
        constants: the contents of those that are known.
    """
    if node.contradiction:
        return Unsupported(Reason.INVALID_NODE, node.contradiction)
    convert = lookup(node.domain, node.op_type, node.since_version) if node.since_version else None
    if convert is None:
        return None
    context = ConversionContext(values, constants)
    context.begin(node)
    try:
        convert(context, node)
    except Refusal as refusal:
        return refusal.verdict if refusal.verdict.reason is Reason.INVALID_NODE else None
    return None
