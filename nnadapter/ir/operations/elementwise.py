"""Elementwise operations: the result has the inputs' dimensions, broadcast as numpy does where there are several.

FLOPs are arithmetic steps of the defining formula for each output element; exp, log, sqrt, erf, sin, cos, tanh and pow
count as one step each.
"""

from __future__ import annotations

from collections.abc import Sequence

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import ANY, FLOATING, NUMERIC, DataType, OperandType
from nnadapter.ir.operations.row import Types, no_flops, pair, per_output, present, row, string
from nnadapter.ir.operations.shape_rules import as_first, broadcast, check_broadcasts_to
from nnadapter.ir.operations.windows import FUSE_ATTRIBUTES, fusable, fused, layout_of, like
from nnadapter.ir.schema import Attribute, AttributeKind, Attributes, OperationSchema, Role, ShapeRule

_BOOLEAN = frozenset({DataType.BOOL})
_SELU_ALPHA = 1.67326319217681884765625
_SELU_GAMMA = 1.05070102214813232421875


def _float(name: str, default: float) -> Attribute:
    return Attribute(name, AttributeKind.FLOAT, default)


def _clip(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    # min above max is legal: ONNX defines the result as min(max(input, min), max), so it is max everywhere.
    return as_first(types, attributes)


def _assign(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    return (present(types, 0),)


def _cast(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    first = present(types, 0)
    return (like(first, first.dimensions, DataType(string(attributes, "to"))),)


def _prelu(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    first = present(types, 0)
    check_broadcasts_to("slope", present(types, 1).dimensions, first.dimensions)
    return (like(first, first.dimensions),)


def _spread(types: Sequence[OperandType], dtype: DataType) -> tuple[OperandType, ...]:
    dimensions = broadcast([type_.dimensions for type_ in types])
    first = types[0]
    layout = layout_of(types, len(dimensions))
    if first.layout is layout and first.dtype is dtype:
        return (like(first, dimensions),)
    return (OperandType(dtype, dimensions, layout),)


def _broadcast(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    present_types = [type_ for type_ in types if type_ is not None]
    return _spread(present_types, present_types[0].dtype)


def _compare(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    return _spread((present(types, 0), present(types, 1)), DataType.BOOL)


def _modulo(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    if present(types, 0).dtype.is_floating and not attributes["fmod"]:
        raise InvalidModelError("fmod is False on floating-point inputs, expected True, the sign of the dividend")
    return _broadcast(types, attributes)


def _where(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    present_types = [type_ for type_ in types if type_ is not None]
    return _spread(present_types, present_types[1].dtype)


_UNARY: tuple[tuple[str, frozenset[DataType], int, tuple[Attribute, ...], str], ...] = (
    ("ABS", NUMERIC, 1, (), "NNAPI ABS; ONNX Abs-13"),
    ("NEG", NUMERIC, 1, (), "NNAPI NEG; ONNX Neg-13"),
    ("SIGN", NUMERIC, 1, (), "ONNX Sign-13"),
    ("FLOOR", NUMERIC, 1, (), "NNAPI FLOOR; ONNX Floor-13"),
    ("CEIL", NUMERIC, 1, (), "ONNX Ceil-13"),
    ("ROUND", NUMERIC, 1, (), "ONNX Round-11: halves to even"),
    ("EXP", FLOATING, 1, (), "NNAPI EXP; ONNX Exp-13"),
    ("LOG", FLOATING, 1, (), "NNAPI LOG; ONNX Log-13"),
    ("SQRT", FLOATING, 1, (), "NNAPI SQRT; ONNX Sqrt-13"),
    ("RECIPROCAL", FLOATING, 1, (), "ONNX Reciprocal-13"),
    ("ERF", FLOATING, 1, (), "ONNX Erf-13"),
    ("SIN", FLOATING, 1, (), "NNAPI SIN; ONNX Sin-7"),
    ("COS", FLOATING, 1, (), "ONNX Cos-7"),
    ("TANH", FLOATING, 1, (), "NNAPI TANH; ONNX Tanh-13"),
    ("SIGMOID", FLOATING, 4, (), "NNAPI LOGISTIC; NNADAPTER_SIGMOID; ONNX Sigmoid-13"),
    ("SOFTPLUS", FLOATING, 3, (), "NNADAPTER_SOFTPLUS; ONNX Softplus-1: log(1 + exp(x))"),
    ("SOFTSIGN", FLOATING, 3, (), "ONNX Softsign-1: x / (1 + |x|)"),
    ("MISH", FLOATING, 5, (), "NNADAPTER_MISH; ONNX Mish-18: x * tanh(softplus(x))"),
    ("RELU", NUMERIC, 1, (), "NNAPI RELU; ONNX Relu-14"),
    ("SWISH", FLOATING, 5, (_float("alpha", 1.0),), "NNADAPTER_SWISH; ONNX Swish-24: x * sigmoid(alpha * x)"),
    (
        "HARD_SIGMOID",
        FLOATING,
        4,
        (_float("alpha", 0.2), _float("beta", 0.5)),
        "NNADAPTER_HARD_SIGMOID; ONNX HardSigmoid-6: max(0, min(1, alpha * x + beta))",
    ),
    (
        "HARD_SWISH",
        FLOATING,
        5,
        (_float("alpha", 1 / 6), _float("beta", 0.5)),
        "NNAPI HARD_SWISH; ONNX HardSwish-14: x * hard_sigmoid(x)",
    ),
    ("LEAKY_RELU", FLOATING, 2, (_float("alpha", 0.01),), "NNADAPTER_LEAKY_RELU; ONNX LeakyRelu-16"),
    ("ELU", FLOATING, 4, (_float("alpha", 1.0),), "NNAPI ELU; ONNX Elu-6"),
    ("SELU", FLOATING, 5, (_float("alpha", _SELU_ALPHA), _float("gamma", _SELU_GAMMA)), "ONNX Selu-6"),
    ("NOT", _BOOLEAN, 1, (), "NNAPI LOGICAL_NOT; ONNX Not-1"),
)

_BINARY: tuple[tuple[str, frozenset[DataType], ShapeRule, str], ...] = (
    ("MAX", NUMERIC, _broadcast, "NNAPI MAXIMUM; ONNX Max-13"),
    ("MIN", NUMERIC, _broadcast, "NNAPI MINIMUM; ONNX Min-13"),
    ("AND", _BOOLEAN, _broadcast, "NNAPI LOGICAL_AND; ONNX And-7"),
    ("OR", _BOOLEAN, _broadcast, "NNAPI LOGICAL_OR; ONNX Or-7"),
    ("XOR", _BOOLEAN, _broadcast, "NNADAPTER_XOR; ONNX Xor-7"),
    ("EQUAL", ANY, _compare, "NNAPI EQUAL; ONNX Equal-19"),
    ("GREATER", NUMERIC, _compare, "NNAPI GREATER; ONNX Greater-13"),
    ("GREATER_EQUAL", NUMERIC, _compare, "NNAPI GREATER_EQUAL; ONNX GreaterOrEqual-16"),
    ("LESS", NUMERIC, _compare, "NNAPI LESS; ONNX Less-13"),
    ("LESS_EQUAL", NUMERIC, _compare, "NNAPI LESS_EQUAL; ONNX LessOrEqual-16"),
)

_FUSABLE_BINARY = (
    ("ADD", "NNAPI ADD; ONNX Add-14"),
    ("SUB", "NNAPI SUB; ONNX Sub-14"),
    ("MUL", "NNAPI MUL; ONNX Mul-14"),
    ("DIV", "NNAPI DIV; ONNX Div-14: integers truncate toward zero"),
)


def _gelu_flops(types: Types, outputs: Sequence[OperandType], attributes: Attributes) -> int:
    return (9 if attributes["approximate"] == "tanh" else 5) * outputs[0].size


_OTHER = (
    row(
        "GELU",
        (Role("input", FLOATING),),
        as_first,
        _gelu_flops,
        "NNADAPTER_GELU; ONNX Gelu-20: x * Phi(x), or its approximation by tanh",
        attributes=(Attribute("approximate", AttributeKind.STRING, "none", ("none", "tanh")),),
    ),
    row(
        "CLIP",
        (Role("input", NUMERIC),),
        _clip,
        per_output(2),
        "NNADAPTER_CLIP; ONNX Clip-13",
        attributes=(_float("min", float("-inf")), _float("max", float("inf"))),
    ),
    row("ASSIGN", (Role("input"),), _assign, no_flops, "NNADAPTER_ASSIGN; ONNX Identity-21"),
    row(
        "CAST",
        (Role("input"),),
        _cast,
        no_flops,
        "NNAPI CAST; ONNX Cast-21",
        attributes=(Attribute("to", AttributeKind.STRING, None, tuple(data_type.value for data_type in DataType)),),
    ),
    row(
        "PRELU",
        (Role("input", FLOATING), Role("slope", FLOATING, same_dtype_as="input")),
        _prelu,
        per_output(2),
        "NNAPI PRELU; ONNX PRelu-16: slope spreads to the input, never the other way",
    ),
    row(
        "POW",
        (Role("input", NUMERIC), Role("exponent", NUMERIC)),
        _broadcast,
        per_output(1),
        "NNAPI POW; ONNX Pow-15: the result has the data type of input",
    ),
    row(
        "MOD",
        pair(NUMERIC),
        _modulo,
        per_output(1),
        "ONNX Mod-13",
        attributes=(Attribute("fmod", AttributeKind.BOOL, False),),
    ),
    row(
        "SUM",
        (Role("inputs", FLOATING, variadic=True, same_dtype_as="inputs"),),
        _broadcast,
        lambda types, outputs, attributes: (len(types) - 1) * outputs[0].size,
        "NNADAPTER_SUM; ONNX Sum-13",
    ),
    row(
        "WHERE",
        (Role("condition", _BOOLEAN), Role("x"), Role("y", same_dtype_as="x")),
        _where,
        no_flops,
        "NNAPI SELECT; NNADAPTER_WHERE; ONNX Where-16",
    ),
)

ROWS: tuple[OperationSchema, ...] = (
    *(
        row(type_, (Role("input", dtypes),), as_first, per_output(steps), source, attributes=attributes)
        for type_, dtypes, steps, attributes, source in _UNARY
    ),
    *(row(type_, pair(dtypes), rule, per_output(1), source) for type_, dtypes, rule, source in _BINARY),
    *(
        row(type_, pair(NUMERIC), fusable(_broadcast), fused(per_output(1)), source, attributes=FUSE_ATTRIBUTES)
        for type_, source in _FUSABLE_BINARY
    ),
    *_OTHER,
)
"""The rows of this family."""
