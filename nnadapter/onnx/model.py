"""A model read once: its message beside the graph and the nodes that were made of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from itertools import chain

import numpy as np
import onnx

from nnadapter.errors import InvalidModelError
from nnadapter.onnx.graphs import read_graph
from nnadapter.onnx.node import OnnxNode, read_node
from nnadapter.onnx.nodes import opsets_of
from nnadapter.onnx.operators import Operators
from nnadapter.onnx.references import array_of, is_reference, without_contents
from nnadapter.onnx.schemas import since_version
from partition.graph import Graph, GraphError, Node


@dataclass(frozen=True, eq=False, kw_only=True)
class OnnxModel:
    """A model; node i of the graph is node i of the message, and `nodes[i]` is the same with its attributes read."""

    model: onnx.ModelProto
    graph: Graph
    """The model's own nodes, one each, in the model's order."""
    nodes: tuple[OnnxNode, ...]
    operators: Operators

    @cached_property
    def opsets(self) -> dict[str, int]:
        """The version of every operator set that the model imports, by domain."""
        return opsets_of(self.model.opset_import)

    @cached_property
    def digest(self) -> str:
        """Of the model's contents; weights one by one, as a model of 2 GiB cannot be written as one."""
        hasher = sha256()
        graph = self.model.graph
        parts = (graph.node, graph.input, graph.output, graph.sparse_initializer)
        for message in chain(*parts, self.model.opset_import, self.model.functions):
            hasher.update(message.SerializeToString(deterministic=True))
        for tensor in graph.initializer:
            if is_reference(tensor):
                hasher.update(without_contents(tensor).SerializeToString(deterministic=True))
                hasher.update(array_of(tensor).reshape(-1).view(np.uint8).data)
            else:
                hasher.update(tensor.SerializeToString(deterministic=True))
        return hasher.hexdigest()


def read_model(
    model: onnx.ModelProto, operators: Operators, origins: Sequence[str] | None = None, read: tuple[Node, ...] = ()
) -> OnnxModel:
    """Return `model` with its nodes read.

    Args:
        model: the model.
        operators: what is known of them beyond what onnx knows.
        origins: for each of its nodes, the name of the model's own node that it stands for; itself if left out.
        read: the nodes, where they have been read already, each standing for itself.

    Raises:
        InvalidModelError: the graph contradicts itself, or an attribute cannot be read.
    """
    stood_for = None if origins is None else [(name,) for name in origins]
    try:
        graph = read_graph(model, origins=stood_for, nodes=read or None)
    except GraphError as error:
        raise InvalidModelError(f"the model's graph is not valid: {error}; export it again") from error
    opsets = opsets_of(model.opset_import)
    nodes = tuple(
        _read_node(proto, node, opsets.get(node.domain, 1))
        for proto, node in zip(model.graph.node, graph.nodes, strict=True)
    )
    return OnnxModel(model=model, graph=graph, nodes=nodes, operators=operators)


def _read_node(proto: onnx.NodeProto, node: Node, opset: int) -> OnnxNode:
    try:
        return read_node(proto, node.name, since_version(node.domain, node.op_type, opset) or 0, node)
    except (TypeError, ValueError) as error:
        raise InvalidModelError(
            f"node {node.name!r} ({node.op_type}) has an attribute that cannot be read: {error}; export the model again"
        ) from error
