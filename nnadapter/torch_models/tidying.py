"""What PyTorch's exporter wrote, tidied: by rules of its optimizer, but not all of them.

Some of those take numbers for 0 or 1 that are close to these: of `x / (y + 1e-9)` they leave `x / y`, of `x * 0.999995`
nothing. Here such a number is exactly 1. Some give several numbers one name, of which all but one are lost. One, which
makes a Split of two Slices, looks at the whole graph for each node: in large networks it took most of the time.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import onnx_ir
from onnx_ir.passes.common import (
    CommonSubexpressionEliminationPass,
    DeduplicateInitializersPass,
    InlinePass,
    LiftConstantsToInitializersPass,
    LiftSubgraphInitializersToMainGraphPass,
    NameFixPass,
    OutputFixPass,
    RemoveUnusedFunctionsPass,
    RemoveUnusedNodesPass,
    RemoveUnusedOpsetsPass,
)
from onnxscript.optimizer import fold_constants_ir
from onnxscript.rewriter import RewritePass, RewriteRule
from onnxscript.rewriter.rules import common as rules

_ROUNDS = 2
"""As the exporter's own optimizer takes."""


def tidy(model: onnx_ir.Model) -> None:
    """Compute what is constant, write what is simpler so, and leave out what nobody reads or what is there twice."""
    InlinePass()(model)
    for _ in range(_ROUNDS):
        fold_constants_ir(model, onnx_shape_inference=True)
        _REWRITING(model)
        RemoveUnusedNodesPass()(model)
    _give_apart(model.graph)
    for tidying in _TIDYING:
        tidying()(model)


def _give_apart(graph: onnx_ir.Graph) -> None:
    """A result that nothing computes, by a node of its own: a model of nothing but constants has one to run.

    The pass that does so below for inputs takes the input's name for the result.
    """
    for place, value in enumerate(graph.outputs):
        if value.producer() is None:
            node = onnx_ir.node("Identity", inputs=[value])
            (result,) = node.outputs
            graph.append(node)
            graph.outputs[place] = result
            if value.is_graph_input():
                result.name = f"{value.name}_given"
            else:
                result.name, value.name = value.name, f"{value.name}_constant"
            result.shape, result.type = value.shape, value.type


def _multiplied(op: Any, x: Any, number: Any) -> Any:
    return op.Mul(x, number)


def _multiplying(op: Any, x: Any, number: Any) -> Any:
    return op.Mul(number, x)


def _divided(op: Any, x: Any, number: Any) -> Any:
    return op.Div(x, number)


def _itself(op: Any, x: Any, number: Any) -> Any:
    return op.Identity(x)


def _is_one(context: Any, x: Any, number: Any) -> bool:
    value = number.const_value
    return value is not None and not len(value.shape) and bool(value.numpy() == 1)


RULES = (
    "two_reshapes_matmul_reshape_rule",
    "one_reshape_matmul_reshape_rule",
    "cast_constant_of_shape_rule",
    "cast_constant_of_shape_without_value_rule",
    "collapse_slice_rule",
    "collapse_slice2_rule",
    "materialize_reshape_shape_rule",
    "flatten_to_reshape_rule",
    "reshape_reshape_rule",
    "squeeze_reshape_1d_rule",
    "unsqueeze_unsqueeze_rule",
    "transpose_transpose_rule",
    "successive_relu_rule",
    "no_op_cast_rule",
    "no_op_expand_rule",
    "no_op_transpose_rule",
    "no_op_dynamic_scatter_nd_rule",
    "no_op_static_scatter_nd_rule",
    "normalize_pad_format_conv_rule",
    "normalize_pad_format_conv_integer_rule",
    "fuse_pad_into_conv_rule",
    "fuse_pad_into_conv_integer_rule",
    "fuse_batchnorm_into_conv_rule",
    "fuse_batchnorm_into_conv_transpose_rule",
    "fuse_batchnorm_into_gemm_rule",
    "remove_optional_bias_from_conv_rule",
    "remove_optional_bias_from_conv_transpose_rule",
    "remove_optional_bias_from_gemm_rule",
)
"""Of the exporter's optimizer, by their names there; of another version, those that it has."""
_REWRITING = RewritePass(
    [
        *(RewriteRule(form, _itself, _is_one) for form in (_multiplied, _multiplying, _divided)),
        *(getattr(rules, name) for name in RULES if hasattr(rules, name)),
    ]
)
_TIDYING = (
    RemoveUnusedFunctionsPass,
    RemoveUnusedOpsetsPass,
    partial(LiftConstantsToInitializersPass, lift_all_constants=True, size_limit=0),
    LiftSubgraphInitializersToMainGraphPass,
    DeduplicateInitializersPass,
    CommonSubexpressionEliminationPass,
    OutputFixPass,
    NameFixPass,
)
