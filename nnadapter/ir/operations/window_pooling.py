"""Pooling beside the two pools of images: volumes, p-norms, positions of what is largest, and the ways back.

Operands are [N, C, …] in ONNX's order and have no other layout; lists have one value per spatial axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import FLOATING, NUMERIC, DataType, OperandType
from nnadapter.ir.operations.row import Types, integer, integers, no_flops, per_input, present, row
from nnadapter.ir.operations.shape_rules import check_at_least, check_length, check_onnx_order
from nnadapter.ir.operations.windows import window_count, window_count_ceil
from nnadapter.ir.schema import Attribute, AttributeKind, Attributes, OperationSchema, Role

_AXES = ("depth", "height", "width")


def _attributes(rank: int) -> tuple[Attribute, ...]:
    ones = (1,) * rank
    return (
        Attribute("kernel_shape", AttributeKind.INTS, length=rank),
        Attribute("strides", AttributeKind.INTS, ones, length=rank),
        # pads = (begin of every axis…, end of every axis…)
        Attribute("pads", AttributeKind.INTS, (0,) * (2 * rank), length=2 * rank),
        Attribute("dilations", AttributeKind.INTS, ones, length=rank),
        Attribute("ceil_mode", AttributeKind.BOOL, False),
    )


def _check_windows(attributes: Attributes) -> None:
    for name, smallest in (("kernel_shape", 1), ("strides", 1), ("dilations", 1), ("pads", 0)):
        check_at_least(name, integers(attributes, name), smallest)


def _pool(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    _check_windows(attributes)
    first = present(types, 0)
    check_onnx_order(first)
    sizes = (_size(attributes, axis, size) for axis, size in enumerate(first.dimensions[2:]))
    return (OperandType(first.dtype, (*first.dimensions[:2], *sizes)),)


def _size(attributes: Attributes, axis: int, size: int) -> int:
    kernels, strides, dilations = (integers(attributes, name) for name in ("kernel_shape", "strides", "dilations"))
    pads, rank = integers(attributes, "pads"), len(kernels)
    name, begin, end = _AXES[axis - rank], pads[axis], pads[axis + rank]
    extent = (kernels[axis] - 1) * dilations[axis] + 1
    if begin >= extent or end >= extent:
        raise InvalidModelError(
            f"pads along the {name} are {begin} and {end}, expected less than the kernel's extent of {extent}: "
            "a window would see nothing but padding"
        )
    if attributes["ceil_mode"]:
        return window_count_ceil(name, size, begin, end, kernels[axis], strides[axis], dilations[axis])
    return window_count(name, size + begin + end, kernels[axis], strides[axis], dilations[axis])


def _pool_with_indices(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    (output,) = _pool(types, attributes)
    return output, OperandType(DataType.INT64, output.dimensions)


def _p_norm(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    if integer(attributes, "p") < 1:
        raise InvalidModelError(f"p is {integer(attributes, 'p')}, expected 1 or more")
    return _pool(types, attributes)


def _flops(steps: int, types: Types, outputs: Sequence[OperandType], attributes: Attributes) -> int:
    return steps * outputs[0].size * prod(integers(attributes, "kernel_shape"))


def _unpool(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    first, indices = present(types, 0), present(types, 1)
    check_onnx_order(first)
    if indices.dimensions != first.dimensions:
        raise InvalidModelError(
            f"indices has dimensions {list(indices.dimensions)}, expected {list(first.dimensions)} as input"
        )
    shape = integers(attributes, "output_shape")
    check_at_least("output_shape", shape, 1)
    return (OperandType(first.dtype, (*first.dimensions[:2], *shape)),)


def _col_to_im(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    first, image = present(types, 0), integers(attributes, "image_shape")
    kernel = integers(attributes, "kernel_shape")
    rank = len(image)
    for name, length in (("kernel_shape", rank), ("strides", rank), ("dilations", rank), ("pads", 2 * rank)):
        check_length(name, integers(attributes, name), length)
    _check_windows(attributes)
    batch, rows, columns = first.dimensions
    if not rank or rows % prod(kernel):
        raise InvalidModelError(
            f"input has {rows} rows, expected a multiple of {prod(kernel)}, the elements of a block"
        )
    blocks = prod(_blocks(attributes, axis, size) for axis, size in enumerate(image))
    if columns != blocks:
        raise InvalidModelError(f"input has {columns} columns, expected {blocks}, the blocks of an image {list(image)}")
    return (OperandType(first.dtype, (batch, rows // prod(kernel), *image)),)


def _blocks(attributes: Attributes, axis: int, size: int) -> int:
    pads, kernel = integers(attributes, "pads"), integers(attributes, "kernel_shape")[axis]
    stride, dilation = integers(attributes, "strides")[axis], integers(attributes, "dilations")[axis]
    padded = size + pads[axis] + pads[axis + len(pads) // 2]
    return window_count(f"image_shape[{axis}]", padded, kernel, stride, dilation)


_AVERAGE = Attribute("count_include_pad", AttributeKind.BOOL, False)
_NORM = Attribute("p", AttributeKind.INT, 2)
_POSITION = Attribute("storage_order", AttributeKind.STRING, "row_major", ("row_major", "column_major"))


def _pooling(
    type_: str, rank: int, infer: Callable[[Types, Attributes], tuple[OperandType, ...]], source: str, *more: Attribute
) -> OperationSchema:
    return row(
        type_,
        (Role("input", NUMERIC if type_.startswith("MAX") else FLOATING),),
        infer,
        partial(_flops, 3 if type_.startswith("LP") else 1),
        source,
        attributes=(*_attributes(rank), *more),
        outputs=("output", "indices") if infer is _pool_with_indices else ("output",),
        ranks=(rank + 2, rank + 2),
    )


_INDICES_SOURCE = "NNADAPTER_MAX_POOL_2D with its indices; ONNX MaxPool-22; indices count elements of the whole input"

ROWS: tuple[OperationSchema, ...] = (
    _pooling("MAX_POOL_3D", 3, _pool, "ONNX MaxPool-22 of rank 5, first output"),
    _pooling("AVERAGE_POOL_3D", 3, _pool, "ONNX AveragePool-22 of rank 5", _AVERAGE),
    _pooling("LP_POOL_2D", 2, _p_norm, "NNAPI L2_POOL_2D for p = 2; ONNX LpPool-22", _NORM),
    _pooling("LP_POOL_3D", 3, _p_norm, "ONNX LpPool-22 of rank 5", _NORM),
    _pooling("MAX_POOL_2D_WITH_INDICES", 2, _pool_with_indices, _INDICES_SOURCE, _POSITION),
    _pooling("MAX_POOL_3D_WITH_INDICES", 3, _pool_with_indices, _INDICES_SOURCE, _POSITION),
    row(
        "MAX_UNPOOL_2D",
        (Role("input", NUMERIC), Role("indices", frozenset({DataType.INT32, DataType.INT64}))),
        _unpool,
        no_flops,
        "ONNX MaxUnpool-22; indices count elements of the whole output, and all others are 0",
        attributes=(Attribute("output_shape", AttributeKind.INTS, length=2),),
        ranks=(4, 4),
    ),
    row(
        "COL_TO_IM",
        (Role("input", FLOATING),),
        _col_to_im,
        per_input(1),
        "ONNX Col2Im-18; [N, C * block, blocks], one column per block, added where blocks overlap",
        attributes=(
            Attribute("image_shape", AttributeKind.INTS),
            *(Attribute(name, AttributeKind.INTS) for name in ("kernel_shape", "strides", "pads", "dilations")),
        ),
        ranks=(3, 3),
    ),
)
"""The rows of this family."""
