"""The meanings of elementwise operations."""

from __future__ import annotations

from collections.abc import Mapping

from nnadapter.ir.reference.meaning import FUSED, FUSED_INTEGERS, LIKE_INPUT, Example, OperationDoc, tensor
from nnadapter.ir.schema import AttributeValue

_NUMBERS = (-2.0, -0.5, 0.0, 0.5, 2.0)
_SPREAD = "The dimensions of both inputs, broadcast as numpy does: aligned at the last axis, a 1 spreads."
_X = "The first operand."
_Y = "The second operand; broadcast against `x`."
_WRAP = "Integers wrap around."
_NAN = "A NaN in either operand gives NaN."


def _unary(
    summary: str,
    formula: str,
    *traps: str,
    numbers: tuple[float, ...] = _NUMBERS,
    attributes: Mapping[str, str] | None = None,
    values: Mapping[str, AttributeValue] | None = None,
    flops: str = "",
) -> OperationDoc:
    return OperationDoc(
        summary=summary,
        formula=formula,
        inputs={"input": "The operand, x in the formula; every element is taken by itself."},
        attributes=attributes or {},
        outputs=LIKE_INPUT,
        example=Example((tensor(numbers),), values or {}),
        traps=traps,
        flops=flops,
    )


def _binary(summary: str, formula: str, *traps: str, truth: bool = False, to_bool: bool = False) -> OperationDoc:
    x = tensor([[True, True], [False, False]]) if truth else tensor([[1.0, -2.0], [3.0, 7.0]])
    y = tensor([True, False]) if truth else tensor([2.0, -2.0])
    return OperationDoc(
        summary=summary,
        formula=formula,
        inputs={"x": _X, "y": _Y},
        outputs={"output": f"{'bool' if to_bool else 'The data type of `x`'}. {_SPREAD}"},
        example=Example((x, y)),
        traps=traps,
    )


def _arithmetic(summary: str, formula: str, *traps: str) -> OperationDoc:
    return OperationDoc(
        summary=summary,
        formula=formula,
        inputs={"x": _X, "y": _Y},
        attributes=FUSED,
        outputs={"output": f"The data type of `x`. {_SPREAD}"},
        example=Example((tensor([[1.0, -2.0], [3.0, -8.0]]), tensor([2.0, 4.0])), {"fuse_code": "relu"}),
        traps=(*traps, FUSED_INTEGERS),
        flops="1 for each element of the output, and the activation's steps",
    )


