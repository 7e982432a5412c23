"""Images and windows: layouts, window sizes, and fused activations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import DataType, Layout, OperandType
from nnadapter.ir.operations.row import Types, floats, string
from nnadapter.ir.schema import Attribute, AttributeKind, Attributes, FlopsRule, ShapeRule

IMAGES = frozenset(
    {
        "CONV_2D",
        "CONV_2D_TRANSPOSE",
        "MAX_POOL_2D",
        "AVERAGE_POOL_2D",
        "BATCH_NORMALIZATION",
        "INSTANCE_NORMALIZATION",
        "LOCAL_RESPONSE_NORMALIZATION",
        "DEPTH_TO_SPACE",
        "SPACE_TO_DEPTH",
    }
)
"""Operations that read the layout of a picture."""


def like(type_: OperandType, dimensions: tuple[int, ...], dtype: DataType | None = None) -> OperandType:
    """The type of a result whose axes are those of `type_`: its layout is kept, its quantization is not."""
    dtype = dtype or type_.dtype
    if dimensions == type_.dimensions and dtype is type_.dtype and type_.quantization is None:
        return type_
    layout = type_.layout if len(dimensions) == 4 else Layout.NCHW
    return OperandType(dtype, dimensions, layout)


def layout_of(types: Iterable[OperandType], rank: int) -> Layout:
    """The layout of an elementwise result: NHWC if any operand of rank 4 is."""
    if rank != 4:
        return Layout.NCHW
    nhwc = any(type_.layout is Layout.NHWC and type_.rank == 4 for type_ in types)
    return Layout.NHWC if nhwc else Layout.NCHW


def channel_axis(type_: OperandType) -> int:
    """The axis of the channels: 1, or the last one where the layout is NHWC."""
    return type_.rank - 1 if type_.layout is Layout.NHWC else 1


def image_size(type_: OperandType) -> tuple[int, int, int, int]:
    """Batch, channels, height and width of an image of either layout."""
    if type_.layout is Layout.NHWC:
        batch, height, width, channels = type_.dimensions
    else:
        batch, channels, height, width = type_.dimensions
    return batch, channels, height, width


def image_like(type_: OperandType, channels: int, height: int, width: int) -> OperandType:
    """The type of an image of the batch, data type and layout of `type_`, and of that size."""
    batch = type_.dimensions[0]
    if type_.layout is Layout.NHWC:
        return like(type_, (batch, height, width, channels))
    return like(type_, (batch, channels, height, width))


def window_count(name: str, padded: int, kernel: int, stride: int, dilation: int) -> int:
    """Return the number of whole windows along an axis of `padded` elements.

    Source: ONNX Conv-11, output size rounded down.

    Raises:
        InvalidModelError: not even one window fits.
    """
    extent = (kernel - 1) * dilation + 1
    if padded < extent:
        raise InvalidModelError(
            f"{name} with padding is {padded}, expected at least {extent}, "
            f"the extent of a kernel of {kernel} with dilation {dilation}"
        )
    return (padded - extent) // stride + 1


def window_count_ceil(name: str, size: int, begin: int, end: int, kernel: int, stride: int, dilation: int) -> int:
    """Return the number of windows, a last partial one included if it starts in the input or the padding before it.

    Source: ONNX MaxPool-22 and AveragePool-22, `ceil_mode`.

    Raises:
        InvalidModelError: not even a partial window fits.
    """
    extent = (kernel - 1) * dilation + 1
    count = -((extent - size - begin - end) // stride) + 1
    if (count - 1) * stride >= size + begin:
        count -= 1
    if size < 1 or count < 1:
        raise InvalidModelError(f"{name} is {size}, expected at least part of a window of extent {extent}")
    return count


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
"""By code: the names of its `fuse_parameters`, and its arithmetic steps per element, those of the operation itself.

Source: NNAPI FuseCode, extended by the activations that today's networks use.
"""

FUSE_ATTRIBUTES = (
    Attribute("fuse_code", AttributeKind.STRING, "none", tuple(FUSE_CODES)),
    Attribute("fuse_parameters", AttributeKind.FLOATS, ()),
)
"""The two attributes that every fusable operation has."""

_EXACT_ON_INTEGERS = frozenset({"none", "relu", "clip"})


def fusable(rule: ShapeRule) -> ShapeRule:
    """Return the shape rule, extended by the check of the fuse code and its parameters."""

    def infer(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
        result = rule(types, attributes)
        if attributes["fuse_code"] != "none" or attributes["fuse_parameters"]:
            _check(attributes, result[0])
        return result

    return infer


def fused(rule: FlopsRule) -> FlopsRule:
    """Return the FLOP formula, extended by the activation's steps, so that fusing does not change a model's FLOPs."""

    def flops(types: Types, outputs: Sequence[OperandType], attributes: Attributes) -> int:
        _, steps = FUSE_CODES[string(attributes, "fuse_code")]
        return rule(types, outputs, attributes) + steps * outputs[0].size

    return flops


def _check(attributes: Attributes, output: OperandType) -> None:
    code = string(attributes, "fuse_code")
    parameters = floats(attributes, "fuse_parameters")
    names, _ = FUSE_CODES[code]
    if len(parameters) != len(names):
        raise InvalidModelError(
            f"fuse_parameters has {len(parameters)} values {list(parameters)}, "
            f"expected {len(names)} ({', '.join(names) or 'none'}) for fuse_code {code!r}"
        )
    if code not in _EXACT_ON_INTEGERS and not output.dtype.is_floating:
        raise InvalidModelError(f"fuse_code is {code!r} on {output.dtype.value}, expected a floating-point output")
