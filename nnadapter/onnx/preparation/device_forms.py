"""Variants of a prepared model for devices that lack ops: expanded bodies, dequantized weights."""

from __future__ import annotations

from collections.abc import Collection

import onnx

from nnadapter import limits
from nnadapter.ir.operand import Array
from nnadapter.onnx.body import NEWEST_OPSET, body_of
from nnadapter.onnx.construction import array_info
from nnadapter.onnx.graphs import value_of_type
from nnadapter.onnx.inlining import Bodies, expand_functions, typed_body
from nnadapter.onnx.model import OnnxNode
from nnadapter.onnx.preparation.folding import Folding
from nnadapter.onnx.preparation.prepare import Prepared, prepare_expanded
from nnadapter.onnx.schemas import Refusal, is_further
from nnadapter.onnx.standard_bodies import has_standard_body, standard_body, with_standard_bodies
from nnadapter.records import replace
from partition.graph import Value


def function_body(prepared: Prepared, position: int) -> onnx.FunctionProto | None:
    """Return the body of the node at `position` for its input types, or None."""
    node = prepared.nodes[position]
    if not node.since_version:
        return None
    if is_further(node.domain, node.op_type, node.since_version):
        return _further_body(prepared, node)
    if has_standard_body(node):
        body = standard_body(node, *_node_facts(prepared, node))
        return None if body is None else body.function(node)
    types = [_type(prepared, name) for name in node.inputs]
    proto = prepared.model.graph.node[position]
    return typed_body(proto, node.since_version, node.domain, prepared.opsets[node.domain], types)


def _further_body(prepared: Prepared, node: OnnxNode) -> onnx.FunctionProto | None:
    values, constants, opset = _node_facts(prepared, node)
    try:
        body = body_of(node, values, constants, opset)
    except Refusal:
        return None
    return None if body is None else with_standard_bodies(body, values, constants).function(node)


def _node_facts(prepared: Prepared, node: OnnxNode) -> tuple[list[Value | None], dict[int, Array], int]:
    constants_by_name = prepared.constants
    values = [value_of_type(name, _type(prepared, name)) if name else None for name in node.inputs]
    constants = {
        position: constants_by_name[name] for position, name in enumerate(node.inputs) if name in constants_by_name
    }
    return values, constants, prepared.opsets.get("", NEWEST_OPSET)


def _type(prepared: Prepared, name: str) -> onnx.TypeProto:
    if name in prepared.constants:
        return array_info(name, prepared.constants[name]).type
    return prepared.types[name].type if name in prepared.types else onnx.TypeProto()


def expanded(prepared: Prepared, bodies: Bodies) -> tuple[Prepared, tuple[str, ...]] | None:
    """Return the model with the nodes in `bodies` expanded, and each node's original name; None if none can be."""
    model, names = expand_functions(prepared.model, prepared.operators, bodies)
    if model is prepared.model:
        return None
    origin = {node.name: node.origins[0] if node.origins else node.name for node in prepared.graph.nodes}
    expansion = prepare_expanded(model, [origin[name] for name in names], prepared.operators)
    # Both models stay alive, so they share weights.
    constants = {name: prepared.constants.get(name, array) for name, array in expansion.constants.items()}
    functions = [(origin[node.name], node) for node in prepared.nodes if node.name in bodies]
    expansion = replace(expansion, constants=constants, functions=(*prepared.functions, *functions))
    return replace(expansion, original=prepared.original, branch_decisions=prepared.branch_decisions), names


def with_dequantized(prepared: Prepared, positions: Collection[int]) -> Prepared:
    """Fold DequantizeLinear at `positions` and nodes that get constant inputs thereby, up to `limits.FOLDED_BYTES`."""
    folding = Folding(prepared, prepared.constants, limits.FOLDED_BYTES, frozenset(positions))
    for index in prepared.remaining:
        folding.await_evaluation(index, prepared.values)
    folding.evaluate()
    return replace(
        prepared,
        constants={**prepared.constants, **folding.folded},
        evaluated=prepared.evaluated | folding.evaluated,
    )
