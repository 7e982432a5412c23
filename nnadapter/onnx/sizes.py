"""Which values of a model follow from shapes alone, whatever the contents of its inputs."""

from __future__ import annotations

import onnx

from nnadapter.onnx.domains import plain_domain
from nnadapter.onnx.nodes import captured_names

MEASURING = frozenset(("Shape", "Size"))
"""ONNX's ops that tell of a tensor's shape, and of nothing that it holds."""


def size_names(model: onnx.ModelProto) -> frozenset[str]:
    """Return the values that nodes make of shapes and constants alone, in a model whose nodes are in order."""
    computable_names = {tensor.name for tensor in model.graph.initializer}
    names: set[str] = set()
    for node in model.graph.node:
        measures = node.op_type in MEASURING and not plain_domain(node.domain)
        if measures or (
            computable_names.issuperset(filter(None, node.input)) and computable_names.issuperset(captured_names(node))
        ):
            names.update(node.output)
            computable_names.update(node.output)
    return frozenset(names)


def has_open_inputs(model: onnx.ModelProto) -> bool:
    """Whether an input leaves a dimension open, or all of them."""
    tensors = (value.type.tensor_type for value in model.graph.input if value.type.HasField("tensor_type"))
    return any(
        not tensor.HasField("shape") or any(not size.HasField("dim_value") for size in tensor.shape.dim)
        for tensor in tensors
    )
