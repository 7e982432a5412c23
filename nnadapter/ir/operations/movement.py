"""Operations that move elements and compute nothing: they count no FLOPs."""

from __future__ import annotations

from math import prod

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import Layout, OperandType
from nnadapter.ir.operations.row import Types, integer, integers, no_flops, present, row, string
from nnadapter.ir.operations.shape_rules import broadcast, check_at_least, check_axis, check_length
from nnadapter.ir.operations.windows import image_like, image_size, like
from nnadapter.ir.schema import Attribute, AttributeKind, Attributes, OperationSchema, Role

_INPUT = (Role("input"),)


def _reshape(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    first = present(types, 0)
    shape = integers(attributes, "shape")
    check_at_least("shape", shape, 0)
    if prod(shape) != first.size:
        raise InvalidModelError(
            f"shape {list(shape)} holds {prod(shape)} elements, expected {first.size} as in {list(first.dimensions)}"
        )
    return (OperandType(first.dtype, shape),)


def _transpose(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    first = present(types, 0)
    perm = integers(attributes, "perm")
    if sorted(perm) != list(range(first.rank)):
        raise InvalidModelError(f"perm is {list(perm)}, expected an order of the axes 0 to {first.rank - 1}")
    layout = Layout(string(attributes, "output_layout"))
    if layout is Layout.NHWC and first.rank != 4:
        raise InvalidModelError(f"output_layout is 'NHWC' for rank {first.rank}, expected rank 4")
    dimensions = first.dimensions
    return (OperandType(first.dtype, tuple(dimensions[axis] for axis in perm), layout),)


def _expand(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    first = present(types, 0)
    shape = integers(attributes, "shape")
    check_at_least("shape", shape, 0)
    if broadcast((shape, first.dimensions)) != shape:
        raise InvalidModelError(f"shape is {list(shape)}, expected what {list(first.dimensions)} spreads to")
    if len(shape) == first.rank:
        return (like(first, shape),)
    return (OperandType(first.dtype, shape),)


def _tile(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    first = present(types, 0)
    repeats = integers(attributes, "repeats")
    check_length("repeats", repeats, first.rank)
    check_at_least("repeats", repeats, 0)
    return (like(first, tuple(size * times for size, times in zip(first.dimensions, repeats, strict=True))),)


def _concat(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    first = present(types, 0)
    axis = check_axis(integer(attributes, "axis"), first.rank)
    before, after = first.dimensions[:axis], first.dimensions[axis + 1 :]
    total = 0
    for position, type_ in enumerate(types):
        dimensions = type_.dimensions if type_ is not None else ()
        if len(dimensions) != first.rank or dimensions[:axis] != before or dimensions[axis + 1 :] != after:
            raise InvalidModelError(
                f"input {position} has dimensions {list(dimensions)}, "
                f"expected those of input 0, {list(first.dimensions)}, on every axis but {axis}"
            )
        total += dimensions[axis]
    return (like(first, (*before, total, *after)),)


def _split(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    first = present(types, 0)
    axis = check_axis(integer(attributes, "axis"), first.rank)
    sizes = integers(attributes, "split")
    check_at_least("split", sizes, 0)
    if not sizes or sum(sizes) != first.dimensions[axis]:
        raise InvalidModelError(
            f"split is {list(sizes)} with the sum {sum(sizes)}, "
            f"expected {first.dimensions[axis]}, the size of axis {axis}"
        )
    before, after = first.dimensions[:axis], first.dimensions[axis + 1 :]
    return tuple(like(first, (*before, size, *after)) for size in sizes)


def _pixels_up(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    first = present(types, 0)
    _, channels, height, width = image_size(first)
    block = _block(attributes)
    if channels % (block * block):
        raise InvalidModelError(f"input has {channels} channels, expected a multiple of block_size² = {block * block}")
    return (image_like(first, channels // (block * block), height * block, width * block),)


def _pixels_down(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    first = present(types, 0)
    _, channels, height, width = image_size(first)
    block = _block(attributes)
    if height % block or width % block:
        raise InvalidModelError(f"height and width are {height} and {width}, expected multiples of block_size {block}")
    return (image_like(first, channels * block * block, height // block, width // block),)


def _block(attributes: Attributes) -> int:
    block = integer(attributes, "block_size")
    if block < 1:
        raise InvalidModelError(f"block_size is {block}, expected at least 1")
    return block


_AXIS = Attribute("axis", AttributeKind.INT)

ROWS: tuple[OperationSchema, ...] = (
    row(
        "RESHAPE",
        _INPUT,
        _reshape,
        no_flops,
        "NNAPI RESHAPE; ONNX Reshape-21 with the shape resolved",
        attributes=(Attribute("shape", AttributeKind.INTS),),
    ),
    row(
        "TRANSPOSE",
        _INPUT,
        _transpose,
        no_flops,
        "NNAPI TRANSPOSE; ONNX Transpose-21; output_layout says how the result is to be read",
        attributes=(
            Attribute("perm", AttributeKind.INTS),
            Attribute(
                "output_layout", AttributeKind.STRING, Layout.NCHW.value, tuple(layout.value for layout in Layout)
            ),
        ),
    ),
    row(
        "EXPAND",
        _INPUT,
        _expand,
        no_flops,
        "NNADAPTER_EXPAND; ONNX Expand-13, with the resulting shape",
        attributes=(Attribute("shape", AttributeKind.INTS),),
    ),
    row(
        "TILE",
        _INPUT,
        _tile,
        no_flops,
        "NNAPI TILE; ONNX Tile-13",
        attributes=(Attribute("repeats", AttributeKind.INTS),),
    ),
    row(
        "CONCAT",
        (Role("inputs", variadic=True, same_dtype_as="inputs"),),
        _concat,
        no_flops,
        "NNAPI CONCATENATION; NNADAPTER_CONCAT; ONNX Concat-13",
        attributes=(_AXIS,),
        ranks=(1, 64),
    ),
    row(
        "SPLIT",
        _INPUT,
        _split,
        no_flops,
        "NNAPI SPLIT with sizes; ONNX Split-18",
        attributes=(_AXIS, Attribute("split", AttributeKind.INTS)),
        outputs=("outputs",),
        variadic_outputs=True,
        ranks=(1, 64),
    ),
    row(
        "DEPTH_TO_SPACE",
        _INPUT,
        _pixels_up,
        no_flops,
        "NNAPI DEPTH_TO_SPACE; ONNX DepthToSpace-13",
        attributes=(
            Attribute("block_size", AttributeKind.INT),
            Attribute("mode", AttributeKind.STRING, "DCR", ("DCR", "CRD")),
        ),
        ranks=(4, 4),
    ),
    row(
        "SPACE_TO_DEPTH",
        _INPUT,
        _pixels_down,
        no_flops,
        "NNAPI SPACE_TO_DEPTH; ONNX SpaceToDepth-13",
        attributes=(Attribute("block_size", AttributeKind.INT),),
        ranks=(4, 4),
    ),
)
"""The rows of this family."""
