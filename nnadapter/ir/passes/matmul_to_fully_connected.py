"""Matrix products with constant weights."""

from __future__ import annotations

from collections.abc import Sequence

from nnadapter.ir.editing import editing
from nnadapter.ir.editor import ModelEditor
from nnadapter.ir.pattern import Match, constant, operand, operation
from nnadapter.ir.rewrite import RewriteRule, apply_rules
from nnadapter.ir.transposing import transposed


@editing
def matmul_to_fully_connected(editor: ModelEditor) -> None:
    """Make FULLY_CONNECTED of every MAT_MUL whose right-hand side is a constant matrix.

    1. The constant [K, N] is transposed to the weight [N, K]; with `transpose_y` it is that already. Several products
       with one constant share one weight.
    2. Refused: integers, a left-hand side of rank 0 or 1 or with `transpose_x`, a constant of another rank than 2.
    """
    apply_rules(editor, _RULES)


def _replace(editor: ModelEditor, match: Match) -> Sequence[int] | None:
    matmul = editor.operation(match.anchor)
    weight = match.operands["y"]
    if editor.type_of(weight).rank != 2:
        return None
    if not matmul.attributes["transpose_y"]:
        weight = editor.derived(weight, f"{editor.operand(weight).name}.transposed", transposed)
    fused = {name: matmul.attributes[name] for name in ("fuse_code", "fuse_parameters")}
    return editor.add_operation("FULLY_CONNECTED", (match.operands["x"], weight), fused, origins=match.operations)


_RULES = (
    RewriteRule(
        operation(
            "MAT_MUL",
            operand("x", when=lambda matched: matched.type.dtype.is_floating and matched.type.rank >= 2),
            constant("y"),
            transpose_x=False,
            fuse_code=lambda _: True,
        ),
        _replace,
    ),
)
