"""What a provider must not be shown, since it ends the process."""

from __future__ import annotations

import onnx

from nnadapter.onnx.nodes import captured_names
from nnadapter.onnx.propagation import infer
from nnadapter.onnx.values import value_of_type
from partition.verdict import Reason, Unsupported

_DIVIDES_BY_ELEMENTS = frozenset({"QNNExecutionProvider"})
"""Providers that divide by the number of a tensor's elements. Seen with version 2.7.0 of QNN's, on Neg of [0, 3]."""


def crashing(model: onnx.ModelProto, provider: str) -> dict[int, Unsupported]:
    """The nodes of a model that end the process when the provider compiles them, by position."""
    if provider not in _DIVIDES_BY_ELEMENTS:
        return {}
    empty = {name for name, info in infer(model).items() if 0 in (value_of_type(name, info.type).shape or ())}
    empty |= {tensor.name for tensor in model.graph.initializer if 0 in tensor.dims}
    first = (
        next((name for name in (*node.input, *captured_names(node), *node.output) if name in empty), None)
        for node in model.graph.node
    )
    return {
        position: Unsupported(Reason.UNSUPPORTED_TYPE, f"{provider} crashes on {name!r}, a tensor without elements")
        for position, name in enumerate(first)
        if name is not None
    }
