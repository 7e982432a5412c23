"""The meanings of further elementwise functions."""

from __future__ import annotations

from collections.abc import Mapping

from nnadapter.ir.reference.meaning import LIKE_INPUT, Example, OperationDoc, tensor
from nnadapter.ir.schema import AttributeValue

_NUMBERS = (-1.0, -0.5, 0.0, 0.5, 1.0)
_TESTED = {"output": "bool, with the dimensions and the layout of `input`."}
_SPREAD = "The dimensions of both inputs, broadcast as numpy does: aligned at the last axis, a 1 spreads."


def _function(
    summary: str,
    formula: str,
    *traps: str,
    numbers: tuple[float, ...] = _NUMBERS,
    attributes: Mapping[str, str] | None = None,
    values: Mapping[str, AttributeValue] | None = None,
    outputs: Mapping[str, str] = LIKE_INPUT,
) -> OperationDoc:
    return OperationDoc(
        summary=summary,
        formula=formula,
        inputs={"input": "The operand, x in the formula; every element is taken by itself."},
        attributes=attributes or {},
        outputs=outputs,
        example=Example((tensor(numbers),), values or {}),
        traps=traps,
    )


MEANINGS: Mapping[str, OperationDoc] = {
    "ACOS": _function("The inverse of the cosine, 0 to pi.", "acos(x)", "Outside -1 to 1 it gives NaN."),
    "ACOSH": _function(
        "The inverse of the hyperbolic cosine, 0 or more.",
        "acosh(x) = log(x + sqrt(x * x - 1))",
        "Below 1 it gives NaN.",
        numbers=(1.0, 2.0, 10.0),
    ),
    "ASIN": _function("The inverse of the sine, -pi / 2 to pi / 2.", "asin(x)", "Outside -1 to 1 it gives NaN."),
    "ASINH": _function("The inverse of the hyperbolic sine.", "asinh(x) = log(x + sqrt(x * x + 1))"),
    "ATAN": _function("The inverse of the tangent, -pi / 2 to pi / 2.", "atan(x)"),
    "ATANH": _function(
        "The inverse of the hyperbolic tangent.",
        "atanh(x) = 0.5 * log((1 + x) / (1 - x))",
        "-1 and 1 give -inf and inf; outside them it gives NaN.",
        numbers=(-0.5, 0.0, 0.9),
    ),
    "COSH": _function("The hyperbolic cosine.", "cosh(x) = (exp(x) + exp(-x)) / 2"),
    "SINH": _function("The hyperbolic sine.", "sinh(x) = (exp(x) - exp(-x)) / 2"),
    "TAN": _function("The tangent of an angle in radians.", "tan(x)"),
    "RSQRT": _function(
        "One over the square root.", "1 / sqrt(x)", "0 gives inf, negative numbers NaN.", numbers=(0.25, 1.0, 4.0)
    ),
    "SQUARE": _function("The value times itself.", "x * x", "Integers wrap around.", numbers=(-3.0, 0.5, 2.0)),
    "NOT_EQUAL": OperationDoc(
        summary="Whether two values differ.",
        formula="x != y",
        inputs={"x": "The first operand.", "y": "The second operand; broadcast against `x`."},
        outputs={"output": f"bool. {_SPREAD}"},
        example=Example((tensor([1, 2, 3]), tensor([[1], [3]]))),
        traps=("NaN differs from everything, from NaN too.",),
    ),
    "FLOOR_DIV": OperationDoc(
        summary="The quotient, rounded down.",
        formula="floor(x / y)",
        inputs={"x": "The dividend.", "y": "The divisor; broadcast against `x`."},
        outputs={"output": f"The data type of `x`. {_SPREAD}"},
        example=Example((tensor([-7, 7, -7, 7]), tensor([2, 2, -2, -2]))),
        traps=(
            "-7 by 2 gives -4; DIV of integers gives -3.",
            "Integers divided by 0 are undefined.",
            "Of floating-point numbers, the exact quotient is rounded down, as Python's // does.",
        ),
    ),
    "CELU": _function(
        "ELU whose slope at 0 is 1 for every alpha.",
        "max(0, x) + min(0, alpha * (exp(x / alpha) - 1))",
        "alpha 0 is refused.",
        attributes={"alpha": "Width of the exponential part; not 0."},
        values={"alpha": 2.0},
    ),
    "SHRINK": _function(
        "What is small becomes 0, the rest comes nearer to 0.",
        "x + bias if x < -lambd, x - bias if x > lambd, else 0",
        "Both limits themselves give 0.",
        "Integers are computed with as reals, and the fraction of the result is cut off.",
        numbers=(-2.0, -0.5, 0.0, 0.5, 2.0),
        attributes={"bias": "What is taken off outside the limits.", "lambd": "The limit."},
        values={"bias": 1.5, "lambd": 0.5},
    ),
    "THRESHOLDED_RELU": _function(
        "The value where it is above a threshold, 0 elsewhere.",
        "x if x > alpha, else 0",
        "The threshold itself gives 0.",
        attributes={"alpha": "The threshold."},
        values={"alpha": 0.5},
    ),
    "IS_NAN": _function(
        "Whether it is not a number.", "x != x", numbers=(0.0, float("nan"), float("inf")), outputs=_TESTED
    ),
    "IS_INF": _function(
        "Whether it is infinite.",
        "(x = inf and detect_positive) or (x = -inf and detect_negative)",
        numbers=(float("-inf"), 0.0, float("inf"), float("nan")),
        attributes={
            "detect_negative": "Whether -inf counts.",
            "detect_positive": "Whether inf counts.",
        },
        values={"detect_negative": False},
        outputs=_TESTED,
    ),
    "SWIGLU": OperationDoc(
        summary="The gated activation of many language models: the Swish of one operand times another.",
        formula="gate / (1 + exp(-alpha * gate)) * value",
        inputs={"gate": "What the activation is applied to.", "value": "What it is multiplied with."},
        attributes={"alpha": "Factor of the gate inside the sigmoid; 1 for SiLU."},
        outputs={"output": "Data type, dimensions and layout of `gate`."},
        example=Example((tensor([-1.0, 0.0, 2.0]), tensor([10.0, 10.0, 10.0]))),
        traps=("Both have the same dimensions: nothing is broadcast, and no tensor is split in two.",),
    ),
}
"""By operation."""
