"""What a provider takes and computes otherwise than ONNX says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set

import onnx

from nnadapter.onnx.attributes import value_of_attribute
from partition.verdict import Reason, Unsupported

_QNN = "QNNExecutionProvider"
"""What is said of it was seen with version 2.7.0, in its emulator."""
_Constants = Set[str]
"""Names of values that are known beforehand."""
_FORMS: Mapping[str, tuple[Callable[[onnx.NodeProto, _Constants], bool], str]] = {
    "AveragePool": (lambda node, _: bool(_stated(node, "count_include_pad")), "does not count padding"),
    "Gather": (lambda node, constants: node.input[1] not in constants, "takes computed indices below 0 for others"),
    "GatherElements": (
        lambda node, constants: node.input[1] not in constants,
        "takes computed indices below 0 for others",
    ),
    "GatherND": (lambda node, _: True, "takes indices below 0 for others"),
    "Mish": (lambda node, _: True, "is off by more than a hundredth"),
    "Pad": (lambda node, _: _stated(node, "mode") == "edge", "pads with other numbers than those at the edge"),
    "Softplus": (lambda node, _: True, "is off by more than a hundredth"),
}
"""By op of ONNX: which nodes, and what QNN does with them."""


def computed_otherwise(model: onnx.ModelProto, provider: str) -> dict[int, Unsupported]:
    """The nodes of a model that a provider computes otherwise than ONNX says, by position."""
    if provider != _QNN:
        return {}
    nodes = model.graph.node
    casts = {node.output[0] for node in nodes if node.op_type == "Cast" and not node.domain}
    constants = {tensor.name for tensor in model.graph.initializer}
    refused = {
        position: Unsupported(Reason.UNSUPPORTED_ATTRIBUTE, f"{provider} {_FORMS[node.op_type][1]}")
        for position, node in enumerate(nodes)
        if not node.domain and node.op_type in _FORMS and _FORMS[node.op_type][0](node, constants)
    }
    # QuantizeLinear truncates the elements behind the last 128 of a matrix, and others of higher ranks.
    refused |= {
        position: Unsupported(
            Reason.UNSUPPORTED_TYPE, f"{provider} truncates {node.input[0]!r}, which a Cast makes, where ONNX rounds"
        )
        for position, node in enumerate(nodes)
        if node.op_type == "QuantizeLinear" and node.input[0] in casts
    }
    return refused


def _stated(node: onnx.NodeProto, name: str) -> object:
    return next((value_of_attribute(each) for each in node.attribute if each.name == name), None)
