"""Layer normalization, spelled out."""

from __future__ import annotations

from collections.abc import Sequence

from nnadapter.ir.editing import editing
from nnadapter.ir.editor import ModelEditor
from nnadapter.ir.model import ABSENT
from nnadapter.ir.operand import Array
from nnadapter.ir.operations.access import integer
from nnadapter.ir.pattern import Match, OperationPattern, constant, either, operand, operation
from nnadapter.ir.rewrite import RewriteRule, apply_rules


@editing
def fuse_layer_normalization(editor: ModelEditor) -> None:
    """Make LAYER_NORMALIZATION of what it is made of.

    1. d = SUB(x, REDUCE_MEAN(x)); v = REDUCE_MEAN of d squared (POW by 2, or MUL with itself); d / SQRT(v + epsilon)
       (or times its RECIPROCAL), times a constant scale, is LAYER_NORMALIZATION without a bias.
    2. ADD of a constant behind that is its bias.
    3. All means run over the same trailing axes, with `keepdims`; scale and bias have just those axes' dimensions.
    4. Refused: other axes or axes that differ, other constants' shapes, an epsilon that is not one positive number, a
       part that something else reads.
    """
    apply_rules(editor, _LAYER_NORMALIZATION_RULES)


def _normalized(editor: ModelEditor, match: Match) -> Sequence[int] | None:
    x, scale = match.operands["x"], match.operands["scale"]
    axes, *further_axes = (editor.operation(mean).attributes["axes"] for mean in match.named.values())
    rank = editor.type_of(x).rank
    assert isinstance(axes, tuple)
    if any(other != axes for other in further_axes) or not axes or axes != tuple(range(int(axes[0]), rank)):
        return None
    epsilon = editor.value_of(match.operands["epsilon"])
    if epsilon is None or not _fits(editor, x, scale, int(axes[0])):
        return None
    if editor.type_of(x).dimensions != editor.type_of(editor.operation(match.anchor).outputs[0]).dimensions:
        return None  # epsilon may have more axes than x
    attributes = {"axis": int(axes[0]), "epsilon": float(epsilon.reshape(()))}
    return editor.add_operation("LAYER_NORMALIZATION", (x, scale), attributes, origins=match.operations)


def _biased(editor: ModelEditor, match: Match) -> Sequence[int] | None:
    normalization = editor.operation(match.named["normalized"])
    axis, bias = integer(normalization.attributes, "axis"), match.operands["bias"]
    if (len(normalization.inputs) > 2 and normalization.inputs[2] != ABSENT) or not _fits(
        editor, normalization.inputs[0], bias, axis
    ):
        return None
    return editor.add_operation(
        "LAYER_NORMALIZATION", (*normalization.inputs[:2], bias), normalization.attributes, origins=match.operations
    )


def _fits(editor: ModelEditor, x: int, constant_: int, axis: int) -> bool:
    return editor.type_of(constant_).dimensions == editor.type_of(x).dimensions[axis:]


def _is_epsilon(value: Array) -> bool:
    return value.size == 1 and float(value.reshape(())) > 0


def _deviation(mean: str) -> OperationPattern:
    # A new name for each place: exporters write the difference, and its mean, once or more often.
    return operation("SUB", _NORMALIZED, operation("REDUCE_MEAN", _NORMALIZED, name=mean, keepdims=True))


_NORMALIZED = operand("x")
_SQUARED = _deviation("mean of the square")
_SQUARED_DEVIATION = either(
    operation("POW", _SQUARED, constant(value=2)), operation("MUL", _SQUARED, _deviation("mean of the factor"))
)
_VARIANCE = operation("REDUCE_MEAN", _SQUARED_DEVIATION, name="variance", keepdims=True)
_ROOT = operation("SQRT", operation("ADD", _VARIANCE, constant("epsilon", when=_is_epsilon)))
_QUOTIENT = either(
    operation("DIV", _deviation("mean"), _ROOT), operation("MUL", _deviation("mean"), operation("RECIPROCAL", _ROOT))
)
_LAYER_NORMALIZATION_RULES = (
    RewriteRule(operation("MUL", _QUOTIENT, constant("scale")), _normalized),
    RewriteRule(operation("ADD", operation("LAYER_NORMALIZATION", name="normalized"), constant("bias")), _biased),
)
