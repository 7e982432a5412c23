"""Nodes in an order in which they can run: ONNX asks for it, converters forget it, and ONNX Runtime sorts."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

import onnx

from partition.onnx_nodes import captured_names


def in_order(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with each node behind those that make what it reads; the same object if that is so already.

    Nodes keep their order as far as they can. Of nodes that read each other in a circle the order stays as it is, for
    others to complain of. Weights are copied only where something is out of order.
    """
    nodes = model.graph.node
    if _is_ordered(nodes):
        return model
    maker = {name: position for position, node in enumerate(nodes) for name in node.output if name}
    before = [
        {maker[name] for name in (*node.input, *captured_names(node)) if name in maker} - {at}
        for at, node in enumerate(nodes)
    ]
    order = _sorted(before)
    if len(order) < len(nodes) or order == [*range(len(nodes))]:
        return model
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    del changed.graph.node[:]
    changed.graph.node.extend(nodes[position] for position in order)
    return changed


def _is_ordered(nodes: Sequence[onnx.NodeProto]) -> bool:
    """Whether no node reads what it or a later one makes."""
    coming = {name for node in nodes for name in node.output if name}
    for node in nodes:
        if not (coming.isdisjoint(node.input) and coming.isdisjoint(captured_names(node))):
            return False
        coming.difference_update(node.output)
    return True


def _sorted(before: list[set[int]]) -> list[int]:
    """The first that can run comes first; those in circles, and behind them, are missing."""
    readers: list[list[int]] = [[] for _ in before]
    for position, makers in enumerate(before):
        for maker in makers:
            readers[maker].append(position)
    waiting = [len(makers) for makers in before]
    ready = [position for position, count in enumerate(waiting) if not count]
    heapify(ready)
    order = []
    while ready:
        position = heappop(ready)
        order.append(position)
        for reader in readers[position]:
            waiting[reader] -= 1
            if not waiting[reader]:
                heappush(ready, reader)
    return order
