"""Pooling of images."""

from __future__ import annotations

from collections.abc import Sequence

from nnadapter.errors import InvalidModelError
from nnadapter.ir.operand import FLOATING, NUMERIC, OperandType
from nnadapter.ir.operations.row import Types, integers, present, row
from nnadapter.ir.operations.shape_rules import check_at_least
from nnadapter.ir.operations.windows import image_like, image_size, window_count, window_count_ceil
from nnadapter.ir.schema import Attribute, AttributeKind, Attributes, OperationSchema, Role

_ATTRIBUTES = (
    Attribute("kernel_shape", AttributeKind.INTS, length=2),
    Attribute("strides", AttributeKind.INTS, (1, 1), length=2),
    # pads = (top, left, bottom, right)
    Attribute("pads", AttributeKind.INTS, (0, 0, 0, 0), length=4),
    Attribute("dilations", AttributeKind.INTS, (1, 1), length=2),
    Attribute("ceil_mode", AttributeKind.BOOL, False),
)


def _pool(types: Types, attributes: Attributes) -> tuple[OperandType, ...]:
    for name in ("kernel_shape", "strides", "dilations"):
        check_at_least(name, integers(attributes, name), 1)
    check_at_least("pads", integers(attributes, "pads"), 0)
    image = present(types, 0)
    _, channels, height, width = image_size(image)
    return (image_like(image, channels, _size(attributes, 0, height), _size(attributes, 1, width)),)


def _size(attributes: Attributes, axis: int, size: int) -> int:
    name = ("height", "width")[axis]
    pads = integers(attributes, "pads")
    begin, end = pads[axis], pads[axis + 2]
    kernel = integers(attributes, "kernel_shape")[axis]
    stride, dilation = integers(attributes, "strides")[axis], integers(attributes, "dilations")[axis]
    extent = (kernel - 1) * dilation + 1
    if begin >= extent or end >= extent:
        raise InvalidModelError(
            f"pads along the {name} are {begin} and {end}, expected less than the kernel's extent of {extent}: "
            "a window would see nothing but padding"
        )
    if attributes["ceil_mode"]:
        return window_count_ceil(name, size, begin, end, kernel, stride, dilation)
    return window_count(name, size + begin + end, kernel, stride, dilation)


def _flops(types: Types, outputs: Sequence[OperandType], attributes: Attributes) -> int:
    height, width = integers(attributes, "kernel_shape")
    return outputs[0].size * height * width


ROWS: tuple[OperationSchema, ...] = (
    row(
        "MAX_POOL_2D",
        (Role("input", NUMERIC),),
        _pool,
        _flops,
        "NNAPI MAX_POOL_2D; ONNX MaxPool-22, first output",
        attributes=_ATTRIBUTES,
        ranks=(4, 4),
    ),
    row(
        "AVERAGE_POOL_2D",
        (Role("input", FLOATING),),
        _pool,
        _flops,
        "NNAPI AVERAGE_POOL_2D; ONNX AveragePool-22",
        attributes=(*_ATTRIBUTES, Attribute("count_include_pad", AttributeKind.BOOL, False)),
        ranks=(4, 4),
    ),
)
"""The rows of this family."""
