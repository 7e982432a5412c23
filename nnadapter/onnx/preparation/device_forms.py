"""Variants of a prepared model for devices that lack ops: expanded bodies, dequantized weights."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import onnx

from nnadapter import limits
from nnadapter.ir.operand import Array
from nnadapter.onnx.body import NEWEST_OPSET, OLDEST_OPSET, Body, BodyBuilder, BodyRule, body_of
from nnadapter.onnx.construction import array_info
from nnadapter.onnx.graphs import value_of_type
from nnadapter.onnx.inlining import Bodies, expand_functions, typed_body
from nnadapter.onnx.model import OnnxNode
from nnadapter.onnx.preparation.folding import Folding
from nnadapter.onnx.preparation.prepare import Prepared, prepare_again
from nnadapter.onnx.schemas import Refusal, is_further
from nnadapter.onnx.standard_bodies import (
    OLDEST_INTEGER_OPSET,
    OLDEST_STABLE_OPSET,
    attention_body,
    conv_integer_body,
    dynamic_quantize_linear_body,
    mat_mul_integer_body,
    qlinear_conv_body,
    qlinear_mat_mul_body,
    rotary_embedding_body,
    softplus_body,
    written_through,
)
from nnadapter.records import replace
from partition.graph import Value


class _Writing(NamedTuple):
    rule: BodyRule
    oldest: int = OLDEST_OPSET
    """Oldest opset of the rule."""


_WRITTEN: Mapping[str, _Writing] = {
    "Attention": _Writing(attention_body),
    "ConvInteger": _Writing(conv_integer_body, OLDEST_INTEGER_OPSET),
    "DynamicQuantizeLinear": _Writing(dynamic_quantize_linear_body, OLDEST_INTEGER_OPSET),
    "MatMulInteger": _Writing(mat_mul_integer_body, OLDEST_INTEGER_OPSET),
    "QLinearConv": _Writing(qlinear_conv_body),
    "QLinearMatMul": _Writing(qlinear_mat_mul_body),
    "RotaryEmbedding": _Writing(rotary_embedding_body),
    "Softplus": _Writing(softplus_body, OLDEST_STABLE_OPSET),
}
"""ONNX ops with bodies other than ONNX's function."""


def function_body(prepared: Prepared, position: int) -> onnx.FunctionProto | None:
    """Return the body of the node at `position` for its input types, or None."""
    node = prepared.nodes[position]
    if not node.since_version:
        return None
    if is_further(node.domain, node.op_type, node.since_version):
        return _further_body(prepared, node)
    if not node.domain and node.op_type in _WRITTEN:
        values, constants, opset = _node_facts(prepared, node)
        body = _written(node, values, constants, opset=opset)
        return None if body is None else body.function(node)
    types = [_type(prepared, name) for name in node.inputs]
    proto = prepared.model.graph.node[position]
    return typed_body(proto, node.since_version, node.domain, prepared.opsets[node.domain], types)


def _further_body(prepared: Prepared, node: OnnxNode) -> onnx.FunctionProto | None:
    """Return the body with its own ops expanded: a device that refused the node lacks them."""
    values, constants, opset = _node_facts(prepared, node)
    try:
        body = body_of(node, values, constants, opset)
    except Refusal:
        return None
    if body is None:
        return None
    return written_through(body, values, constants, partial(_written, opset=opset)).function(node)


def _written(
    node: OnnxNode, values: Sequence[Value | None], constants: Mapping[int, Array], *, opset: int
) -> Body | None:
    writing = None if node.domain else _WRITTEN.get(node.op_type)
    if writing is None:
        return None
    try:
        builder = BodyBuilder(node, values, constants, opset, oldest=writing.oldest)
        return builder.finish(writing.rule(builder))
    except Refusal:
        return None


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
    """Return the model with nodes expanded, and their original names, or None if none can be."""
    model, names = expand_functions(prepared.model, prepared.operators, bodies)
    if model is prepared.model:
        return None
    origin = {node.name: node.origins[0] if node.origins else node.name for node in prepared.graph.nodes}
    expansion = prepare_again(model, [origin[name] for name in names], prepared.operators)
    # Both models stay alive, so they share weights.
    constants = {name: prepared.constants.get(name, array) for name, array in expansion.constants.items()}
    functions = [(origin[node.name], node) for node in prepared.nodes if node.name in bodies]
    expansion = replace(expansion, constants=constants, functions=(*prepared.functions, *functions))
    return replace(expansion, original=prepared.original, branch_decisions=prepared.branch_decisions), names


def with_dequantized(prepared: Prepared, positions: Collection[int]) -> Prepared:
    """Return the model with DequantizeLinear at `positions` folded, up to `limits.FOLDED_BYTES`, and its dependents."""
    folding = Folding(prepared, prepared.constants, limits.FOLDED_BYTES, frozenset(positions))
    for index in range(len(prepared.nodes)):
        if index not in prepared.evaluated:
            folding.await_evaluation(index, prepared.values)
    folding.evaluate()
    return replace(
        prepared,
        constants={**prepared.constants, **folding.folded},
        evaluated=prepared.evaluated | folding.evaluated,
    )
