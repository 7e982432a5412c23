"""Bodies of ONNX Runtime's matrix products and convolutions."""

from __future__ import annotations

from nnadapter.onnx.body import BodyBuilder, channels_first, channels_last, function_op, sliced
from nnadapter.onnx.microsoft.elementwise import apply

_FACTORS = {"alpha": 1.0, "transA": 0, "transB": 0}


@function_op("FusedMatMul", "A B", "Y", {**_FACTORS, "transBatchA": 0, "transBatchB": 0})
def fused_matmul_body(body: BodyBuilder) -> tuple[str, ...]:
    """Expand com.microsoft FusedMatMul-1."""
    return (_product(body, trans_batch=True),)


@function_op("TransposeMatMul", "A B", "Y", _FACTORS)
def transpose_matmul_body(body: BodyBuilder) -> tuple[str, ...]:
    """Expand com.microsoft TransposeMatMul-1, FusedMatMul's predecessor."""
    return (_product(body, trans_batch=False),)


def _product(body: BodyBuilder, *, trans_batch: bool) -> str:
    sides = [_side(body, position, letter, trans_batch=trans_batch) for position, letter in enumerate("AB")]
    product = body.MatMul(*sides)
    alpha = body.node.number("alpha")
    return product if alpha == 1 else body.Mul(product, body.constant(alpha, body.dtype()))


def _side(body: BodyBuilder, position: int, letter: str, *, trans_batch: bool) -> str:
    """Return input A or B, transposed as attributes request.

    `transBatch` moves the first batch axis after the others; then `trans` swaps the last two axes.
    """
    axes = list(range(body.rank(position)))
    if trans_batch and body.node.integer(f"transBatch{letter}") and len(axes) > 2:
        axes = [*axes[1:-1], axes[0], axes[-1]]
    if body.node.integer(f"trans{letter}") and len(axes) > 1:
        axes[-2:] = axes[:-3:-1]
    name = body.input(position)
    return name if axes == sorted(axes) else body.Transpose(name, perm=axes)


@function_op(
    "FusedGemm",
    "A B C?",
    "Y",
    {
        **_FACTORS,
        "beta": 1.0,
        "activation": str,
        "activation_alpha": float,
        "activation_beta": float,
        "activation_gamma": float,
    },
)
def fused_gemm_body(body: BodyBuilder) -> tuple[str, ...]:
    """Expand com.microsoft FusedGemm-1, a Gemm with activation."""
    node = body.node
    stated = {name: node.attributes.get(name) for name in ("alpha", "beta", "transA", "transB")}
    product = body.Gemm(*map(body.input, range(3)), **stated)
    names = ("activation_alpha", "activation_beta", "activation_gamma")
    parameters = [node.number(name) for name in names if name in node.attributes]
    return (apply(body, product, node.text("activation", ""), parameters),)


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
    """Expand com.microsoft FusedConv-1, a Conv with addition of Z and activation."""
    return (_activated(body, _convolved(body, body.input(0))),)


@function_op("NhwcConv", "X W B?", "Y", _WINDOWS)
def nhwc_conv_body(body: BodyBuilder) -> tuple[str, ...]:
    """Expand com.microsoft NhwcConv-1."""
    return (_convolved_channels_last(body),)


@function_op("NhwcFusedConv", "X W B? Z?", "Y", _FUSED)
def nhwc_fused_conv_body(body: BodyBuilder) -> tuple[str, ...]:
    """Expand com.microsoft NhwcFusedConv-1."""
    return (_activated(body, _convolved_channels_last(body)),)


def _convolved(body: BodyBuilder, x: str) -> str:
    stated = {name: body.node.attributes.get(name) for name in _WINDOWS}
    return body.Conv(x, body.input(1), body.input(2), **stated)


def _activated(body: BodyBuilder, x: str) -> str:
    x = body.plus(x, body.input(3))
    return apply(body, x, body.node.text("activation", ""), body.node.numbers("activation_params") or ())


def _convolved_channels_last(body: BodyBuilder) -> str:
    return channels_last(body, _convolved(body, channels_first(body)))


@function_op("Crop", "input", "output", {"border": list[int], "scale": list[int]}, domain="")
def crop_body(body: BodyBuilder) -> tuple[str, ...]:
    """Expand ONNX Runtime's Crop-1; `scale` is the result's size."""
    border, scale = body.node.integers("border") or (), body.node.integers("scale")
    if len(border) != 4 or (scale is not None and len(scale) != 2):
        raise body.invalid("needs four numbers in attribute 'border', and two in 'scale' if present")
    left, top, right, bottom = border
    ends = (-bottom or None, -right or None) if scale is None else (top + scale[0], left + scale[1])
    x = body.input(0)
    for axis, begin, end in ((2, top, ends[0]), (3, left, ends[1])):
        x = sliced(body, x, axis, begin, 2**31 - 1 if end is None else end)
    return (x,)
