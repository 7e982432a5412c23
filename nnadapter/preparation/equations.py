"""Equations of Einsum, read before onnx's inference is: that does not end for some texts that are none."""

from __future__ import annotations

import onnx

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operations.equation import terms_of
from partition.onnx_nodes import with_nested


def check_equations(model: onnx.ModelProto) -> None:
    """Raise InvalidModelError for an Einsum, in inner graphs and functions too, whose equation is none."""
    nodes = [*model.graph.node, *(node for function in model.functions for node in function.node)]
    for node in with_nested(nodes):
        if node.op_type != "Einsum" or node.domain not in ("", "ai.onnx"):
            continue
        for attribute in node.attribute:
            if attribute.name == "equation" and not attribute.ref_attr_name:
                _check(attribute.s.decode("utf-8", "replace"), node)


def _check(text: str, node: onnx.NodeProto) -> None:
    try:
        terms_of(text)
    except InvalidModelError as error:
        called = f"Einsum {node.name!r}" if node.name else f"the Einsum that makes {node.output[0]!r}"
        raise InvalidModelError(f"{called} cannot be computed: {error}; export the model again") from error
