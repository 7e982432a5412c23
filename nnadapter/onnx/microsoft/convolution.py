"""Convolutions with an activation and an addition drawn into them, or with their channels last; crops."""

from __future__ import annotations

from nnadapter.onnx.body import BodyBuilder, channels_first, channels_last, function_op, sliced
from nnadapter.onnx.microsoft.elementwise import apply

_WINDOWS = {
    "auto_pad": "NOTSET",
    "dilations": list[int],
    "group": 1,
    "kernel_shape": list[int],
    "pads": list[int],
    "strides": list[int],
}
_FUSED = {**_WINDOWS, "activation": str, "activation_params": list[float]}


@function_op("FusedConv", "X W B? Z?", "Y", _FUSED)
def fused_conv_body(body: BodyBuilder) -> tuple[str, ...]:
    """Conv, then the addition of Z, then an activation. Source: com.microsoft FusedConv-1."""
    made = _convolved(body, body.input(0), body.input(1))
    made = body.add("Add", made, body.input(3)) if body.input(3) else made
    return (_activated(body, made),)


@function_op("NhwcConv", "X W B?", "Y", _WINDOWS)
def nhwc_conv_body(body: BodyBuilder) -> tuple[str, ...]:
    """Conv of a picture with its channels last. Source: com.microsoft NhwcConv-1."""
    return (_convolved_channels_last(body),)


@function_op("NhwcFusedConv", "X W B? Z?", "Y", _FUSED)
def nhwc_fused_conv_body(body: BodyBuilder) -> tuple[str, ...]:
    """FusedConv of a picture with its channels last. Source: com.microsoft NhwcFusedConv-1."""
    made = _convolved_channels_last(body)
    made = body.add("Add", made, body.input(3)) if body.input(3) else made
    return (_activated(body, made),)


def _convolved(body: BodyBuilder, x: str, weight: str) -> str:
    stated = {name: body.node.attributes.get(name) for name in _WINDOWS}
    return body.add("Conv", x, weight, body.input(2), **stated)


def _activated(body: BodyBuilder, x: str) -> str:
    return apply(body, x, body.node.text("activation", ""), body.node.numbers("activation_params") or ())


def _convolved_channels_last(body: BodyBuilder) -> str:
    rank = body.inputs.rank(0)
    return channels_last(body, _convolved(body, channels_first(body, body.input(0), rank), body.input(1)), rank)


@function_op("Crop", "input", "output", {"border": list[int], "scale": list[int]}, domain="")
def crop_body(body: BodyBuilder) -> tuple[str, ...]:
    """A picture without its borders; `scale` is the size of what is left. Source: ONNX Runtime's Crop-1."""
    border, scale = body.node.integers("border") or (), body.node.integers("scale")
    if len(border) != 4 or (scale is not None and len(scale) != 2):
        raise body.invalid("needs four numbers in attribute 'border', and two in 'scale' if it is there")
    left, top, right, bottom = border
    ends = (-bottom or None, -right or None) if scale is None else (top + scale[0], left + scale[1])
    x = body.input(0)
    for axis, begin, end in ((2, top, ends[0]), (3, left, ends[1])):
        x = sliced(body, x, axis, begin, 2**31 - 1 if end is None else end)
    return (x,)
