"""GELU, spelled out."""

from __future__ import annotations

from collections.abc import Sequence
from math import pi, sqrt

from nnadapter.ir.editing import editing
from nnadapter.ir.editor import ModelEditor
from nnadapter.ir.pattern import Match, OperationPattern, Pattern, constant, either, operand, operation
from nnadapter.ir.rewrite import Replacement, RewriteRule, apply_rules


@editing
def fuse_gelu(editor: ModelEditor) -> None:
    """Make GELU of what it is made of.

    1. x * (1 + erf(x / sqrt(2))) / 2 becomes GELU(x; none). The inner division may be a DIV by sqrt(2) or a MUL by its
       reciprocal, the half a MUL by 0.5 or a DIV by 2, on x, on the sum, on both parts of the sum or on the product.
    2. x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) / 2 becomes GELU(x; tanh). The cube may be a POW or two MULs,
       and one x may be factored out of the inner sum.
    3. Products and sums may stand either way round; constants must be right to one unit in the last place.
       Refused: a part that something else reads.
    """
    apply_rules(editor, _GELU_RULES)


def _half(pattern: Pattern) -> tuple[OperationPattern, OperationPattern]:
    return operation("MUL", pattern, constant(value=0.5)), operation("DIV", pattern, constant(value=2))


def _scaled(pattern: Pattern, factor: float) -> Pattern:
    return operation("MUL", pattern, constant(value=factor))


def _forms(inner: Pattern) -> tuple[OperationPattern, ...]:
    """The product of x, 1 + inner and a half, in every association."""
    raised = operation("ADD", inner, constant(value=1))
    halves = either(*_half(raised), operation("ADD", either(*_half(inner)), constant(value=0.5)))
    return (
        *_half(operation("MUL", _GELU_INPUT, raised)),
        operation("MUL", either(*_half(_GELU_INPUT)), raised),
        operation("MUL", _GELU_INPUT, halves),
    )


def _gelu(approximate: str) -> Replacement:
    def replacement(editor: ModelEditor, match: Match) -> Sequence[int] | None:
        x = match.operands["x"]
        if editor.type_of(x).dimensions != editor.type_of(editor.operation(match.anchor).outputs[0]).dimensions:
            return None
        return editor.add_operation("GELU", (x,), {"approximate": approximate}, origins=match.operations)

    return replacement


_GELU_INPUT = operand("x", when=lambda matched: matched.type.dtype.is_floating)
_ERF = operation(
    "ERF", either(operation("DIV", _GELU_INPUT, constant(value=sqrt(2))), _scaled(_GELU_INPUT, 1 / sqrt(2)))
)

_SLOPE, _CUBIC = sqrt(2 / pi), 0.044715
_GELU_SQUARE = either(operation("POW", _GELU_INPUT, constant(value=2)), operation("MUL", _GELU_INPUT, _GELU_INPUT))
_CUBE = either(operation("POW", _GELU_INPUT, constant(value=3)), operation("MUL", _GELU_INPUT, _GELU_SQUARE))
_CUBED = either(
    _scaled(_CUBE, _CUBIC),
    operation("MUL", _scaled(_GELU_INPUT, _CUBIC), _GELU_SQUARE),
    operation("MUL", _GELU_INPUT, _scaled(_GELU_SQUARE, _CUBIC)),
    operation("MUL", operation("MUL", _scaled(_GELU_INPUT, _CUBIC), _GELU_INPUT), _GELU_INPUT),
)
_FACTORED = operation("ADD", _scaled(_GELU_SQUARE, _CUBIC), constant(value=1))
_ARGUMENT = either(
    _scaled(operation("ADD", _GELU_INPUT, _CUBED), _SLOPE),
    operation("MUL", _scaled(_GELU_INPUT, _SLOPE), _FACTORED),
    _scaled(operation("MUL", _GELU_INPUT, _FACTORED), _SLOPE),
    operation("MUL", _GELU_INPUT, _scaled(_FACTORED, _SLOPE)),
)
_TANH = operation("TANH", _ARGUMENT)

_GELU_RULES = (
    *(RewriteRule(form, _gelu("none")) for form in _forms(_ERF)),
    *(RewriteRule(form, _gelu("tanh")) for form in _forms(_TANH)),
)
