"""Operations that move elements and keep them all: new shapes, new orders, repetition."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from math import prod

from nnadapter.converters.axes import constant_integers, normalize_axes, normalize_axis, required_integers
from nnadapter.converters.context import ConversionContext
from nnadapter.converters.registry import converter
from nnadapter.onnx.node import OnnxNode
from nnadapter.onnx.refusal import Refusal
from partition.verdict import Reason


@converter("Reshape", 5, 13, 14, 19, 21, 23, 24, 25)
def convert_reshape(context: ConversionContext, node: OnnxNode) -> None:
    """Reshape with a constant shape, resolved; `allowzero` exists since version 14. Source: ONNX Reshape-14."""
    shape = required_integers(context, node, 1)
    dimensions = context.dimensions(node.input(0))
    _reshape(context, node, resolve_shape(dimensions, shape, allowzero=bool(node.integer("allowzero", 0))))


def resolve_shape(dimensions: Sequence[int], shape: Sequence[int], *, allowzero: bool) -> tuple[int, ...]:
    """Return the shape that Reshape means: 0 copies the input's dimension, -1 stands for what remains.

    Args:
        dimensions: of the input.
        shape: as in the node.
        allowzero: 0 is meant literally.

    Raises:
        Refusal: it copies a dimension that is not there, has more than one -1, or holds another number of elements.
    """
    resolved = [
        dimensions[axis] if size == 0 and not allowzero and axis < len(dimensions) else size
        for axis, size in enumerate(shape)
    ]
    known = prod(size for size in resolved if size != -1)
    size = prod(dimensions)
    if resolved.count(-1) == 1 and known and size % known == 0:
        resolved[resolved.index(-1)] = size // known
    copies_nothing = not allowzero and any(extra_size == 0 for extra_size in shape[len(dimensions) :])
    if copies_nothing or any(value < 0 for value in resolved) or prod(resolved) != size:
        raise Refusal(
            Reason.INVALID_NODE, f"Reshape of {list(dimensions)} to {list(shape)}; expected the same number of elements"
        )
    return tuple(resolved)


def _reshape(context: ConversionContext, node: OnnxNode, shape: tuple[int, ...]) -> None:
    context.add("RESHAPE", (context.operand(node.input(0)),), {"shape": shape}, node.outputs)


@converter("Flatten", 1, 9, 11, 13, 21, 23, 24, 25)
def convert_flatten(context: ConversionContext, node: OnnxNode) -> None:
    """Flatten to a matrix; an axis may be the rank, and negative since version 11. Source: ONNX Flatten-13."""
    dimensions = context.dimensions(node.input(0))
    axis, rank = node.integer("axis", 1), len(dimensions)
    axis = rank if axis == rank else normalize_axis(node, axis, rank)
    _reshape(context, node, (prod(dimensions[:axis]), prod(dimensions[axis:])))


@converter("Squeeze", 1, 11)
def convert_squeeze_attribute(context: ConversionContext, node: OnnxNode) -> None:
    """Squeeze with its axes in an attribute. Source: ONNX Squeeze-11."""
    _squeeze(context, node, node.integers("axes"))


@converter("Squeeze", 13, 21, 23, 24, 25)
def convert_squeeze(context: ConversionContext, node: OnnxNode) -> None:
    """Squeeze with its axes in an optional, constant input. Source: ONNX Squeeze-13."""
    _squeeze(context, node, constant_integers(context, node, 1))


def _squeeze(context: ConversionContext, node: OnnxNode, axes: Iterable[int] | None) -> None:
    """Without axes, every axis of one element goes."""
    dimensions = context.dimensions(node.input(0))
    if axes is None:
        gone = tuple(axis for axis, size in enumerate(dimensions) if size == 1)
    else:
        gone = normalize_axes(node, axes, len(dimensions))
    wide = [axis for axis in gone if dimensions[axis] != 1]
    if wide:
        raise Refusal(
            Reason.INVALID_NODE, f"axes {wide} of Squeeze on shape {list(dimensions)} do not have one element"
        )
    _reshape(context, node, tuple(size for axis, size in enumerate(dimensions) if axis not in gone))


@converter("Unsqueeze", 1, 11)
def convert_unsqueeze_attribute(context: ConversionContext, node: OnnxNode) -> None:
    """Unsqueeze with its axes in an attribute. Source: ONNX Unsqueeze-11."""
    axes = node.integers("axes")
    if axes is None:
        raise Refusal(Reason.INVALID_NODE, "attribute 'axes' of Unsqueeze is missing; expected a list of integers")
    _unsqueeze(context, node, axes)


@converter("Unsqueeze", 13, 21, 23, 24, 25)
def convert_unsqueeze(context: ConversionContext, node: OnnxNode) -> None:
    """Unsqueeze with its axes in a constant input. Source: ONNX Unsqueeze-13."""
    _unsqueeze(context, node, required_integers(context, node, 1))


def _unsqueeze(context: ConversionContext, node: OnnxNode, axes: tuple[int, ...]) -> None:
    dimensions = context.dimensions(node.input(0))
    rank = len(dimensions) + len(axes)
    new = normalize_axes(node, axes, rank)
    old = iter(dimensions)
    _reshape(context, node, tuple(1 if axis in new else next(old) for axis in range(rank)))


@converter("Transpose", 1, 13, 21, 23, 24, 25)
def convert_transpose(context: ConversionContext, node: OnnxNode) -> None:
    """Transpose; without `perm` the axes are reversed. Source: ONNX Transpose-13."""
    rank = len(context.dimensions(node.input(0)))
    perm = node.integers("perm")
    attributes = {"perm": tuple(reversed(range(rank))) if perm is None else perm}
    context.add("TRANSPOSE", (context.operand(node.input(0)),), attributes, node.outputs)


@converter("Expand", 8, 13)
def convert_expand(context: ConversionContext, node: OnnxNode) -> None:
    """Expand to what the input and a constant shape broadcast to. Source: ONNX Expand-13."""
    dimensions, shape = context.dimensions(node.input(0)), required_integers(context, node, 1)
    pairs = list(zip_longest(reversed(dimensions), reversed(shape), fillvalue=1))
    result = tuple(reversed([right if left == 1 else left for left, right in pairs]))
    context.add("EXPAND", (context.operand(node.input(0)),), {"shape": result}, node.outputs)


@converter("Tile", 6, 13)
def convert_tile(context: ConversionContext, node: OnnxNode) -> None:
    """Tile with constant repeats. Source: ONNX Tile-13."""
    attributes = {"repeats": required_integers(context, node, 1)}
    context.add("TILE", (context.operand(node.input(0)),), attributes, node.outputs)


@converter("DepthToSpace", 1, 11, 13, 28)
def convert_depth_to_space(context: ConversionContext, node: OnnxNode) -> None:
    """DepthToSpace; `mode` exists since version 11. Source: ONNX DepthToSpace-13."""
    block = node.integer("blocksize")
    attributes: dict[str, int | str] = {"block_size": block, "mode": node.text("mode", "DCR")}
    context.add("DEPTH_TO_SPACE", (context.operand(node.input(0)),), attributes, node.outputs)


@converter("SpaceToDepth", 1, 13)
def convert_space_to_depth(context: ConversionContext, node: OnnxNode) -> None:
    """SpaceToDepth, the block before the channel. Source: ONNX SpaceToDepth-13."""
    attributes = {"block_size": node.integer("blocksize")}
    context.add("SPACE_TO_DEPTH", (context.operand(node.input(0)),), attributes, node.outputs)


@converter("SpaceToDepth", 28)
def convert_space_to_depth_with_mode(context: ConversionContext, node: OnnxNode) -> None:
    """SpaceToDepth; mode CRD, the channel before the block, is the same with the channels in another order.

    Source: ONNX SpaceToDepth-28.
    """
    mode = node.text("mode", "DCR")
    if mode == "DCR":
        convert_space_to_depth(context, node)
        return
    if mode != "CRD":
        raise Refusal(Reason.INVALID_NODE, f"attribute 'mode' of SpaceToDepth is {mode!r}; expected 'DCR' or 'CRD'")
    block = node.integer("blocksize")
    result = context.add("SPACE_TO_DEPTH", (context.operand(node.input(0)),), {"block_size": block})
    batch, channels, height, width = context.type_of(result[0]).dimensions
    by_block = context.add("RESHAPE", result, {"shape": (batch, block * block, channels // block**2, height, width)})
    by_channel = context.add("TRANSPOSE", by_block, {"perm": (0, 2, 1, 3, 4)})
    context.add("RESHAPE", by_channel, {"shape": (batch, channels, height, width)}, node.outputs)
