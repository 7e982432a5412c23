"""Which int64 values count elements or positions, and stay far below 2^31, which the engine computes in 32 bits."""

from __future__ import annotations

from collections.abc import Collection

import onnx

from nnadapter.onnx.domains import plain_domain
from nnadapter.onnx.nodes import captured_names
from nnadapter.onnx.sizes import MEASURING

_COUNTING = frozenset(("ArgMax", "ArgMin", "NonMaxSuppression", "NonZero", "Shape", "Size"))
"""Ops whose int64 results count."""
MOVING = frozenset((
    "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Identity", "Reshape", "Slice", "Split", "Squeeze",
    "Tile", "Transpose", "Unsqueeze",
))  # fmt: skip
"""Ops that move the elements of their first input."""


def counted_names(model: onnx.ModelProto) -> Collection[str]:
    """Return the values that count, and what is moved of them, in a model whose nodes are in order."""
    names: set[str] = set()
    for node in model.graph.node:
        if plain_domain(node.domain):
            continue
        if node.op_type in _COUNTING or (node.op_type in MOVING and node.input[0] in names):
            names.update(filter(None, node.output))
    return names


def measured_names(model: onnx.ModelProto) -> Collection[str]:
    """Return the values that nodes make of shapes of other values, and of constants beside them."""
    constants = {tensor.name for tensor in model.graph.initializer}
    names: set[str] = set()
    for node in model.graph.node:
        read = {*filter(None, node.input), *captured_names(node)}
        is_measuring = node.op_type in MEASURING and not plain_domain(node.domain)
        if is_measuring or (not names.isdisjoint(read) and all(name in names or name in constants for name in read)):
            names.update(filter(None, node.output))
    return names
