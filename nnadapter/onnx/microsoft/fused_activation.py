"""Activations that an attribute of a fused op names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nnadapter.onnx.body import BodyBuilder

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
"""What the parameters of each mean, in their order."""
_BOUNDS = "Clip"


def apply(body: BodyBuilder, x: str, activation: str, parameters: Sequence[float]) -> str:
    """Add an activation, and return what it makes; `x` itself where none is named.

    Raises:
        Refusal: there is no such activation.
    """
    if activation == _BOUNDS and len(parameters) == 2:
        return body.add("Clip", x, *(body.constant(bound, body.inputs.dtype()) for bound in parameters))
    names = _PARAMETERS.get(activation)
    if names is None:
        known = ", ".join(sorted({*_PARAMETERS, _BOUNDS} - {""}))
        raise body.unsupported("activation", f"is {activation!r}; expected one of {known}")
    return body.add(activation, x, **dict(zip(names, parameters, strict=False))) if activation else x
