"""Scale and shift per output channel, folded into the filter and bias of a convolution or a matrix product."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnadapter.ir.derived import derived
from nnadapter.ir.editor import ModelEditor
from nnadapter.ir.model import ABSENT, Operation
from nnadapter.ir.operand import Array, Layout, OperandType
from nnadapter.ir.pattern import OperationPattern, constant, operand, operation

FOLDABLE = ("CONV_2D", "CONV_2D_TRANSPOSE", "FULLY_CONNECTED")
"""Operations whose output is filter times something plus bias."""


def foldable(name: str, *more: str) -> OperationPattern:
    """The pattern of such an operation, or one of `more`, with a constant filter; its name in the match is `name`."""
    return operation((*FOLDABLE, *more), operand(f"{name} input"), constant(f"{name} filter"), name=name)


def channel_axis(host: Operation, output: OperandType) -> int:
    """The axis of a foldable operation's output that its bias runs along."""
    last = host.type == "FULLY_CONNECTED" or output.layout is Layout.NHWC
    return output.rank - 1 if last else 1


def fold(
    editor: ModelEditor, host: int, scale: Array | None, shift: Array | None, operations: Sequence[int]
) -> tuple[int, ...] | None:
    """Add a copy of `host` whose output is the old one times `scale` plus `shift`.

    Computed in float64 and rounded once to the filter's data type.

    Args:
        editor: what the host is in.
        host: a foldable operation with a constant filter, or a BATCH_NORMALIZATION, whose scale is one.
        scale: float64 [C] or None.
        shift: float64 [C] or None.
        operations: what the new operation stands for; its constants are named for the output of the first one.

    Returns:
        The new operation's outputs, or None if the bias is not constant or the result is not finite in its data type.
    """
    host_operation = editor.operation(host)
    filter_, bias = _filter_and_bias(editor, host_operation, scale, shift)
    if filter_ is None:
        return None
    stem = editor.operand(editor.operation(operations[0]).outputs[0]).name
    inputs = [host_operation.inputs[0], host_operation.inputs[1]]
    if scale is not None:
        inputs[1] = editor.add_constant(f"{stem}.filter", filter_)
    if bias is not None:
        inputs.append(editor.add_constant(f"{stem}.bias", bias))
    inputs += host_operation.inputs[3:]
    return editor.add_operation(host_operation.type, inputs, host_operation.attributes, origins=(host, *operations))


def _filter_and_bias(
    editor: ModelEditor, host: Operation, scale: Array | None, shift: Array | None
) -> tuple[Array | None, Array | None]:
    filter_ = editor.value_of(host.inputs[1])
    has_bias = len(host.inputs) > 2 and host.inputs[2] != ABSENT
    bias = editor.value_of(host.inputs[2]) if has_bias else None
    if filter_ is None or (has_bias and bias is None):
        return None, None
    group = host.attributes.get("group", 1)
    transposed = host.type == "CONV_2D_TRANSPOSE"
    folded = derived(_scaled_filter, filter_, bias, scale, shift, groups=group if transposed else 0)
    if folded is None:
        return None, None
    scaled, moved = folded
    return filter_ if scaled is None else scaled, moved


def _scaled_filter(
    filter_: Array, bias: Array | None, scale: Array | None, shift: Array | None, *, groups: int
) -> tuple[Array | None, Array | None] | None:
    """The new filter, None where it stays as it is, and the new bias; None where one of them is not finite."""
    moved = None if bias is None else bias.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        if scale is not None and moved is not None:
            moved = moved * scale
        if shift is not None:
            moved = shift if moved is None else moved + shift
        scaled = None if scale is None else _scaled(filter_, scale, groups).astype(filter_.dtype)
        result = scaled, None if moved is None else moved.astype(filter_.dtype)
    arrays = (filter_, *result) if scaled is None else result
    return result if all(np.isfinite(array).all() for array in arrays if array is not None) else None


def _scaled(filter_: Array, scale: Array, groups: int) -> Array:
    """The filter with its output channels scaled; `groups` is that of a transposed convolution, else 0."""
    wide = filter_.astype(np.float64)
    if not groups:
        return wide * scale.reshape(-1, *[1] * (wide.ndim - 1))
    # [C, O/group, kH, kW]: the rows of a group belong to the same output channels
    grouped = wide.reshape(groups, -1, *wide.shape[1:])
    return (grouped * scale.reshape(groups, 1, wide.shape[1], 1, 1)).reshape(wide.shape)