_UNARY: Mapping[str, OperationDoc] = {
    "ABS": _unary(
        "The absolute value.", "|x|", "The smallest signed integer has no positive counterpart and stays as it is."
    ),
    "NEG": _unary("The value with the other sign.", "-x", "Unsigned integers wrap around: 1 becomes the largest."),
    "SIGN": _unary("The sign.", "-1 if x < 0, 0 if x = 0, 1 if x > 0", "NaN gives NaN."),
    "FLOOR": _unary("The largest whole number that is not above.", "floor(x)", "Integers come out as they went in."),
    "CEIL": _unary("The smallest whole number that is not below.", "ceil(x)", "Integers come out as they went in."),
    "ROUND": _unary(
        "The nearest whole number.",
        "rint(x)",
        "Halves go to the even number: 0.5 and -0.5 give 0, 1.5 and 2.5 give 2. C's `round` is another function.",
        numbers=(-2.5, -0.5, 0.5, 1.5, 2.4),
    ),
    "EXP": _unary("The exponential function.", "exp(x)"),
    "LOG": _unary(
        "The natural logarithm.", "log(x)", "0 gives -inf, negative numbers NaN.", numbers=(0.0, 0.5, 1.0, 10.0)
    ),
    "SQRT": _unary("The square root.", "sqrt(x)", "Negative numbers give NaN.", numbers=(0.0, 0.25, 2.0, 9.0)),
    "RECIPROCAL": _unary("One over the value.", "1 / x", "0 gives inf, -0 gives -inf.", numbers=(-2.0, 0.0, 0.5, 4.0)),
    "ERF": _unary("The error function.", "erf(x) = 2 / sqrt(pi) * (integral of exp(-t * t) for t from 0 to x)"),
    "SIN": _unary("The sine of an angle in radians.", "sin(x)"),
    "COS": _unary("The cosine of an angle in radians.", "cos(x)"),
    "TANH": _unary("The hyperbolic tangent.", "tanh(x) = (exp(x) - exp(-x)) / (exp(x) + exp(-x))"),
    "SIGMOID": _unary(
        "The logistic function.", "1 / (1 + exp(-x))", "exp(-x) must not overflow: use exp(x) / (1 + exp(x)) below 0."
    ),
    "SOFTPLUS": _unary(
        "A smooth form of RELU.",
        "log(1 + exp(x)) = max(x, 0) + log(1 + exp(-|x|))",
        "exp(x) must not overflow: use the second form.",
    ),
    "SOFTSIGN": _unary("A sigmoid without an exponential.", "x / (1 + |x|)"),
    "MISH": _unary("The Mish activation.", "x * tanh(log(1 + exp(x)))", "exp(x) must not overflow, see SOFTPLUS."),
    "RELU": _unary(
        "The value, or 0 if it is negative.",
        "max(x, 0)",
        "NaN gives NaN.",
        "On a quantized operand with a quantized result it works on reals: the integer that stands for 0 is the zero"
        " point.",
        "The pass fuse_activation makes it a fuse code of the operation before it.",
    ),
    "SWISH": _unary(
        "The Swish activation; SiLU with alpha 1.",
        "x / (1 + exp(-alpha * x))",
        "The fuse code `swish` has alpha 1 and no parameter.",
        attributes={"alpha": "Factor of x inside the sigmoid."},
    ),
    "HARD_SIGMOID": _unary(
        "A line in the place of the sigmoid, cut off at 0 and 1.",
        "max(0, min(1, alpha * x + beta))",
        "The default alpha is 0.2, ONNX's; others use 1/6.",
        attributes={"alpha": "Slope of the line.", "beta": "Its value at 0."},
    ),
    "HARD_SWISH": _unary(
        "The value times its hard sigmoid.",
        "x * max(0, min(1, alpha * x + beta))",
        "The default alpha is 1/6 here, and 0.2 in HARD_SIGMOID.",
        attributes={"alpha": "Slope of the line.", "beta": "Its value at 0."},
    ),
    "LEAKY_RELU": _unary(
        "The value, or a share of it below 0.",
        "x if x >= 0, alpha * x if x < 0",
        "alpha may be larger than 1, or negative: max(x, alpha * x) is another function then.",
        attributes={"alpha": "Slope below 0."},
    ),
    "ELU": _unary(
        "The value, or an exponential below 0.",
        "x if x >= 0, alpha * (exp(x) - 1) if x < 0",
        attributes={"alpha": "The limit far below 0 is -alpha."},
    ),
    "SELU": _unary(
        "ELU, scaled.",
        "gamma * x if x > 0, gamma * alpha * (exp(x) - 1) if x <= 0",
        attributes={"alpha": "Factor of the exponential part.", "gamma": "Factor of both parts."},
    ),
    "NOT": OperationDoc(
        summary="The other truth value.",
        formula="not x",
        inputs={"input": "Truth values."},
        outputs=LIKE_INPUT,
        example=Example((tensor([True, False]),)),
    ),
    "GELU": _unary(
        "The Gaussian error linear unit.",
        "none: 0.5 * x * (1 + erf(x / sqrt(2)))\ntanh: 0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))",
        "The two forms differ in the fourth digit: do not take one for the other.",
        attributes={"approximate": "`none`: exact, by erf. `tanh`: the usual approximation."},
        values={"approximate": "tanh"},
        flops="5 for each element of the output, 9 with tanh",
    ),
    "CLIP": _unary(
        "The value, kept between two limits.",
        "min(max(x, min), max)",
        "With min above max the result is max everywhere. NaN stays NaN.",
        "The limits are floats. For integers their fractions are cut off, and they are kept in the data type's range.",
        "ONNX's Clip has its limits as inputs; computed ones become MAX and MIN.",
        attributes={"min": "The lower limit.", "max": "The upper limit."},
        values={"min": -1.0, "max": 1.0},
    ),
    "ASSIGN": _unary(
        "The operand itself, under another name.",
        "x",
        "Data type, layout and quantization stay.",
        "The pass simplify takes it away wherever the name of a model output does not need it.",
    ),
    "CAST": _unary(
        "The values in another data type.",
        "x as `to`",
        "From floating-point to integers the fraction is cut off (toward 0). What does not fit the integer type is"
        " undefined.",
        "From wider to narrower integers the low bits stay. To bool, everything but 0 is true; NaN is, too.",
        "To float8 numbers that are too large become the largest finite one, as with ONNX's saturate = 1; to float16"
        " and bfloat16 they become inf.",
        "Quantized operands: the integers are cast, and the result is not quantized. DEQUANTIZE gives reals.",
        numbers=(-1.5, -0.5, 0.0, 2.7),
        attributes={"to": "The data type of the result."},
        values={"to": "int32"},
    ),
}

