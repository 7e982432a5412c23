"""Nodes in an order in which they can run: ONNX asks for it, converters forget it, and ONNX Runtime sorts."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

import onnx

from nnadapter.onnx.building import with_nodes
from nnadapter.onnx.graphs import read_nodes
from partition.graph import Node


def in_order(model: onnx.ModelProto, nodes: Sequence[Node] | None = None) -> onnx.ModelProto:
    """Return the model with each node behind those that make what it reads; the same object if that is so already.

    Nodes keep their order as far as they can. Of nodes that read each other in a circle the order stays as it is, for
    others to complain of. Weights are copied only where something is out of order.

    Args:
        model: the model.
        nodes: of its graph, where they have been read already.
    """
    nodes = read_nodes(model) if nodes is None else nodes
    if _is_ordered(nodes):
        return model
    maker = {name: position for position, node in enumerate(nodes) for name in node.outputs if name}
    dependencies = [{maker[name] for name in node.reads if name in maker} - {at} for at, node in enumerate(nodes)]
    order = _sorted(dependencies)
    if len(order) < len(nodes) or order == [*range(len(nodes))]:
        return model
    return with_nodes(model, (model.graph.node[position] for position in order))


def _is_ordered(nodes: Sequence[Node]) -> bool:
    """Whether no node reads what it or a later one makes: nothing was read before it is made for the first time."""
    read: set[str] = set()
    produced_names: set[str] = set()
    for node in nodes:
        read.update(node.reads)
        if not read.isdisjoint(node.outputs) and any(
            name in read and name not in produced_names for name in node.outputs
        ):
            return False
        produced_names.update(node.outputs)
    return True


def _sorted(dependencies: list[set[int]]) -> list[int]:
    """The first that can run comes first; those in circles, and behind them, are missing."""
    readers: list[list[int]] = [[] for _ in dependencies]
    for position, makers in enumerate(dependencies):
        for maker in makers:
            readers[maker].append(position)
    waiting = [len(makers) for makers in dependencies]
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
