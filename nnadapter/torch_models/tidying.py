"""What PyTorch's exporter wrote, tidied: by rules of its optimizer, but not all of them.

Some of those take numbers for 0 or 1 that are close to these: of `x / (y + 1e-9)` they leave `x / y`, of `x * 0.999995`
nothing. Here such a number is exactly 1. Some give several numbers one name, of which all but one are lost.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import onnx_ir
from onnx_ir.passes import common
from onnxscript.optimizer import fold_constants_ir
from onnxscript.rewriter import RewritePass, RewriteRule
from onnxscript.rewriter.rules import common as rules

_ROUNDS = 2
"""As the exporter's own optimizer takes."""


def tidy(model: onnx_ir.Model) -> None:
    """Compute what is constant, write what is simpler so, and leave out what nobody reads or what is there twice."""
    common.InlinePass()(model)
    for _ in range(_ROUNDS):
        fold_constants_ir(model, onnx_shape_inference=True)
        _REWRITING(model)
        common.RemoveUnusedNodesPass()(model)
    for tidying in _TIDYING:
        tidying()(model)


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


_REWRITING = RewritePass(
    [
        *(RewriteRule(form, _itself, _is_one) for form in (_multiplied, _multiplying, _divided)),
        rules.two_reshapes_matmul_reshape_rule, rules.one_reshape_matmul_reshape_rule,
        rules.cast_constant_of_shape_rule, rules.cast_constant_of_shape_without_value_rule,
        rules.collapse_slice_rule, rules.collapse_slice2_rule, rules.slice_split_rule,
        rules.materialize_reshape_shape_rule, rules.flatten_to_reshape_rule, rules.reshape_reshape_rule,
        rules.squeeze_reshape_1d_rule, rules.unsqueeze_unsqueeze_rule, rules.transpose_transpose_rule,
        rules.successive_relu_rule,
        rules.no_op_cast_rule, rules.no_op_expand_rule, rules.no_op_transpose_rule,
        rules.no_op_dynamic_scatter_nd_rule, rules.no_op_static_scatter_nd_rule,
        rules.normalize_pad_format_conv_rule, rules.normalize_pad_format_conv_integer_rule,
        rules.fuse_pad_into_conv_rule, rules.fuse_pad_into_conv_integer_rule,
        rules.fuse_batchnorm_into_conv_rule, rules.fuse_batchnorm_into_conv_transpose_rule,
        rules.fuse_batchnorm_into_gemm_rule, rules.remove_optional_bias_from_conv_rule,
        rules.remove_optional_bias_from_conv_transpose_rule, rules.remove_optional_bias_from_gemm_rule,
    ]
)  # fmt: skip
_TIDYING = (
    common.RemoveUnusedFunctionsPass,
    common.RemoveUnusedOpsetsPass,
    partial(common.LiftConstantsToInitializersPass, lift_all_constants=True, size_limit=0),
    common.LiftSubgraphInitializersToMainGraphPass,
    common.DeduplicateInitializersPass,
    common.CommonSubexpressionEliminationPass,
    common.OutputFixPass,
    common.NameFixPass,
)
