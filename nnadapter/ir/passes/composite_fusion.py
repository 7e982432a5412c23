"""Recognition of decomposed layer normalization, GELU, swish and attention."""

from __future__ import annotations

from collections.abc import Sequence
from math import pi, sqrt

from nnadapter.ir import ABSENT, Array, AttributeValue, Operand
from nnadapter.ir.builder import ModelEditor
from nnadapter.ir.rewrite import (
    Match,
    OperationPattern,
    Pattern,
    Replacement,
    RewriteRule,
    apply_rules,
    constant,
    editing,
    either,
    is_floating,
    operand,
    operation,
)


@editing
def fuse_layer_normalization(editor: ModelEditor) -> None:
    """Recognize LAYER_NORMALIZATION.

    1. d = SUB(x, REDUCE_MEAN(x)); v = REDUCE_MEAN of d squared (POW by 2, or MUL with itself); d / SQRT(v + epsilon)
       (or times its RECIPROCAL), times a constant scale.
    2. ADD of a constant after it becomes the bias.
    3. All means use the same trailing axes, with `keepdims`.
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
    if not _keeps_dimensions(editor, match, x):
        return None  # epsilon may have higher rank than x
    attributes = {"axis": int(axes[0]), "epsilon": float(epsilon.reshape(()))}
    return editor.add_operation("LAYER_NORMALIZATION", (x, scale), attributes, origins=match.operations)


def _biased(editor: ModelEditor, match: Match) -> Sequence[int] | None:
    normalization = editor.operation(match.named["normalized"])
    axis, bias = normalization.attributes["axis"], match.operands["bias"]
    assert isinstance(axis, int), "the row says so"
    if (len(normalization.inputs) > 2 and normalization.inputs[2] != ABSENT) or not _fits(
        editor, normalization.inputs[0], bias, axis
    ):
        return None
    return editor.add_operation(
        "LAYER_NORMALIZATION", (*normalization.inputs[:2], bias), normalization.attributes, origins=match.operations
    )


def _keeps_dimensions(editor: ModelEditor, match: Match, x: int) -> bool:
    return editor.type_of(x).dimensions == editor.type_of(editor.operation(match.anchor).outputs[0]).dimensions


def _fits(editor: ModelEditor, x: int, constant_: int, axis: int) -> bool:
    return editor.type_of(constant_).dimensions == editor.type_of(x).dimensions[axis:]


def _deviation(mean: str) -> OperationPattern:
    # Separate names for the means: exporters write the difference once or several times.
    return operation("SUB", _X, operation("REDUCE_MEAN", _X, name=mean, keepdims=True))


_X = operand("x")
_SQUARED = _deviation("mean of the square")
_SQUARED_DEVIATION = either(
    operation("POW", _SQUARED, constant(value=2)), operation("MUL", _SQUARED, _deviation("mean of the factor"))
)
_VARIANCE = operation("REDUCE_MEAN", _SQUARED_DEVIATION, name="variance", keepdims=True)
_EPSILON = constant("epsilon", when=lambda value: value.size == 1 and float(value.reshape(())) > 0)
_ROOT = operation("SQRT", operation("ADD", _VARIANCE, _EPSILON))
_QUOTIENT = either(
    operation("DIV", _deviation("mean"), _ROOT), operation("MUL", _deviation("mean"), operation("RECIPROCAL", _ROOT))
)
_LAYER_NORMALIZATION_RULES = (
    RewriteRule(operation("MUL", _QUOTIENT, constant("scale")), _normalized),
    RewriteRule(operation("ADD", operation("LAYER_NORMALIZATION", name="normalized"), constant("bias")), _biased),
)


_REAL_X = operand("x", when=is_floating)


@editing
def fuse_gelu(editor: ModelEditor) -> None:
    """Recognize GELU.

    1. x * (1 + erf(x / sqrt(2))) / 2 becomes GELU(x; none).
    2. x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3))) / 2 becomes GELU(x; tanh). The cube may be a POW or two MULs,
       and one x may be factored out of the inner sum.
    """
    apply_rules(editor, _GELU_RULES)


def _scaled(pattern: Pattern, factor: float) -> OperationPattern:
    return operation("MUL", pattern, constant(value=factor))


def _divided(pattern: Pattern, divisor: float) -> tuple[OperationPattern, OperationPattern]:
    return operation("DIV", pattern, constant(value=divisor)), _scaled(pattern, 1 / divisor)


def _forms(inner: Pattern) -> tuple[OperationPattern, ...]:
    raised = operation("ADD", inner, constant(value=1))
    halves = either(*_divided(raised, 2), operation("ADD", either(*_divided(inner, 2)), constant(value=0.5)))
    return (
        *_divided(operation("MUL", _REAL_X, raised), 2),
        operation("MUL", either(*_divided(_REAL_X, 2)), raised),
        operation("MUL", _REAL_X, halves),
    )


def _gelu(approximate: str) -> Replacement:
    def replacement(editor: ModelEditor, match: Match) -> Sequence[int] | None:
        x = match.operands["x"]
        if not _keeps_dimensions(editor, match, x):
            return None
        return editor.add_operation("GELU", (x,), {"approximate": approximate}, origins=match.operations)

    return replacement


_ERF = operation("ERF", either(*_divided(_REAL_X, sqrt(2))))

_SLOPE, _CUBIC = sqrt(2 / pi), 0.044715
_SQUARE = either(operation("POW", _REAL_X, constant(value=2)), operation("MUL", _REAL_X, _REAL_X))
_CUBE = either(operation("POW", _REAL_X, constant(value=3)), operation("MUL", _REAL_X, _SQUARE))
_CUBED = either(
    _scaled(_CUBE, _CUBIC),
    operation("MUL", _scaled(_REAL_X, _CUBIC), _SQUARE),
    operation("MUL", _REAL_X, _scaled(_SQUARE, _CUBIC)),
    operation("MUL", operation("MUL", _scaled(_REAL_X, _CUBIC), _REAL_X), _REAL_X),
)
_FACTORED = operation("ADD", _scaled(_SQUARE, _CUBIC), constant(value=1))
_ARGUMENT = either(
    _scaled(operation("ADD", _REAL_X, _CUBED), _SLOPE),
    operation("MUL", _scaled(_REAL_X, _SLOPE), _FACTORED),
    _scaled(operation("MUL", _REAL_X, _FACTORED), _SLOPE),
    operation("MUL", _REAL_X, _scaled(_FACTORED, _SLOPE)),
)
_TANH = operation("TANH", _ARGUMENT)

_GELU_RULES = (
    *(RewriteRule(form, _gelu("none")) for form in _forms(_ERF)),
    *(RewriteRule(form, _gelu("tanh")) for form in _forms(_TANH)),
)


@editing
def fuse_hard_swish(editor: ModelEditor) -> None:
    """Recognize HARD_SIGMOID and HARD_SWISH.

    1. CLIP(x + 3, 0, 6) / 6 becomes HARD_SIGMOID(x; 1/6, 1/2), with DIV or MUL.
    2. x * CLIP(x + 3, 0, 6) / 6 becomes HARD_SWISH(x; 1/6, 1/2).
    3. MUL(x, HARD_SIGMOID(x; alpha, beta)) becomes HARD_SWISH(x; alpha, beta).
    """
    apply_rules(editor, _HARD_SWISH_RULES)


def _hard_activation(type_: str) -> Replacement:
    def replacement(editor: ModelEditor, match: Match) -> Sequence[int] | None:
        x = match.operands["x"]
        if not _keeps_dimensions(editor, match, x):
            return None
        attributes = {"alpha": 1 / 6, "beta": 0.5}
        if "inner" in match.named:
            inner = editor.operation(match.named["inner"]).attributes
            attributes = {name: inner[name] for name in attributes}  # type: ignore[misc]
        return editor.add_operation(type_, (x,), attributes, origins=match.operations)

    return replacement


_CLIPPED = operation("CLIP", operation("ADD", _REAL_X, constant(value=3)), min=0.0, max=6.0)
_HARD_SWISH_RULES = (
    RewriteRule(
        operation("MUL", _REAL_X, operation("HARD_SIGMOID", _REAL_X, name="inner")),
        _hard_activation("HARD_SWISH"),
    ),
    RewriteRule(operation("MUL", either(*_divided(_REAL_X, 6)), _CLIPPED), _hard_activation("HARD_SWISH")),
    *(RewriteRule(form, _hard_activation("HARD_SWISH")) for form in _divided(operation("MUL", _REAL_X, _CLIPPED), 6)),
    *(RewriteRule(form, _hard_activation("HARD_SIGMOID")) for form in _divided(_CLIPPED, 6)),
)


@editing
def fuse_swish(editor: ModelEditor) -> None:
    """Recognize SWISH, a value times its own sigmoid.

    1. MUL(x, SIGMOID(x)) becomes SWISH(x).
    2. MUL(x, SIGMOID(MUL(x, a))) with a constant number a becomes SWISH(x; alpha = a).
    """
    apply_rules(editor, _SWISH_RULES)


def _swish(editor: ModelEditor, match: Match) -> Sequence[int] | None:
    x = match.operands["x"]
    if not _keeps_dimensions(editor, match, x):
        return None
    alpha = editor.value_of(match.operands["alpha"]) if "alpha" in match.operands else None
    attributes = {} if alpha is None else {"alpha": float(alpha.reshape(()))}
    return editor.add_operation("SWISH", (x,), attributes, origins=match.operations)


_ALPHA = constant("alpha", when=lambda value: value.size == 1)
_SWISH_RULES = (
    RewriteRule(operation("MUL", _X, operation("SIGMOID", _X)), _swish),
    RewriteRule(operation("MUL", _X, operation("SIGMOID", operation("MUL", _X, _ALPHA))), _swish),
)


@editing
def fuse_attention(editor: ModelEditor) -> None:
    """Recognize ATTENTION.

    1. MAT_MUL(SOFTMAX(s), value), with s the MAT_MUL of query and transposed key, all of rank 4 with equal batch and
       heads.
    2. s may be multiplied or divided by a constant number, the scale, and then have a mask added.
    3. A WHERE with a condition that is false everywhere may follow SOFTMAX.
    4. A key that is transposed before the MAT_MUL gets a second TRANSPOSE; `simplify` usually cancels both.

    The attribute `without_keys` becomes `nan`: the result of a query whose keys are all masked.
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


_ATTENTION_PRODUCT = operation(
    "MAT_MUL", operand("query", when=_has_heads), operand("key", when=_has_heads), name="product", transpose_x=False
)
_SCALED = either(
    operation("MUL", _ATTENTION_PRODUCT, constant("factor", when=_is_scale)),
    operation("DIV", _ATTENTION_PRODUCT, constant("divisor", when=_is_scale)),
    _ATTENTION_PRODUCT,
)
_MASKED = either(operation("ADD", _SCALED, operand("mask")), _SCALED)
_SOFTMAX = operation("SOFTMAX", _MASKED, name="softmax", axis=3)
_WEIGHTS = either(
    _SOFTMAX, operation("WHERE", constant(when=lambda condition: not condition.any()), operand("other"), _SOFTMAX)
)
_ATTENTION_RULES = (
    RewriteRule(
        operation("MAT_MUL", _WEIGHTS, operand("value", when=_has_heads), transpose_x=False, transpose_y=False),
        _attention,
    ),
)
