"""Multiplication and addition by a constant per channel, folded into the operation before it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnadapter.ir.derived import derived
from nnadapter.ir.editing import editing
from nnadapter.ir.editor import ModelEditor
from nnadapter.ir.operand import Array
from nnadapter.ir.passes.per_channel import channel_axis, fold, foldable
from nnadapter.ir.pattern import Match, constant, operation
from nnadapter.ir.rewrite import Replacement, RewriteRule, apply_rules


@editing
def fuse_scale_and_bias(editor: ModelEditor) -> None:
    """Fold MUL, ADD and SUB by a constant into the filter and bias of the operation before them.

    1. That operation is a CONV_2D, CONV_2D_TRANSPOSE or FULLY_CONNECTED with constant filter (and bias), or a
       BATCH_NORMALIZATION with constant scale and bias, and is read by nothing else. A chain of such
       operations is folded as a whole.
    2. The constant is one number, or has one number per output channel and 1 along every other axis. The output's
       dimensions must not grow by it.
    3. MUL scales filter and bias, ADD and SUB (either way round) move the bias; in float64, rounded once for each.
    4. Refused: DIV, which would round differently; an activation in between; a result that is not finite.
    """
    apply_rules(editor, _SCALE_AND_BIAS_RULES)


def _fold_constant(scale: float | None, shift: float | None) -> Replacement:
    """What to do with the constant c: scale by `scale` (by c if None), then shift by `shift` times c (not if None)."""

    def replacement(editor: ModelEditor, match: Match) -> Sequence[int] | None:
        value = _per_channel(editor, match)
        if value is None:
            return None
        factor = value if scale is None else None if scale == 1 else derived(_filled, value, number=scale)
        moved = value if shift == 1 else None if shift is None else derived(_times, value, number=shift)
        return fold(editor, match.named["host"], factor, moved, match.operations)

    return replacement


def _per_channel(editor: ModelEditor, match: Match) -> Array | None:
    host = editor.operation(match.named["host"])
    type_ = editor.type_of(host.outputs[0])
    value = editor.value_of(match.operands["constant"])
    if value is None or editor.type_of(editor.operation(match.anchor).outputs[0]).dimensions != type_.dimensions:
        return None
    axis = channel_axis(host, type_) - type_.rank
    channels = type_.dimensions[axis]
    along = value.shape[axis] if value.ndim >= -axis else 1
    if value.size not in (1, along):
        return None
    return derived(_broadcast_constant, value, channels=channels) if value.size else None


def _broadcast_constant(value: Array, *, channels: int) -> Array:
    return np.array(np.broadcast_to(value.astype(np.float64).reshape(-1), (channels,)))


def _filled(value: Array, *, number: float) -> Array:
    return np.full(value.shape, number)


def _times(value: Array, *, number: float) -> Array:
    return value * number


_HOST, _CONSTANT = foldable("host", "BATCH_NORMALIZATION"), constant("constant")
_SCALE_AND_BIAS_RULES = (
    RewriteRule(operation("MUL", _HOST, _CONSTANT), _fold_constant(None, None)),
    RewriteRule(operation("ADD", _HOST, _CONSTANT), _fold_constant(1, 1)),
    RewriteRule(operation("SUB", _HOST, _CONSTANT), _fold_constant(1, -1)),
    RewriteRule(operation("SUB", _CONSTANT, _HOST), _fold_constant(-1, 1)),
)
