"""Sizes of tensors that a graph computes, said by the sizes of what it is called with.

PyTorch knows every size as an expression in those of the inputs, but graphs also ask computed tensors for theirs (what
an upsampling made, say). Such a question would cut a region in two: the size is a number, which Python gets between two
runs. So it is asked of the inputs instead, and what follows from their sizes is computed of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis

_SIZE = torch.ops.aten.sym_size.int


def ask_inputs(graph_module: fx.GraphModule) -> None:
    """Put sizes that follow from those of the graph's inputs in place of sizes of computed tensors."""
    graph = graph_module.graph
    size_nodes = [node for node in graph.find_nodes(op="call_function", target=_SIZE) if _is_computed(node)]
    symbol_nodes = _known(graph) if size_nodes else {}
    for node in size_nodes:
        expression = _expression(node.meta["val"])
        if expression.free_symbols and expression.free_symbols <= symbol_nodes.keys():
            node.replace_all_uses_with(_written(graph, expression, symbol_nodes))
            graph.erase_node(node)
    if size_nodes:
        graph_module.recompile()


def _is_computed(node: fx.Node) -> bool:
    return node.all_input_nodes[0].op == "call_function" and isinstance(node.meta["val"], torch.SymInt)


def _known(graph: fx.Graph) -> Mapping[Any, fx.Node]:
    """The symbols that inputs say: as numbers, or as sizes of tensors."""
    inputs = graph.find_nodes(op="placeholder")
    numbers = {_expression(node.meta["val"]): node for node in inputs if isinstance(node.meta.get("val"), torch.SymInt)}
    tensors = [(node, node.meta["val"].shape) for node in inputs if isinstance(node.meta.get("val"), torch.Tensor)]
    places = {
        _expression(size): (node, axis)
        for node, shape in reversed(tensors)
        for axis, size in enumerate(shape)
        if isinstance(size, torch.SymInt) and _expression(size) not in numbers
    }
    with graph.inserting_after(inputs[-1]):
        size_nodes = {symbol: _asked(graph, *place) for symbol, place in places.items()}
    return {**size_nodes, **numbers}


def _expression(size: torch.SymInt) -> Any:
    """The symbol of an input's size; else what it is in such symbols, which may be a number by now."""
    return size.node.expr


def _asked(graph: fx.Graph, node: fx.Node, axis: int) -> fx.Node:
    size_node = graph.call_function(_SIZE, (node, axis))
    size_node.meta["val"] = node.meta["val"].shape[axis]
    return size_node


def _written(graph: fx.Graph, expression: Any, symbol_nodes: Mapping[Any, fx.Node]) -> fx.Node:
    """The nodes that compute an expression, behind the known sizes; the last one is returned."""
    if expression in symbol_nodes:
        return symbol_nodes[expression]
    tracer = fx.proxy.GraphAppendingTracer(graph)
    proxies = {symbol: fx.Proxy(node, tracer) for symbol, node in symbol_nodes.items()}
    existing_nodes = set(graph.nodes)
    first = next(node for node in graph.nodes if node.op == "call_function" and node not in symbol_nodes.values())
    with graph.inserting_before(first):
        result: fx.Node = sympy_interp(PythonReferenceAnalysis, proxies, expression).node
    for node in graph.nodes:
        if node not in existing_nodes:
            node.meta["val"] = node.target(*fx.map_arg(node.args, lambda arg: arg.meta["val"]))
    return result
