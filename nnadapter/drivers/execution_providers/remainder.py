"""A model without some of its nodes."""

from __future__ import annotations

from collections.abc import Container

import onnx

from nnadapter.onnx.building import copied
from nnadapter.onnx.nodes import captured_names
from nnadapter.onnx.propagation import infer


def without(model: onnx.ModelProto, positions: Container[int]) -> onnx.ModelProto:
    """Return `model` without the nodes at `positions`.

    1. What the others read of them becomes an input, of the type that inference finds.
    2. What they read of the others becomes an output.
    3. Outputs of the model that they made are gone.
    """
    remainder = copied(model)
    remaining_nodes = [node for position, node in enumerate(model.graph.node) if position not in positions]
    removed_nodes = [node for position, node in enumerate(model.graph.node) if position in positions]
    produced_names, lost = (
        {name for node in nodes for name in node.output if name} for nodes in (remaining_nodes, removed_nodes)
    )
    graph, types = remainder.graph, infer(model)
    output_names = {value.name for value in graph.output}
    del graph.node[:], graph.output[:]
    graph.node.extend(remaining_nodes)
    graph.input.extend(
        types.get(name) or onnx.ValueInfoProto(name=name) for name in _read(remaining_nodes) if name in lost
    )
    graph.output.extend(value for value in model.graph.output if value.name not in lost)
    added_names = (name for name in _read(removed_nodes) if name in produced_names and name not in output_names)
    graph.output.extend(types.get(name) or onnx.ValueInfoProto(name=name) for name in added_names)
    return remainder


def _read(nodes: list[onnx.NodeProto]) -> dict[str, None]:
    return dict.fromkeys(name for node in nodes for name in (*node.input, *captured_names(node)))
