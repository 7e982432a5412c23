"""Batch normalization folded into the operation before it, or taken apart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnadapter.ir.derived import derived
from nnadapter.ir.editing import editing
from nnadapter.ir.editor import ModelEditor
from nnadapter.ir.model import Operation
from nnadapter.ir.operand import Array
from nnadapter.ir.operations import layouts
from nnadapter.ir.passes.per_channel import channel_axis, fold, foldable
from nnadapter.ir.pattern import Match, constant, operand, operation
from nnadapter.ir.rewrite import RewriteRule, apply_rules


@editing
def fuse_batch_normalization(editor: ModelEditor) -> None:
    """Remove every BATCH_NORMALIZATION with constant scale, bias, mean and variance.

    1. Behind a CONV_2D, CONV_2D_TRANSPOSE or FULLY_CONNECTED with constant filter (and bias), read by nothing else,
       it is folded into filter and bias, in float64, rounded once.
    2. Anywhere else it becomes MUL and ADD with constants of shape [C, 1, 1], or [C] where the layout is NHWC.
    3. Refused: statistics that are not constant; a host with an activation fused to it or whose channels are another
       axis; a result that is not finite in the operand's data type.
    """
    apply_rules(editor, _BATCH_NORMALIZATION_RULES)


def _into_host(editor: ModelEditor, match: Match) -> Sequence[int] | None:
    host = editor.operation(match.named["host"])
    type_ = editor.type_of(host.outputs[0])
    if channel_axis(host, type_) != layouts.channel_axis(type_):
        return None
    scale, shift = _scale_and_shift(editor, editor.operation(match.anchor))
    return fold(editor, match.named["host"], scale, shift, match.operations)


def _apart(editor: ModelEditor, match: Match) -> Sequence[int] | None:
    normalization = editor.operation(match.anchor)
    type_ = editor.type_of(normalization.inputs[0])
    shape = (-1, *[1] * (type_.rank - 1 - layouts.channel_axis(type_)))
    values = (editor.value_of(index) for index in normalization.inputs[1:])
    coefficients = derived(
        _broadcast_parameters,
        *values,
        epsilon=normalization.attributes["epsilon"],
        dtype=type_.dtype.value,
        shape=shape,
    )
    if coefficients is None:
        return None
    scale, shift = coefficients
    name = editor.operand(normalization.outputs[0]).name
    (scaled,) = editor.add_operation(
        "MUL", (normalization.inputs[0], editor.add_constant(f"{name}.scale", scale)), origins=match.operations
    )
    return editor.add_operation("ADD", (scaled, editor.add_constant(f"{name}.shift", shift)), origins=match.operations)


def _scale_and_shift(editor: ModelEditor, operation_: Operation) -> tuple[Array, Array]:
    values = (editor.value_of(index) for index in operation_.inputs[1:])
    return derived(_factor_and_offset, *values, epsilon=operation_.attributes["epsilon"])


def _factor_and_offset(
    scale: Array, bias: Array, mean: Array, variance: Array, *, epsilon: float
) -> tuple[Array, Array]:
    scale, bias, mean, variance = (value.astype(np.float64) for value in (scale, bias, mean, variance))
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = scale / np.sqrt(variance + epsilon)
        return factor, bias - mean * factor


def _broadcast_parameters(
    *values: Array, epsilon: float, dtype: str, shape: tuple[int, ...]
) -> tuple[Array, Array] | None:
    """Both in that data type and shape; None where one is not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        scale, shift = (
            coefficient.astype(dtype).reshape(shape) for coefficient in _factor_and_offset(*values, epsilon=epsilon)
        )
    return (scale, shift) if np.isfinite(scale).all() and np.isfinite(shift).all() else None


_STATISTICS = tuple(map(constant, ("scale", "bias", "mean", "variance")))
_BATCH_NORMALIZATION_RULES = (
    RewriteRule(operation("BATCH_NORMALIZATION", foldable("host"), *_STATISTICS), _into_host),
    RewriteRule(operation("BATCH_NORMALIZATION", operand("input"), *_STATISTICS), _apart),
)