_BINARY: Mapping[str, OperationDoc] = {
    "MAX": _binary("The larger of two values.", "max(x, y)", _NAN, "It has exactly two inputs; ONNX's Max any number."),
    "MIN": _binary(
        "The smaller of two values.", "min(x, y)", _NAN, "It has exactly two inputs; ONNX's Min any number."
    ),
    "AND": _binary("Whether both are true.", "x and y", truth=True, to_bool=True),
    "OR": _binary("Whether one is true at least.", "x or y", truth=True, to_bool=True),
    "XOR": _binary("Whether exactly one is true.", "x != y", truth=True, to_bool=True),
    "EQUAL": _binary(
        "Whether both are equal.",
        "x = y",
        "NaN equals nothing, not even NaN. 0 equals -0.",
        "Of quantized operands the integers are compared, whatever their scales.",
        to_bool=True,
    ),
    "GREATER": _binary("Whether x is larger.", "x > y", "With NaN it is false.", to_bool=True),
    "GREATER_EQUAL": _binary("Whether x is not smaller.", "x >= y", "With NaN it is false.", to_bool=True),
    "LESS": _binary("Whether x is smaller.", "x < y", "With NaN it is false.", to_bool=True),
    "LESS_EQUAL": _binary("Whether x is not larger.", "x <= y", "With NaN it is false.", to_bool=True),
    "ADD": _arithmetic("The sum.", "activation(x + y)", _WRAP),
    "SUB": _arithmetic("The difference.", "activation(x - y)", _WRAP),
    "MUL": _arithmetic("The product, element by element.", "activation(x * y)", _WRAP),
    "DIV": _arithmetic(
        "The quotient.",
        "activation(x / y); for integers trunc(x / y)",
        "Integers round toward 0: -7 / 2 = -3. FLOOR_DIV rounds down.",
        "Integers divided by 0 are undefined. Floating-point ones give inf, -inf or NaN.",
    ),
}

_OTHER: Mapping[str, OperationDoc] = {
    "PRELU": OperationDoc(
        summary="The value, or below 0 a share of it that a tensor says.",
        formula="x if x >= 0, slope * x if x < 0",
        inputs={
            "input": "The operand, x in the formula.",
            "slope": "Broadcasts to the dimensions of `input`, never the other way.",
        },
        outputs=LIKE_INPUT,
        example=Example((tensor([[-1.0, 2.0], [-3.0, -4.0]]), tensor([[0.5], [0.25]]))),
        traps=(
            "Slopes align at the last axis: one slope per channel of [N, C, H, W] has dimensions [C, 1, 1], not [C].",
        ),
    ),
    "POW": OperationDoc(
        summary="A power.",
        formula="input ^ exponent",
        inputs={"input": "The base.", "exponent": "May have another data type than `input`; broadcast against it."},
        outputs={"output": f"The data type of `input`. {_SPREAD}"},
        example=Example((tensor([1.0, 2.0, 3.0]), tensor([2, 0, -1]))),
        traps=(
            "The result has the data type of the base: int32 to the power of 0.5 is computed in float64 and cut off.",
            "Integers to integer powers, none of them negative, are exact and wrap around.",
            "A negative base with a fractional exponent gives NaN.",
        ),
    ),
    "MOD": OperationDoc(
        summary="The rest of a division.",
        formula="fmod false: x - y * floor(x / y)\nfmod true: x - y * trunc(x / y)",
        inputs={"x": "The dividend.", "y": "The divisor; broadcast against `x`."},
        attributes={
            "fmod": "True: the result has the sign of the dividend, as C's fmod. False: that of the divisor, as"
            " Python's %."
        },
        outputs={"output": f"The data type of `x`. {_SPREAD}"},
        example=Example((tensor([-7, 7, -7, 7]), tensor([3, 3, -3, -3])), {"fmod": False}),
        traps=(
            "Floating-point operands need fmod true.",
            "Integers divided by 0 are undefined.",
        ),
    ),
    "SUM": OperationDoc(
        summary="The sum of any number of operands.",
        formula="inputs[0] + inputs[1] + …",
        inputs={"inputs": "One or more operands of one data type; all are broadcast."},
        outputs={"output": "The inputs' data type. Their dimensions, broadcast as numpy does."},
        example=Example((tensor([1.0, 2.0]), tensor([10.0, 20.0]), tensor([[100.0], [200.0]]))),
        flops="the number of inputs less one, for each element of the output",
    ),
    "WHERE": OperationDoc(
        summary="One of two values, as a condition says.",
        formula="x if condition, else y",
        inputs={
            "condition": "Truth values.",
            "x": "What is taken where the condition is true.",
            "y": "What is taken elsewhere.",
        },
        outputs={"output": "The data type of `x`. The dimensions of all three, broadcast as numpy does."},
        example=Example((tensor([True, False, True]), tensor([[1.0], [2.0]]), tensor([10.0, 20.0, 30.0]))),
        traps=("All three are broadcast, the condition too.", "A NaN that is not taken leaves no trace."),
    ),
}

MEANINGS: Mapping[str, OperationDoc] = {**_UNARY, **_BINARY, **_OTHER}
"""By operation."""
