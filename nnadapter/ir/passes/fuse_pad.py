"""Padding that the operation behind it can do itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nnadapter.errors import InvalidModelError
from nnadapter.ir.editing import editing
from nnadapter.ir.editor import ModelEditor
from nnadapter.ir.model import Operation
from nnadapter.ir.operand import DataType, Layout, OperandType
from nnadapter.ir.passes.fuse_activation import FUSABLE
from nnadapter.ir.pattern import Match, operand, operation
from nnadapter.ir.rewrite import RewriteRule, apply_rules


@editing
def fuse_pad(editor: ModelEditor) -> None:
    """Fold a PAD by a constant into the pads of the convolution or pooling behind it.

    1. CONV_2D, behind a PAD by 0: the pads are added.
    2. MAX_POOL_2D, behind a PAD by the smallest number of the data type, -inf for floats; by 0 as well where the
       operand is what a RELU made, alone or fused.
    3. AVERAGE_POOL_2D, behind a PAD by 0: the pads are added and count. So they must have counted before, or have been
       none.
    4. Two PADs by one constant that follow each other are one before that, if neither takes anything away.
    5. Refused: pads of batch or channels, pads that take away or are as large as a pooling window, other modes;
       pooling with dilations, whose windows may see nothing but padding, or with `ceil_mode`, whose count of windows
       follows from the pads; quantized operands; a PAD that something else reads.
    """
    apply_rules(editor, _PAD_RULES)


def _fuse_padding(editor: ModelEditor, match: Match) -> Sequence[int] | None:
    host, pad = editor.operation(match.anchor), editor.operation(match.named["pad"])
    type_ = editor.type_of(pad.inputs[0])
    more = _image_pads(type_, pad)
    if more is None or not _FITS[host.type](editor, host, pad):
        return None
    pads = tuple(host_pad + other for host_pad, other in zip(_ints(host, "pads"), more, strict=True))
    attributes: dict[str, Any] = {**host.attributes, "pads": pads}
    if "count_include_pad" in attributes:
        attributes["count_include_pad"] = True
    try:
        return editor.add_operation(host.type, (pad.inputs[0], *host.inputs[1:]), attributes, origins=match.operations)
    except InvalidModelError:  # a window would see nothing but padding
        return None


def _merge(editor: ModelEditor, match: Match) -> Sequence[int] | None:
    outer, inner = editor.operation(match.anchor), editor.operation(match.named["pad"])
    pads = tuple(outer_pad + other for outer_pad, other in zip(_ints(outer, "pads"), _ints(inner, "pads"), strict=True))
    less = any(amount < 0 for operation in (outer, inner) for amount in _ints(operation, "pads"))
    if less or outer.attributes["value"] != inner.attributes["value"]:
        return None
    attributes: dict[str, Any] = {**outer.attributes, "pads": pads}
    return editor.add_operation("PAD", inner.inputs, attributes, origins=match.operations)


def _image_pads(type_: OperandType, pad: Operation) -> tuple[int, ...] | None:
    """Top, left, bottom and right; None if the PAD does anything else."""
    pads = _ints(pad, "pads")
    if type_.quantization is not None:
        return None
    height = 1 if type_.layout is Layout.NHWC else 2
    image_axes = (height, height + 1, height + 4, height + 5)
    if any(pads[axis] for axis in range(8) if axis not in image_axes) or any(amount < 0 for amount in pads):
        return None
    return tuple(pads[axis] for axis in image_axes)


def _ints(operation: Operation, name: str) -> tuple[int, ...]:
    return operation.attributes[name]  # type: ignore[return-value]


def _pads_zeros(editor: ModelEditor, host: Operation, pad: Operation) -> bool:
    return pad.attributes["value"] == 0


def _is_counted(editor: ModelEditor, host: Operation, pad: Operation) -> bool:
    counted = host.attributes["count_include_pad"] or not any(_ints(host, "pads"))
    return bool(pad.attributes["value"] == 0 and counted and _is_plain(host))


def _is_never_largest(editor: ModelEditor, host: Operation, pad: Operation) -> bool:
    value, dtype = pad.attributes["value"], editor.type_of(pad.inputs[0]).dtype
    zeros = value == 0 and _is_not_negative(editor, pad.inputs[0])
    return _is_plain(host) and (zeros or value == _smallest(dtype))


def _smallest(dtype: DataType) -> float:
    """NaN, which equals nothing, where the data type has no smallest number that PAD could be told of."""
    if dtype.is_floating:
        return float("nan") if dtype.value.startswith("float8") else float("-inf")
    return 0.0 if dtype.value.startswith("u") else -(2.0 ** (8 * dtype.itemsize - 1))


def _is_not_negative(editor: ModelEditor, index: int) -> bool:
    producer = editor.producer(index)
    made_by = None if producer is None else editor.operation(producer)
    return made_by is not None and (
        made_by.type == "RELU" or (made_by.type in FUSABLE and made_by.attributes["fuse_code"] == "relu")
    )


def _is_plain(host: Operation) -> bool:
    return _ints(host, "dilations") == (1, 1) and not host.attributes["ceil_mode"]


_FITS: Mapping[str, Callable[[ModelEditor, Operation, Operation], bool]] = {
    "CONV_2D": _pads_zeros,
    "MAX_POOL_2D": _is_never_largest,
    "AVERAGE_POOL_2D": _is_counted,
}
"""Whether the value that was padded with is what the operation pads with."""

_PAD = operation("PAD", operand("input"), name="pad", mode="constant")
_PAD_RULES = (
    RewriteRule(operation("PAD", _PAD, mode="constant"), _merge),
    RewriteRule(operation("CONV_2D", _PAD, fuse_code=lambda _: True), _fuse_padding),
    RewriteRule(operation(("MAX_POOL_2D", "AVERAGE_POOL_2D"), _PAD), _fuse_padding),
)
