"""The swish written as a product."""

from __future__ import annotations

from collections.abc import Sequence

from nnadapter.ir.editing import editing
from nnadapter.ir.editor import ModelEditor
from nnadapter.ir.pattern import Match, constant, operand, operation
from nnadapter.ir.rewrite import RewriteRule, apply_rules


@editing
def fuse_swish(editor: ModelEditor) -> None:
    """Make SWISH of a value times its own sigmoid.

    1. MUL(x, SIGMOID(x)), either way round, becomes SWISH(x).
    2. MUL(x, SIGMOID(MUL(x, a))) with one constant number a becomes SWISH(x; alpha = a).
    3. Refused: a sigmoid that something else reads as well.
    """
    apply_rules(editor, _SWISH_RULES)


def _swish(editor: ModelEditor, match: Match) -> Sequence[int] | None:
    x = match.operands["x"]
    if editor.type_of(x).dimensions != editor.type_of(editor.operation(match.anchor).outputs[0]).dimensions:
        return None
    alpha = editor.value_of(match.operands["alpha"]) if "alpha" in match.operands else None
    attributes = {} if alpha is None else {"alpha": float(alpha.reshape(()))}
    return editor.add_operation("SWISH", (x,), attributes, origins=match.operations)


_SWISH_INPUT = operand("x")
_ALPHA = constant("alpha", when=lambda value: value.size == 1)
_SWISH_RULES = (
    RewriteRule(operation("MUL", _SWISH_INPUT, operation("SIGMOID", _SWISH_INPUT)), _swish),
    RewriteRule(operation("MUL", _SWISH_INPUT, operation("SIGMOID", operation("MUL", _SWISH_INPUT, _ALPHA))), _swish),
)
