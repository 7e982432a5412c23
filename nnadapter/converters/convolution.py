"""Converters of convolutions, and window attributes shared with pooling.

Sequences `[N, C, L]` are images of height 1.
"""

from __future__ import annotations

from collections.abc import Sequence

from nnadapter.converters.context import ConversionContext, invalid
from nnadapter.converters.registry import OnnxNode, Reason, Refusal, converter
from nnadapter.ir import AttributeValue, schema_of
from nnadapter.ir.symbolic_numbers import symbolic_max
from nnadapter.records import dataclass

AUTO_PADS = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")


@dataclass(frozen=True, slots=True, kw_only=True)
class Windows:
    """Attributes of a window, with a value per spatial axis."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    auto_pad: str
    pads: tuple[int, ...]
    """Padding at the start of each axis, then at the end; zeros with `auto_pad`."""

    @property
    def extents(self) -> tuple[int, ...]:
        return tuple((size - 1) * dilation + 1 for size, dilation in zip(self.kernel, self.dilations, strict=True))

    def attributes(self, pads: Sequence[int]) -> dict[str, AttributeValue]:
        return {
            "strides": as_picture(self.strides, 1),
            "dilations": as_picture(self.dilations, 1),
            "pads": picture_pads(pads),
        }


def read_windows(node: OnnxNode, kernel: tuple[int, ...]) -> Windows:
    """Read the window attributes of a node with the given kernel sizes, or raise Refusal."""
    rank = len(kernel)
    auto_pad = node.text("auto_pad", "NOTSET") or "NOTSET"
    if auto_pad not in AUTO_PADS:
        raise invalid(f"attribute 'auto_pad' of {node.op_type} is {auto_pad!r}; expected one of {', '.join(AUTO_PADS)}")
    return Windows(
        kernel=kernel,
        strides=_positive(node, "strides", _list(node, "strides", (1,) * rank)),
        dilations=_positive(node, "dilations", _list(node, "dilations", (1,) * rank)),
        auto_pad=auto_pad,
        pads=_list(node, "pads", (0,) * (2 * rank)) if auto_pad == "NOTSET" else (0,) * (2 * rank),
    )


def _list(node: OnnxNode, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    values = node.integers(name)
    if values is None:
        return default
    if len(values) != len(default):
        raise invalid(f"attribute {name!r} of {node.op_type} is {list(values)}; expected {len(default)} values")
    return values


def _positive(node: OnnxNode, name: str, values: tuple[int, ...]) -> tuple[int, ...]:
    if min(values) < 1:
        raise invalid(f"attribute {name!r} of {node.op_type} is {list(values)}; expected 1 or more each")
    return values


def same_pads(windows: Windows, sizes: Sequence[int]) -> tuple[int, ...]:
    """Return pads for ceil(size / stride) windows. Source: ONNX Conv-11, SAME_UPPER and SAME_LOWER."""
    totals = [
        symbolic_max(0, (-(-size // stride) - 1) * stride + extent - size)
        for size, stride, extent in zip(sizes, windows.strides, windows.extents, strict=True)
    ]
    return split_pads(totals, more_at_end=windows.auto_pad == "SAME_UPPER")


def split_pads(totals: Sequence[int], *, more_at_end: bool) -> tuple[int, ...]:
    """Split each axis's padding into start and end; `more_at_end` puts the larger half at the end."""
    smaller = tuple(total // 2 for total in totals)
    larger = tuple(total - total // 2 for total in totals)
    return smaller + larger if more_at_end else larger + smaller


def resolve_pads(windows: Windows, sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the pads of windows over these sizes; `auto_pad` is resolved."""
    return same_pads(windows, sizes) if windows.auto_pad.startswith("SAME") else windows.pads


def spatial_sizes(context: ConversionContext, node: OnnxNode) -> tuple[int, ...]:
    """Return the one to three sizes of the first input after batch and channels, or raise Refusal."""
    dimensions = context.dimensions(node.input(0))
    if not 3 <= len(dimensions) <= 5:
        raise Refusal(
            Reason.UNSUPPORTED_RANK,
            f"input of {node.op_type} has rank {len(dimensions)}; expected [N, C, L], [N, C, H, W] or [N, C, D, H, W]",
        )
    return dimensions[2:]


def as_picture(values: tuple[int, ...], filler: int) -> tuple[int, ...]:
    """Return one value per axis of an image or volume; a sequence gets `filler` for its height."""
    return (filler,) * (2 - len(values)) + values


def picture_pads(pads: Sequence[int]) -> tuple[int, ...]:
    """Return pads of an image (top, left, bottom, right) or volume."""
    rank = len(pads) // 2
    return as_picture(tuple(pads[:rank]), 0) + as_picture(tuple(pads[rank:]), 0)


def operation_type(family: str, sizes: Sequence[int], suffix: str = "") -> str:
    """Return the type for spatial `sizes`, such as `CONV_3D` for three; one counts as two (sequences become images)."""
    return f"{family}_{max(2, len(sizes))}D{suffix}"


def add_on_picture(
    context: ConversionContext,
    node: OnnxNode,
    type_: str,
    inputs: Sequence[int],
    attributes: dict[str, AttributeValue],
) -> None:
    """Add an operation on images or volumes; a sequence is reshaped to an image and back."""
    dimensions = context.type_of(inputs[0]).dimensions
    outputs = len(schema_of(type_).outputs)
    if len(dimensions) > 3:
        context.add(type_, inputs, attributes, node.outputs[:outputs])
        return
    picture = context.apply("RESHAPE", inputs[0], shape=(*dimensions[:2], 1, *dimensions[2:]))
    results = context.add(type_, (picture, *inputs[1:]), attributes, makes_result=True)
    for result, output in zip(results, node.outputs, strict=False):
        batch, channels, _, length = context.type_of(result).dimensions
        context.apply("RESHAPE", result, outputs=(output,), shape=(batch, channels, length))


@converter("Conv", 1, 11, 22)
def convert_conv(context: ConversionContext, node: OnnxNode) -> None:
    """Convert Conv, of rank 3 to 5, to CONV_2D or CONV_3D."""
    attributes = convolution_attributes(context, node)
    type_ = operation_type("CONV", spatial_sizes(context, node))
    add_on_picture(context, node, type_, _operands(context, node), attributes)


def convolution_attributes(context: ConversionContext, node: OnnxNode, filter_: int = 1) -> dict[str, AttributeValue]:
    """Return attributes of CONV_2D or CONV_3D, or raise Refusal; `filter_` is the filter's position."""
    sizes = spatial_sizes(context, node)
    windows = read_windows(node, kernel_of(context, node, len(sizes), filter_))
    return {**windows.attributes(resolve_pads(windows, sizes)), "group": node.integer("group", 1)}


@converter("ConvTranspose", 1, 11, 22)
def convert_conv_transpose(context: ConversionContext, node: OnnxNode) -> None:
    """Convert ConvTranspose, of rank 3 to 5, to CONV_2D_TRANSPOSE or CONV_3D_TRANSPOSE."""
    sizes = spatial_sizes(context, node)
    windows = read_windows(node, kernel_of(context, node, len(sizes)))
    no_padding = (0,) * len(sizes)
    extra = _list(node, "output_padding", no_padding) if node.integers("output_padding") else no_padding
    target_sizes = _stated_sizes(node, windows, sizes)
    pads = windows.pads
    if target_sizes is not None:
        pads, extra = _fit(windows, sizes, extra, target_sizes)
    attributes = windows.attributes(pads)
    attributes["output_padding"] = as_picture(extra, 0)
    attributes["group"] = node.integer("group", 1)
    type_ = operation_type("CONV", sizes, "_TRANSPOSE")
    add_on_picture(context, node, type_, _operands(context, node), attributes)


def stated_kernel(node: OnnxNode, rank: int) -> tuple[int, ...]:
    """Return a pool's attribute `kernel_shape`, or raise Refusal."""
    kernel = node.integers("kernel_shape")
    if kernel is None or len(kernel) != rank:
        raise invalid(f"attribute 'kernel_shape' of {node.op_type} is {kernel}; expected {rank} values")
    return kernel


def kernel_of(context: ConversionContext, node: OnnxNode, rank: int, position: int = 1) -> tuple[int, ...]:
    """Return a filter's spatial sizes, or raise Refusal if they differ from the attribute `kernel_shape`."""
    dimensions = context.dimensions(node.input(position))
    if len(dimensions) != rank + 2:
        raise invalid(f"filter of {node.op_type} has shape {list(dimensions)}; expected rank {rank + 2}")
    named = node.integers("kernel_shape")
    if named and named != dimensions[2:]:
        raise invalid(f"kernel_shape of {node.op_type} is {list(named)}; expected the filter's, {list(dimensions[2:])}")
    return dimensions[2:]


def _operands(context: ConversionContext, node: OnnxNode) -> tuple[int, ...]:
    bias = (context.operand(node.input(2)),) if node.input(2) else ()
    return (context.operand(node.input(0)), _filter(context, node.input(1)), *bias)


def _filter(context: ConversionContext, name: str) -> int:
    dimensions = context.dimensions(name)
    if len(dimensions) > 3:
        return context.operand(name)
    shape, quantization = (*dimensions[:2], 1, *dimensions[2:]), context.type_of(name).quantization
    value = context.value_of(context.operand(name)) if quantization is not None else None
    if value is not None:
        return context.add_constant(value.reshape(shape), quantization)
    if quantization is None and context.is_constant(name):
        return context.add_constant(context.constant(name).reshape(shape))
    return context.apply("RESHAPE", context.operand(name), shape=shape)


def _stated_sizes(node: OnnxNode, windows: Windows, sizes: tuple[int, ...]) -> tuple[int, ...] | None:
    named = node.integers("output_shape")
    if named:
        if len(named) not in (len(sizes), len(sizes) + 2):
            raise invalid(f"attribute 'output_shape' of {node.op_type} is {list(named)}; expected {len(sizes)} values")
        return named[-len(sizes) :]
    if windows.auto_pad.startswith("SAME"):
        return tuple(size * stride for size, stride in zip(sizes, windows.strides, strict=True))
    return None


def _fit(
    windows: Windows, sizes: tuple[int, ...], extra: tuple[int, ...], target_sizes: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    totals = [
        stride * (size - 1) + more + extent - target
        for size, stride, more, extent, target in zip(
            sizes, windows.strides, extra, windows.extents, target_sizes, strict=True
        )
    ]
    pads = split_pads([symbolic_max(0, total) for total in totals], more_at_end=windows.auto_pad == "SAME_UPPER")
    return pads, tuple(more + symbolic_max(0, -total) for more, total in zip(extra, totals, strict=True))
