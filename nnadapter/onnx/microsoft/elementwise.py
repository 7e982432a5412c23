"""Bodies of activations: Gelu variants, and activations of fused ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import pi, sqrt

from nnadapter.onnx.body import BodyBuilder, function_op

_GELU_SINCE = 20


def gelu(body: BodyBuilder, x: str, dtype: str, approximate: str = "none") -> str:
    """Add a Gelu by the error function, or by tanh."""
    if body.opset >= _GELU_SINCE:
        return body.Gelu(x, approximate=approximate)
    half, unit = body.constant(0.5, dtype), body.constant(1.0, dtype)
    if approximate == "none":
        inner = body.Erf(body.Div(x, body.constant(sqrt(2), dtype)))
    else:
        square = body.Mul(body.Mul(x, x), body.constant(0.044715 * sqrt(2 / pi), dtype))
        factor = body.Add(square, body.constant(sqrt(2 / pi), dtype))
        inner = body.Tanh(body.Mul(x, factor))
    return body.Mul(body.Mul(x, body.Add(inner, unit)), half)


def silu(body: BodyBuilder, x: str) -> str:
    """Add `x * Sigmoid(x)`."""
    return body.Mul(x, body.Sigmoid(x))


@function_op("Gelu", "X", "Y")
def gelu_body(body: BodyBuilder) -> tuple[str, ...]:
    """Expand com.microsoft Gelu-1."""
    return (gelu(body, body.input(0), body.dtype()),)


@function_op("FastGelu", "X bias?", "Y")
def fast_gelu_body(body: BodyBuilder) -> tuple[str, ...]:
    """Expand com.microsoft FastGelu-1: tanh form, optional bias."""
    x = body.plus(body.input(0), body.input(1))
    return (gelu(body, x, body.dtype(), "tanh"),)


@function_op("BiasGelu", "A B", "C")
def bias_gelu_body(body: BodyBuilder) -> tuple[str, ...]:
    """Expand com.microsoft BiasGelu-1."""
    return (gelu(body, body.Add(body.input(0), body.input(1)), body.dtype()),)


@function_op("QuickGelu", "X", "Y", {"alpha": 1.702})
def quick_gelu_body(body: BodyBuilder) -> tuple[str, ...]:
    """Expand com.microsoft QuickGelu-1: `x * Sigmoid(alpha * x)`."""
    x, alpha = body.input(0), body.node.number("alpha")
    scaled = x if alpha == 1 else body.Mul(x, body.constant(alpha, body.dtype()))
    return (body.Mul(x, body.Sigmoid(scaled)),)


@function_op("BiasSplitGelu", "X bias", "Y")
def bias_split_gelu_body(body: BodyBuilder) -> tuple[str, ...]:
    """Expand com.microsoft BiasSplitGelu-1, the first half times Gelu of the second half."""
    total = body.Add(body.input(0), body.input(1))
    width = body.width(1, 0) if body.rank(1) == 1 else None
    if width is None or width % 2:
        raise body.invalid("has a bias that is not a vector of known, even length")
    factor, right = body.add_several("Split", (total, body.constant([width // 2, width // 2])), 2, axis=-1)
    return (body.Mul(factor, gelu(body, right, body.dtype())),)


@function_op("BiasAdd", "X bias skip", "Y")
def bias_add_body(body: BodyBuilder) -> tuple[str, ...]:
    """Expand com.microsoft BiasAdd-1."""
    return (body.Add(body.Add(body.input(0), body.input(1)), body.input(2)),)


_PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "": (),
    "Elu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "HardSwish": (),
    "LeakyRelu": ("alpha",),
    "Relu": (),
    "Selu": ("alpha", "gamma"),
    "Sigmoid": (),
    "Softplus": (),
    "Softsign": (),
    "Tanh": (),
    "ThresholdedRelu": ("alpha",),
}
_BOUNDS = "Clip"


def apply(body: BodyBuilder, x: str, activation: str, parameters: Sequence[float]) -> str:
    """Add an activation, or return `x` if the name is empty. Raises Refusal if it is unknown."""
    if activation == _BOUNDS and len(parameters) == 2:
        return body.Clip(x, *(body.constant(bound, body.dtype()) for bound in parameters))
    names = _PARAMETERS.get(activation)
    if names is None:
        activation_names = ", ".join(sorted({*_PARAMETERS, _BOUNDS} - {""}))
        raise body.unsupported("activation", f"is {activation!r}; expected one of {activation_names}")
    return body.add(activation, x, **dict(zip(names, parameters, strict=False))) if activation else x
