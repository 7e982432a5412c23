"""Ops that onnx has no schema of, described as functions of ONNX's own ops.

One description serves everybody. Types and shapes, of open sizes too, are what ONNX's inference says of the body;
converters convert the body, at the newest opset; devices that take ONNX are offered it, at the model's own; FLOPs and
reports follow from its operations. ONNX Runtime goes on getting the node as it is.

A body is written for one node: by its attributes, by which inputs it has, by their ranks and data types, by their sizes
where these are numbers. So no op needs a second description of its shapes, nor one per device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import onnx

from nnadapter.ir.operand import Array
from nnadapter.onnx.body import NEWEST_OPSET, Body, BodyBuilder
from nnadapter.onnx.further_schemas import MICROSOFT, add_schema, further_schema
from nnadapter.onnx.node import OnnxNode
from partition.graph import Value

BodyRule = Callable[[BodyBuilder], Sequence[str]]
"""Adds the nodes of a body for one node, and returns the names of its outputs; what nobody wants may be empty.

It may raise Refusal, for a node that means nothing or that ONNX's ops cannot say.
"""

_RULES: dict[tuple[str, str], tuple[BodyRule, int]] = {}
"""By domain and op type, what writes a body, and the newest opset that it knows."""


def function_op(
    op_type: str,
    inputs: str,
    outputs: str,
    attributes: Mapping[str, object] = MappingProxyType({}),
    *,
    required: Sequence[str] = (),
    domain: str = MICROSOFT,
    newest: int = NEWEST_OPSET,
) -> Callable[[BodyRule], BodyRule]:
    """Return a decorator for the function that writes an op's body; see `add_schema` for what describes the op.

    Its body is written at opset `newest` where no model demands another, or at the newest that the installed onnx has.
    """

    def register(rule: BodyRule) -> BodyRule:
        add_schema(op_type, inputs, outputs, attributes, required=required, domain=domain)
        _RULES[domain, op_type] = rule, newest
        return rule

    return register


def has_body(domain: str, op_type: str) -> bool:
    """Whether an op is described as a function."""
    return further_schema(domain, op_type) is not None and (domain, op_type) in _RULES


def function_ops() -> Iterator[tuple[str, str, int]]:
    """Domain, op type and schema version of every op that is described as a function."""
    further_schema(MICROSOFT, "")
    return ((domain, op_type, 1) for domain, op_type in _RULES)


def body_of(
    node: OnnxNode,
    inputs: Sequence[Value | None],
    constants: Mapping[int, Array] = MappingProxyType({}),
    opset: int | None = None,
    integers: Callable[[int], tuple[int, ...] | None] = lambda position: None,
) -> Body | None:
    """Return the body of a node; None where its op is no such function.

    What the node does not state of its attributes is what the op's description says.

    Args:
        node: the node.
        inputs: what is known of its inputs, None where one is absent.
        constants: contents of inputs that are known, by position.
        opset: the operator set to write in, None for the newest that the op's description knows.
        integers: see `BodyBuilder`.

    Raises:
        Refusal: the node means nothing, ONNX's ops cannot say it, or too little is known of its inputs.
    """
    schema = further_schema(node.domain, node.op_type)
    if schema is None or not has_body(node.domain, node.op_type):
        return None
    rule, newest = _RULES[node.domain, node.op_type]
    if opset is None:
        opset = min(newest, onnx.defs.onnx_opset_version())
    stated = replace(node, attributes={**schema.defaults, **node.attributes})
    builder = BodyBuilder(stated, inputs, constants, opset, integers)
    return builder.finish(rule(builder))
