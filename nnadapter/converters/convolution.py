"""Convolutions of sequences, pictures and volumes."""

from __future__ import annotations

from nnadapter.converters.context import ConversionContext
from nnadapter.converters.registry import converter
from nnadapter.converters.windows import (
    Windows,
    add_on_picture,
    as_picture,
    operation_type,
    read_windows,
    resolve_pads,
    spatial_sizes,
    split_pads,
)
from nnadapter.ir.tracing import greatest
from nnadapter.onnx.node import OnnxNode
from nnadapter.onnx.refusal import Refusal
from partition.verdict import Reason


@converter("Conv", 1, 11, 22)
def convert_conv(context: ConversionContext, node: OnnxNode) -> None:
    """Conv of rank 3 to 5, `auto_pad` resolved to pads. Source: ONNX Conv-11."""
    sizes = spatial_sizes(context, node)
    windows = read_windows(node, kernel_of(context, node, len(sizes)))
    attributes = windows.attributes(resolve_pads(windows, sizes))
    attributes["group"] = node.integer("group", 1)
    add_on_picture(context, node, operation_type("CONV", sizes), _operands(context, node), attributes)


@converter("ConvTranspose", 1, 11, 22)
def convert_conv_transpose(context: ConversionContext, node: OnnxNode) -> None:
    """ConvTranspose of rank 3 to 5, `auto_pad` and `output_shape` resolved to pads. Source: ONNX ConvTranspose-11."""
    sizes = spatial_sizes(context, node)
    windows = read_windows(node, kernel_of(context, node, len(sizes)))
    extra = _output_padding(node, len(sizes))
    wanted = _wanted_sizes(node, windows, sizes)
    pads = windows.pads
    if wanted is not None:
        pads, extra = _fit(windows, sizes, extra, wanted)
    attributes = windows.attributes(pads)
    attributes["output_padding"] = as_picture(extra, 0)
    attributes["group"] = node.integer("group", 1)
    type_ = operation_type("CONV", sizes, "_TRANSPOSE")
    add_on_picture(context, node, type_, _operands(context, node), attributes)


def _output_padding(node: OnnxNode, rank: int) -> tuple[int, ...]:
    padding = node.integers("output_padding") or (0,) * rank
    if len(padding) != rank:
        raise Refusal(
            Reason.INVALID_NODE,
            f"attribute 'output_padding' of {node.op_type} is {list(padding)}; expected {rank} values",
        )
    return padding


def kernel_of(context: ConversionContext, node: OnnxNode, rank: int, position: int = 1) -> tuple[int, ...]:
    """The spatial sizes of a filter, which is the input at `position`.

    Raises:
        Refusal: it does not have `rank` of them, or the node says others.
    """
    dimensions = context.dimensions(node.input(position))
    if len(dimensions) != rank + 2:
        raise Refusal(
            Reason.INVALID_NODE, f"filter of {node.op_type} has shape {list(dimensions)}; expected rank {rank + 2}"
        )
    named = node.integers("kernel_shape")
    if named and named != dimensions[2:]:
        raise Refusal(
            Reason.INVALID_NODE,
            f"kernel_shape of {node.op_type} is {list(named)}; expected the filter's, {list(dimensions[2:])}",
        )
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
    (reshaped,) = context.add("RESHAPE", (context.operand(name),), {"shape": shape})
    return reshaped


def _wanted_sizes(node: OnnxNode, windows: Windows, sizes: tuple[int, ...]) -> tuple[int, ...] | None:
    """The output's spatial sizes where the node names them, or `auto_pad` does; None where the pads decide."""
    named = node.integers("output_shape")
    if named:
        if len(named) not in (len(sizes), len(sizes) + 2):
            raise Refusal(
                Reason.INVALID_NODE,
                f"attribute 'output_shape' of {node.op_type} is {list(named)}; expected {len(sizes)} values",
            )
        return named[-len(sizes) :]
    if windows.auto_pad.startswith("SAME"):
        return tuple(size * stride for size, stride in zip(sizes, windows.strides, strict=True))
    return None


def _fit(
    windows: Windows, sizes: tuple[int, ...], extra: tuple[int, ...], wanted: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return pads and output padding with which the output has the wanted sizes: what lacks is added at the end."""
    totals = [
        stride * (size - 1) + more + extent - target
        for size, stride, more, extent, target in zip(
            sizes, windows.strides, extra, windows.extents, wanted, strict=True
        )
    ]
    pads = split_pads([greatest(0, total) for total in totals], more_at_end=windows.auto_pad == "SAME_UPPER")
    return pads, tuple(more + greatest(0, -total) for more, total in zip(extra, totals, strict=True))
