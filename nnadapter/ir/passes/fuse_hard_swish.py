"""Hard sigmoid and hard swish, spelled out."""

from __future__ import annotations

from collections.abc import Sequence

from nnadapter.ir.editing import editing
from nnadapter.ir.editor import ModelEditor
from nnadapter.ir.pattern import Match, Pattern, constant, either, operand, operation
from nnadapter.ir.rewrite import Replacement, RewriteRule, apply_rules


@editing
def fuse_hard_swish(editor: ModelEditor) -> None:
    """Make HARD_SIGMOID and HARD_SWISH of what they are made of.

    1. CLIP(x + 3, 0, 6) / 6 becomes HARD_SIGMOID(x; 1/6, 1/2). The division may be a DIV by 6 or a MUL by 1/6.
    2. x * CLIP(x + 3, 0, 6) / 6 becomes HARD_SWISH(x; 1/6, 1/2), wherever the division stands.
    3. MUL(x, HARD_SIGMOID(x; alpha, beta)) becomes HARD_SWISH(x; alpha, beta).
    4. Products and sums may stand either way round. Refused: other numbers; a part that something else reads.
    """
    apply_rules(editor, _HARD_SWISH_RULES)


def _sixth(pattern: Pattern) -> Pattern:
    return either(operation("DIV", pattern, constant(value=6)), operation("MUL", pattern, constant(value=1 / 6)))


def _hard_activation(type_: str) -> Replacement:
    def replacement(editor: ModelEditor, match: Match) -> Sequence[int] | None:
        x = match.operands["x"]
        if editor.type_of(x).dimensions != editor.type_of(editor.operation(match.anchor).outputs[0]).dimensions:
            return None
        attributes = {"alpha": 1 / 6, "beta": 0.5}
        if "inner" in match.named:
            inner = editor.operation(match.named["inner"]).attributes
            attributes = {name: inner[name] for name in attributes}  # type: ignore[misc]
        return editor.add_operation(type_, (x,), attributes, origins=match.operations)

    return replacement


_HARD_SWISH_INPUT = operand("x", when=lambda matched: matched.type.dtype.is_floating)
_CLIPPED = operation("CLIP", operation("ADD", _HARD_SWISH_INPUT, constant(value=3)), min=0.0, max=6.0)
_HARD_SWISH_PRODUCT = operation("MUL", _HARD_SWISH_INPUT, _CLIPPED)
_HARD_SWISH_RULES = (
    RewriteRule(
        operation("MUL", _HARD_SWISH_INPUT, operation("HARD_SIGMOID", _HARD_SWISH_INPUT, name="inner")),
        _hard_activation("HARD_SWISH"),
    ),
    RewriteRule(operation("MUL", _sixth(_HARD_SWISH_INPUT), _CLIPPED), _hard_activation("HARD_SWISH")),
    RewriteRule(operation("DIV", _HARD_SWISH_PRODUCT, constant(value=6)), _hard_activation("HARD_SWISH")),
    RewriteRule(operation("MUL", _HARD_SWISH_PRODUCT, constant(value=1 / 6)), _hard_activation("HARD_SWISH")),
    RewriteRule(operation("DIV", _CLIPPED, constant(value=6)), _hard_activation("HARD_SIGMOID")),
    RewriteRule(operation("MUL", _CLIPPED, constant(value=1 / 6)), _hard_activation("HARD_SIGMOID")),
)
