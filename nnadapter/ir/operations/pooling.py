"""Pooling by maximum, mean or p-norm, and the inverses MAX_UNPOOL_2D and COL_TO_IM.

MAX_POOL_2D and AVERAGE_POOL_2D accept NHWC. List attributes have one value per spatial axis.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import DataType, OperandType
from nnadapter.ir.operations.row import Row, Rule, check_at_least, check_length, check_onnx_order, family, per_input
from nnadapter.ir.operations.windows import AXES, IMAGES, check_windows, image_like, image_size, moves, window_counts

row = family(cost="reduction")
Ints = Sequence[int]


def _image_pool(
    image: OperandType,
    *,
    kernel_shape: Ints,
    strides: Ints,
    pads: Ints,
    dilations: Ints,
    ceil_mode: bool,
    **more: object,
) -> OperandType:
    check_windows(pads, kernel_shape=kernel_shape, strides=strides, dilations=dilations)
    _, channels, *sizes = image_size(image)
    rank = len(sizes)
    names = AXES[-rank:]
    for name, begin, end, kernel, dilation in zip(
        names, pads[:rank], pads[rank:], kernel_shape, dilations, strict=True
    ):
        extent = (kernel - 1) * dilation + 1
        if begin >= extent or end >= extent:
            raise InvalidModelError(
                f"pads along the {name} are {begin} and {end}, expected less than the kernel's extent of {extent}: "
                "a window would see only padding"
            )
    counts = window_counts(names, sizes, kernel_shape, strides, pads, dilations, ceil_mode=ceil_mode)
    return image_like(image, channels, *counts)


def _pool(image: OperandType, **attributes: object) -> OperandType:
    check_onnx_order(image)
    return _image_pool(image, **attributes)  # type: ignore[arg-type]


def _pool_with_indices(image: OperandType, **attributes: object) -> tuple[OperandType, ...]:
    output = _pool(image, **attributes)
    return output, OperandType(DataType.INT64, output.dimensions)


def _p_norm(image: OperandType, *, p: int, **attributes: object) -> OperandType:
    if p < 1:
        raise InvalidModelError(f"p is {p}, expected 1 or more")
    return _pool(image, **attributes)


def _unpool(first: OperandType, indices: OperandType, output_shape: Ints) -> OperandType:
    check_onnx_order(first)
    if indices.dimensions != first.dimensions:
        raise InvalidModelError(
            f"indices has dimensions {list(indices.dimensions)}, expected {list(first.dimensions)} as input"
        )
    check_at_least(1, output_shape=output_shape)
    return OperandType(first.dtype, (*first.dimensions[:2], *output_shape))


def _col_to_im(
    first: OperandType, *, image_shape: Ints, kernel_shape: Ints, strides: Ints, pads: Ints, dilations: Ints
) -> OperandType:
    rank, block = len(image_shape), prod(kernel_shape)
    check_length(rank, kernel_shape=kernel_shape, strides=strides, dilations=dilations)
    check_length(2 * rank, pads=pads)
    check_windows(pads, kernel_shape=kernel_shape, strides=strides, dilations=dilations)
    batch, rows, columns = first.dimensions
    if not rank or rows % block:
        raise InvalidModelError(f"input has {rows} rows, expected a multiple of {block}, the product of kernel_shape")
    names = [f"image_shape[{axis}]" for axis in range(rank)]
    blocks = prod(window_counts(names, image_shape, kernel_shape, strides, pads, dilations))
    if columns != blocks:
        raise InvalidModelError(
            f"input has {columns} columns, expected {blocks}, the number of windows in an image {list(image_shape)}"
        )
    return OperandType(first.dtype, (batch, rows // block, *image_shape))


def _flops(
    outputs: Sequence[OperandType], first: OperandType, *, kernel_shape: Ints, p: int | None = None, **more: object
) -> int:
    return (1 if p is None else 3) * outputs[0].size * prod(kernel_shape)


_INDICES = "NNADAPTER_MAX_POOL_2D with its indices; ONNX MaxPool-22; indices count elements of the whole input"
_STORED = ", storage_order: string(row_major|column_major) = row_major -> output, indices"
_POOLS = (
    ("MAX_POOL_2D", "number", _image_pool, "NNAPI MAX_POOL_2D; ONNX MaxPool-22, first output", ""),
    (
        "AVERAGE_POOL_2D",
        "float",
        _image_pool,
        "NNAPI AVERAGE_POOL_2D; ONNX AveragePool-22",
        ", count_include_pad: bool = False",
    ),
    ("MAX_POOL_3D", "number", _pool, "ONNX MaxPool-22 of rank 5, first output", ""),
    ("AVERAGE_POOL_3D", "float", _pool, "ONNX AveragePool-22 of rank 5", ", count_include_pad: bool = False"),
    ("LP_POOL_2D", "float", _p_norm, "NNAPI L2_POOL_2D for p = 2; ONNX LpPool-22", ", p: int = 2"),
    ("LP_POOL_3D", "float", _p_norm, "ONNX LpPool-22 of rank 5", ", p: int = 2"),
    ("MAX_POOL_2D_WITH_INDICES", "number", _pool_with_indices, _INDICES, _STORED),
    ("MAX_POOL_3D_WITH_INDICES", "number", _pool_with_indices, _INDICES, _STORED),
)
"""Operation type, data types, shape rule, source and further attributes of each pooling operation."""


def _row(rank: int, type_: str, dtypes: str, rule: Rule, source: str, more: str) -> Row:
    windows = f"kernel_shape: ints[{rank}], {moves(rank)}, ceil_mode: bool = False"
    behavior = ("moves" if dtypes == "number" else "real") if type_ in IMAGES else ""
    return row(f"{type_}(input[{rank + 2}]: {dtypes}; {windows}{more})", rule, _flops, source, quantization=behavior)


ROWS: tuple[Row, ...] = (
    *(_row(3 if "3D" in pool[0] else 2, *pool) for pool in _POOLS),
    row(
        "MAX_UNPOOL_2D(input[4]: number, indices: index; output_shape: ints[2])",
        _unpool,
        0,
        "ONNX MaxUnpool-22; indices count elements of the whole output, and all others are 0",
    ),
    row(
        "COL_TO_IM(input[3]: float; image_shape: ints, kernel_shape: ints, strides: ints, pads: ints, dilations: ints)",
        _col_to_im,
        per_input(1),
        "ONNX Col2Im-18; [N, C * block, blocks], one column per block, added where blocks overlap",
    ),
)
