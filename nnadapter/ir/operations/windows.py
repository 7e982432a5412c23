"""Images and windows: layouts, window sizes, and fused activations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import Layout, OperandType
from nnadapter.ir.operations.row import Formula, PerElement, Rule, check_at_least, like

_IMAGES = """
CONV_2D CONV_2D_TRANSPOSE MAX_POOL_2D AVERAGE_POOL_2D BATCH_NORMALIZATION INSTANCE_NORMALIZATION
LOCAL_RESPONSE_NORMALIZATION DEPTH_TO_SPACE SPACE_TO_DEPTH
"""
IMAGES = frozenset(_IMAGES.split())
"""Operations on images in NCHW or NHWC."""
AXES = ("depth", "height", "width")
"""Names of the spatial axes: all three for a volume, the last two for an image."""


def channel_axis(type_: OperandType) -> int:
    """Return the channel axis: the last for NHWC, otherwise 1."""
    return type_.rank - 1 if type_.layout is Layout.NHWC else 1


def image_size(type_: OperandType) -> tuple[int, ...]:
    """Return batch, channels and spatial sizes of an image in any layout."""
    if type_.layout is Layout.NHWC:
        batch, height, width, channels = type_.dimensions
        return batch, channels, height, width
    return type_.dimensions


def image_like(type_: OperandType, channels: int, *sizes: int) -> OperandType:
    """Return the type of an image with the layout and batch of `type_`."""
    batch = type_.dimensions[0]
    return like(type_, (batch, *sizes, channels) if type_.layout is Layout.NHWC else (batch, channels, *sizes))


def check_windows(pads: Sequence[int], **positive: Sequence[int]) -> None:
    """Raise InvalidModelError if a pad is negative, or if a value in `positive` is less than 1."""
    check_at_least(1, **positive)
    check_at_least(0, pads=pads)


def window_counts(
    names: Sequence[str],
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int],
    *,
    ceil_mode: bool = False,
) -> list[int]:
    """Return the number of windows along each of the axes `names`.

    With `ceil_mode`, a partial window counts if it starts before the end padding. Source: ONNX Conv-11, MaxPool-22.
    Raises InvalidModelError if no window fits.
    """
    counts = []
    for axis, name in enumerate(names):
        size, begin, end, stride = sizes[axis], pads[axis], pads[axis + len(sizes)], strides[axis]
        extent = (kernel[axis] - 1) * dilations[axis] + 1
        padded = size + begin + end
        if ceil_mode:
            count = -((extent - padded) // stride) + 1
            if (count - 1) * stride >= size + begin:
                count -= 1
            if size < 1 or count < 1:
                least = max(1, extent - stride + 1 - begin - end)
                raise InvalidModelError(f"{name} is {size}, expected at least {least} for windows of {extent} elements")
        elif padded < extent:
            raise InvalidModelError(
                f"{name} with padding is {padded}, expected at least {extent}, "
                f"the extent of a kernel of {kernel[axis]} with dilation {dilations[axis]}"
            )
        else:
            count = (padded - extent) // stride + 1
        counts.append(count)
    return counts


def moves(rank: int) -> str:
    """Return the part of a row's signature with strides, pads and dilations of `rank` axes."""
    ones = " ".join(["1"] * rank)
    # pads = begin of every axis, then end of every axis
    pads = " ".join(["0"] * 2 * rank)
    return f"strides: ints[{rank}] = {ones}, pads: ints[{2 * rank}] = {pads}, dilations: ints[{rank}] = {ones}"


FUSE_CODES: Mapping[str, tuple[tuple[str, ...], int]] = {
    "none": ((), 0),
    "relu": ((), 1),
    "clip": (("min", "max"), 2),
    "sigmoid": ((), 4),
    "hard_sigmoid": (("alpha", "beta"), 4),
    "hard_swish": (("alpha", "beta"), 5),
    "tanh": ((), 1),
    "leaky_relu": (("alpha",), 2),
    "gelu": ((), 5),
    "gelu_tanh": ((), 9),
    "swish": ((), 5),
}
"""Fused activation -> names of its `fuse_parameters`, and its steps per element. Source: NNAPI FuseCode."""

FUSED = f"fuse_code: string({'|'.join(FUSE_CODES)}) = none, fuse_parameters: floats = ()"

_EXACT_ON_INTEGERS = frozenset({"none", "relu", "clip"})


def fusable(rule: Rule) -> Rule:
    """Return a shape rule that also accepts and checks a fused activation."""

    def infer(
        *types: OperandType | None, fuse_code: str, fuse_parameters: Sequence[float], **attributes: object
    ) -> OperandType | tuple[OperandType, ...]:
        result = rule(*types, **attributes)
        if fuse_code != "none" or fuse_parameters:
            assert isinstance(result, OperandType), "fusable operations have one output"
            _check(fuse_code, fuse_parameters, result)
        return result

    return infer


def fused(formula: Formula | PerElement) -> Formula:
    """Return a FLOP formula that includes the fused activation, as fusion does not change a model's FLOPs."""

    def flops(
        outputs: Sequence[OperandType],
        *types: OperandType | None,
        fuse_code: str,
        fuse_parameters: object,
        **attributes: object,
    ) -> int:
        plain = (
            formula(types, outputs, {}) if isinstance(formula, PerElement) else formula(outputs, *types, **attributes)
        )
        return plain + FUSE_CODES[fuse_code][1] * outputs[0].size

    return flops


def _check(code: str, parameters: Sequence[float], output: OperandType) -> None:
    names, _ = FUSE_CODES[code]
    if len(parameters) != len(names):
        raise InvalidModelError(
            f"fuse_parameters has {len(parameters)} values {list(parameters)}, "
            f"expected {len(names)} ({', '.join(names) or 'none'}) for fuse_code {code!r}"
        )
    if code not in _EXACT_ON_INTEGERS and not output.dtype.is_floating:
        raise InvalidModelError(f"fuse_code is {code!r} on {output.dtype.value}, expected a floating-point output")
