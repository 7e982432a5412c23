"""ONNX's own functions whose bodies lose what devices do not round: written down so that they keep it."""

from __future__ import annotations

from collections.abc import Sequence

from nnadapter.onnx.body import BodyBuilder

OLDEST_STABLE_OPSET = 7
"""The oldest opset in which they can be written down: Sub broadcasts by itself."""


def softplus_body(body: BodyBuilder) -> Sequence[str]:
    """Relu(x) - log(sigmoid(|x|)).

    ONNX's log(exp(x) + 1) overflows from 89 on, and engines that know that form may compute it roughly: OpenVINO is off
    by 8e-6 where the result is nothing, which the splines of speech models (VITS) divide by. Source: ONNX Softplus-1.
    """
    x = body.input(0)
    return [body.add("Sub", body.add("Relu", x), body.add("Log", body.add("Sigmoid", body.add("Abs", x))))]
