"""Telling a node that is wrong from one that a device lacks something for.

onnx's schemas know which attributes and types an op has, and not which values of them mean anything. Converters do:
they refuse what contradicts the specification as invalid, whatever a device can do.
"""

from __future__ import annotations

import onnx
from onnx import numpy_helper

from nnadapter.converters.context import ConversionContext
from nnadapter.converters.registry import lookup
from nnadapter.onnx.node import read_node
from nnadapter.onnx.refusal import Refusal
from nnadapter.onnx.schemas import since_version
from nnadapter.onnx.values import value_of
from partition.verdict import Reason, Unsupported


def contradiction(model: onnx.ModelProto) -> Unsupported | None:
    """Return what is wrong with a model of one node, None if nothing is known to be.

    Args:
        model: what the node reads are constants, or inputs with types as far as those are known.
    """
    (proto,) = model.graph.node
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    since = since_version(proto.domain, proto.op_type, opsets.get(proto.domain, 1))
    if since is None:
        return None
    node = read_node(proto, proto.name, since)
    if node.contradiction:
        return Unsupported(Reason.INVALID_NODE, node.contradiction)
    convert = lookup(node.domain, proto.op_type, since)
    if convert is None:
        return None
    values = {info.name: value_of(info) for info in (*model.graph.output, *model.graph.input)}
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    context = ConversionContext(values, constants)
    context.begin(node)
    try:
        convert(context, node)
    except Refusal as refusal:
        return refusal.verdict if refusal.verdict.reason is Reason.INVALID_NODE else None
    return None
