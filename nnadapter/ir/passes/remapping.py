"""What becomes of an operation's attributes when the axes of its operands are put in another order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nnadapter.ir.passes.view import Axes
from nnadapter.ir.schema import Attributes

Remap = Callable[[Attributes, Axes], Mapping[str, Any]]
"""The attributes, and which old axis comes where -> the attributes that change."""


def _types(text: str) -> frozenset[str]:
    return frozenset(text.split())


IMAGE = _types(
    "CONV_2D CONV_2D_TRANSPOSE MAX_POOL_2D AVERAGE_POOL_2D BATCH_NORMALIZATION INSTANCE_NORMALIZATION"
    " LOCAL_RESPONSE_NORMALIZATION DEPTH_TO_SPACE SPACE_TO_DEPTH RESIZE_NEAREST RESIZE_LINEAR"
)
"""Operations that want NHWC; all inputs but the first stay as they are."""

ELEMENTWISE = _types(
    "ABS NEG SIGN FLOOR CEIL ROUND EXP LOG SQRT RECIPROCAL ERF SIN COS TANH SIGMOID SOFTPLUS SOFTSIGN MISH RELU SWISH"
    " GELU HARD_SIGMOID HARD_SWISH LEAKY_RELU ELU SELU CLIP NOT ASSIGN CAST PRELU ADD SUB MUL DIV POW MAX MIN MOD EQUAL"
    " GREATER GREATER_EQUAL LESS LESS_EQUAL AND OR XOR SUM WHERE"
    " ACOS ACOSH ASIN ASINH ATAN ATANH COSH SINH TAN CELU SHRINK THRESHOLDED_RELU IS_NAN IS_INF SWIGLU"
    " RSQRT SQUARE NOT_EQUAL FLOOR_DIV"
    " BITWISE_AND BITWISE_OR BITWISE_XOR BITWISE_NOT BIT_SHIFT BIT_CAST"
    " QUANTIZE DEQUANTIZE STORAGE_CAST"
)
"""Operations that are the same in every layout; inputs broadcast."""

REDUCING = _types("REDUCE_MEAN REDUCE_SUM REDUCE_MAX REDUCE_MIN REDUCE_PROD ARG_MAX ARG_MIN")
"""Operations that may take axes away."""


def _unchanged(attributes: Attributes, perm: Axes) -> Mapping[str, Any]:
    return {}


def _axis(attributes: Attributes, perm: Axes) -> Mapping[str, Any]:
    return {"axis": perm.index(_whole(attributes["axis"]))}


def _axes(attributes: Attributes, perm: Axes) -> Mapping[str, Any]:
    return {"axes": tuple(sorted(map(perm.index, _list(attributes["axes"]))))}


def _permuted(*names: str) -> Remap:
    def remap(attributes: Attributes, perm: Axes) -> Mapping[str, Any]:
        return {name: tuple(_list(attributes[name])[axis] for axis in perm) for name in names}

    return remap


def _pads(attributes: Attributes, perm: Axes) -> Mapping[str, Any]:
    pads = _list(attributes["pads"])
    return {"pads": tuple(pads[end + axis] for end in (0, len(perm)) for axis in perm)}


def _slices(attributes: Attributes, perm: Axes) -> Mapping[str, Any]:
    names = ("axes", "starts", "ends", "steps")
    axes, *columns = (_list(attributes[name]) for name in names)
    rows = sorted(zip(map(perm.index, axes), *columns, strict=True), key=lambda row: row[0])
    return {name: tuple(row[position] for row in rows) for position, name in enumerate(names)}


def _list(value: Any) -> tuple[Any, ...]:
    return tuple(value)


def _whole(value: Any) -> int:
    return int(value)


REMAP: Mapping[str, Remap] = {
    **dict.fromkeys(IMAGE | ELEMENTWISE, _unchanged),
    **dict.fromkeys(("CONCAT", "SPLIT", "SOFTMAX", "LOG_SOFTMAX", "CUM_SUM", "TOP_K", "ARG_MAX", "ARG_MIN"), _axis),
    **dict.fromkeys(REDUCING - {"ARG_MAX", "ARG_MIN"}, _axes),
    **dict.fromkeys(("RESIZE_NEAREST", "RESIZE_LINEAR"), _permuted("shape", "scales")),
    **dict.fromkeys(("CUM_PROD", "HARDMAX"), _axis),
    "TILE": _permuted("repeats"),
    "SLICE": _slices,
    "PAD": _pads,
}
"""By operation type; an operation that is not here wants NCHW."""


def remaining_axes(type_: str, attributes: Attributes, perm: Axes) -> tuple[int, ...]:
    """The axes of a result in their old numbers, in the order in which they stand after `perm`.

    Args:
        type_: the operation's.
        attributes: as they were before.
        perm: which old axis comes where.
    """
    if type_ not in REDUCING or attributes["keepdims"]:
        return perm
    removed_axes = {_whole(attributes["axis"])} if "axis" in attributes else set(_list(attributes["axes"]))
    return tuple(axis for axis in perm if axis not in removed_axes)
