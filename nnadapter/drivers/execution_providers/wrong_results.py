"""What a provider takes and computes otherwise than ONNX says."""

from __future__ import annotations

import onnx

from partition.verdict import Reason, Unsupported

_TRUNCATES_CASTS = frozenset({"QNNExecutionProvider"})
"""Providers whose QuantizeLinear truncates what a Cast makes, where ONNX rounds: the elements behind the last 128 of a
matrix, and others of higher ranks. Seen with version 2.7.0 of QNN's, from float16 to int8."""


def computed_otherwise(model: onnx.ModelProto, provider: str) -> dict[int, Unsupported]:
    """The nodes of a model that a provider computes otherwise than ONNX says, by position."""
    if provider not in _TRUNCATES_CASTS:
        return {}
    nodes = model.graph.node
    casts = {node.output[0] for node in nodes if node.op_type == "Cast" and not node.domain}
    return {
        position: Unsupported(
            Reason.UNSUPPORTED_TYPE, f"{provider} truncates {node.input[0]!r}, which a Cast makes, where ONNX rounds"
        )
        for position, node in enumerate(nodes)
        if node.op_type == "QuantizeLinear" and node.input[0] in casts
    }
