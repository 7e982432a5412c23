"""A model prepared, with what converters and kernels know of operators."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nnadapter.converters.convert import contradiction, output_types
from nnadapter.converters.registry import has_converter
from nnadapter.onnx.model import NO_RULES, Operators, Rules
from nnadapter.onnx.preparation import prepare as preparation
from nnadapter.onnx.preparation.prepare import Prepared

if TYPE_CHECKING:
    import onnx

OPERATORS = Operators(has_converter, contradiction, output_types)
"""What converters know; kernels are those of a session's devices."""


def offered_ops(model: onnx.ModelProto, domains: frozenset[str]) -> set[tuple[str, str]]:
    """Return domain and op type of the nodes of some domains whose ops nobody converts."""
    from nnadapter.onnx.external_converters import external_versions
    from nnadapter.onnx.schemas import further_schema

    ops = {(node.domain, node.op_type) for node in model.graph.node if node.domain in domains}
    return {op for op in ops if further_schema(*op) is None and not external_versions(*op)}


def prepare(model: onnx.ModelProto, rules: Rules = NO_RULES) -> Prepared:
    """Return `model` with what does not depend on input shapes done; see `nnadapter.onnx.preparation.prepare`.

    Args:
        model: the model.
        rules: types of the results of ops that onnx knows nothing of.

    Raises:
        InvalidModelError: the graph contradicts itself, or an equation of Einsum is none.
    """
    return preparation.prepare(model, replace(OPERATORS, rules=rules))
