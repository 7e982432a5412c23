"""Attention, spelled out."""

from __future__ import annotations

from collections.abc import Sequence

from nnadapter.ir.editing import editing
from nnadapter.ir.editor import ModelEditor
from nnadapter.ir.operand import Array, Operand
from nnadapter.ir.pattern import Match, OperationPattern, Pattern, constant, either, operand, operation
from nnadapter.ir.rewrite import RewriteRule, apply_rules
from nnadapter.ir.schema import AttributeValue


@editing
def fuse_attention(editor: ModelEditor) -> None:
    """Make ATTENTION of what it is made of.

    1. MAT_MUL(SOFTMAX(s), value), with s the MAT_MUL of query and transposed key, is ATTENTION. All are of rank 4, with
       one batch and as many heads each.
    2. s may be multiplied or divided by one constant number: that is its scale. Then something may be added: its mask.
    3. WHERE with a condition that is false everywhere may stand behind SOFTMAX, as ONNX's function of Attention has it.
    4. A TRANSPOSE gives the key back as it was; `simplify` cancels it with the one that there mostly is.
    5. Refused: a softmax along another axis, integers, a mask that makes the scores larger, a part that something else
       reads.

    A query that may look at no key gives NaN, as SOFTMAX does (`without_keys`).
    """
    apply_rules(editor, _ATTENTION_RULES)


def _attention(editor: ModelEditor, match: Match) -> Sequence[int] | None:
    query, key, value = (match.operands[name] for name in ("query", "key", "value"))
    product = editor.operation(match.named["product"])
    if not _fit(editor, match, query, key, value):
        return None
    if not product.attributes["transpose_y"]:
        (key,) = editor.add_operation("TRANSPOSE", (key,), {"perm": (0, 1, 3, 2)}, origins=match.operations)
    inputs = [query, key, value]
    if "mask" in match.operands:
        inputs.append(match.operands["mask"])
    attributes: dict[str, AttributeValue] = {"scale": _scale(editor, match), "without_keys": "nan"}
    return editor.add_operation("ATTENTION", inputs, attributes, origins=match.operations)


def _fit(editor: ModelEditor, match: Match, query: int, key: int, value: int) -> bool:
    scores = editor.type_of(editor.operation(match.named["product"]).outputs[0])
    first = editor.type_of(query).dimensions[:2]
    return (
        all(editor.type_of(operand_).dimensions[:2] == first for operand_ in (key, value))
        and editor.type_of(editor.operation(match.named["softmax"]).outputs[0]).dimensions == scores.dimensions
        and editor.type_of(editor.operation(match.anchor).inputs[0]).dimensions == scores.dimensions
    )


def _scale(editor: ModelEditor, match: Match) -> float:
    for name, power in (("factor", 1), ("divisor", -1)):
        if name in match.operands:
            number = editor.value_of(match.operands[name])
            assert number is not None, "the pattern wants a constant"
            return float(number.reshape(())) ** power
    return 1.0


def _is_scale(value: Array) -> bool:
    return value.size == 1 and float(value.reshape(())) != 0


def _has_heads(matched_operand: Operand) -> bool:
    return matched_operand.type.rank == 4 and matched_operand.type.dtype.is_floating


def _is_false(value: Array) -> bool:
    return not value.any()


def _softmax(scores: Pattern) -> OperationPattern:
    return operation("SOFTMAX", scores, name="softmax", axis=3)


_ATTENTION_PRODUCT = operation(
    "MAT_MUL", operand("query", when=_has_heads), operand("key", when=_has_heads), name="product", transpose_x=False
)
_SCALED = either(
    operation("MUL", _ATTENTION_PRODUCT, constant("factor", when=_is_scale)),
    operation("DIV", _ATTENTION_PRODUCT, constant("divisor", when=_is_scale)),
    _ATTENTION_PRODUCT,
)
_MASKED = either(operation("ADD", _SCALED, operand("mask")), _SCALED)
_WEIGHTS = either(_softmax(_MASKED), operation("WHERE", constant(when=_is_false), operand("other"), _softmax(_MASKED)))
_ATTENTION_RULES = (
    RewriteRule(
        operation("MAT_MUL", _WEIGHTS, operand("value", when=_has_heads), transpose_x=False, transpose_y=False),
        _attention,
    ),
)
