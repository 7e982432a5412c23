"""Fusion of activations, padding, scales and normalization into adjacent operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from nnadapter.errors import InvalidModelError
from nnadapter.ir import ABSENT, Array, DataType, Layout, OperandType, Operation
from nnadapter.ir.builder import ModelEditor
from nnadapter.ir.derived import derived
from nnadapter.ir.operand_checks import integer_range
from nnadapter.ir.operations import windows
from nnadapter.ir.rewrite import (
    Match,
    OperationPattern,
    Replacement,
    RewriteRule,
    apply_rules,
    constant,
    editing,
    is_floating,
    operand,
    operation,
)

FUSABLE = ("CONV_2D", "CONV_2D_TRANSPOSE", "FULLY_CONNECTED", "MAT_MUL", "ADD", "SUB", "MUL", "DIV")

_ACTIVATIONS = ("RELU", "CLIP", "SIGMOID", "HARD_SIGMOID", "HARD_SWISH", "TANH", "LEAKY_RELU", "GELU", "SWISH")


@editing
def fuse_activation(editor: ModelEditor) -> None:
    """Fuse an activation into its producer's `fuse_code`.

    Fused: RELU, CLIP, SIGMOID, HARD_SIGMOID, HARD_SWISH, TANH, LEAKY_RELU, GELU and SWISH with alpha 1. Unchanged:
    integers; a producer that has other readers or an activation, or computes a model output.
    """
    apply_rules(editor, _ACTIVATION_RULES)


def _fuse_activation(editor: ModelEditor, match: Match) -> Sequence[int] | None:
    activation, host = editor.operation(match.anchor), editor.operation(match.named["host"])
    if activation.type == "SWISH" and activation.attributes["alpha"] != 1.0:
        return None
    code = "gelu_tanh" if activation.attributes.get("approximate") == "tanh" else activation.type.lower()
    names, _ = windows.FUSE_CODES[code]
    attributes: dict[str, Any] = {
        **host.attributes,
        "fuse_code": code,
        "fuse_parameters": tuple(activation.attributes[name] for name in names),
    }
    origins = (match.named["host"], *match.operations)
    return editor.add_operation(host.type, host.inputs, attributes, origins=origins)


_ACTIVATION_RULES = (
    RewriteRule(
        operation(_ACTIVATIONS, operation(FUSABLE, operand("input", when=is_floating), name="host")), _fuse_activation
    ),
)


@editing
def fuse_pad(editor: ModelEditor) -> None:
    """Fold a constant PAD into the pads of the convolution or pooling after it.

    1. CONV_2D after a PAD with 0.
    2. MAX_POOL_2D after a PAD with the smallest number of the data type, or with 0 if a RELU precedes the PAD.
    3. AVERAGE_POOL_2D after a PAD with 0, if the pooling has no pads or counts them in the average.
    4. Two consecutive PADs with one constant are merged first, if neither crops.
    5. Unchanged: pads of batch or channels, negative pads, or pads as large as a window; other modes; pooling with
       dilations or `ceil_mode`; quantized operands.
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
    if host.type == "AVERAGE_POOL_2D":
        attributes["count_include_pad"] = True
    try:
        return editor.add_operation(host.type, (pad.inputs[0], *host.inputs[1:]), attributes, origins=match.operations)
    except InvalidModelError:  # a window would see only padding
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
    """Return top, left, bottom and right pads; None if quantized, cropped, or padded along other axes."""
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


def _is_counted(editor: ModelEditor, host: Operation, pad: Operation) -> bool:
    counted = host.attributes["count_include_pad"] or not any(_ints(host, "pads"))
    return bool(pad.attributes["value"] == 0 and counted and _is_plain(host))


def _is_never_largest(editor: ModelEditor, host: Operation, pad: Operation) -> bool:
    value, dtype = pad.attributes["value"], editor.type_of(pad.inputs[0]).dtype
    zeros = value == 0 and _is_not_negative(editor, pad.inputs[0])
    return _is_plain(host) and (zeros or value == _smallest(dtype))


def _smallest(dtype: DataType) -> float:
    """Return the smallest number of a data type; NaN if it cannot be a PAD value."""
    if dtype.is_floating:
        return float("nan") if dtype.value.startswith("float8") else float("-inf")
    return float(integer_range(dtype)[0])


def _is_not_negative(editor: ModelEditor, index: int) -> bool:
    index_of_producer = editor.producer(index)
    if index_of_producer is None:
        return False
    producer = editor.operation(index_of_producer)
    return producer.type == "RELU" or producer.attributes.get("fuse_code") == "relu"


def _is_plain(host: Operation) -> bool:
    return _ints(host, "dilations") == (1, 1) and not host.attributes["ceil_mode"]


_FITS: Mapping[str, Callable[[ModelEditor, Operation, Operation], bool]] = {
    "CONV_2D": lambda editor, host, pad: pad.attributes["value"] == 0,
    "MAX_POOL_2D": _is_never_largest,
    "AVERAGE_POOL_2D": _is_counted,
}
"""Operation type -> check that a PAD before the operation equals the operation's own padding."""

_PAD = operation("PAD", operand("input"), name="pad", mode="constant")
_PAD_RULES = (
    RewriteRule(operation("PAD", _PAD, mode="constant"), _merge),
    RewriteRule(operation("CONV_2D", _PAD, fuse_code=lambda _: True), _fuse_padding),
    RewriteRule(operation(("MAX_POOL_2D", "AVERAGE_POOL_2D"), _PAD), _fuse_padding),
)


FOLDABLE = ("CONV_2D", "CONV_2D_TRANSPOSE", "FULLY_CONNECTED")
"""Operations of the form filter * input + bias."""


def foldable(*more: str) -> OperationPattern:
    """Return a pattern with the name `host` that matches operations of `FOLDABLE` or `more` with a constant filter."""
    return operation((*FOLDABLE, *more), operand("host input"), constant("host filter"), name="host")


def channel_axis(host: Operation, output: OperandType) -> int:
    """Return the axis of the output along which the bias of `host` runs."""
    last = host.type == "FULLY_CONNECTED" or output.layout is Layout.NHWC
    return output.rank - 1 if last else 1


def fold(
    editor: ModelEditor, host: int, scale: Array | None, shift: Array | None, operations: Sequence[int]
) -> tuple[int, ...] | None:
    """Add a copy of `host` with factor `scale` and addend `shift` (float64 [C]) folded into filter and bias.

    Returns the copy's outputs, which replace `operations`. The new constants are named after the first output of
    `operations`, and are rounded once. Returns None if filter or bias is not constant, or a result is not finite.
    """
    operation = editor.operation(host)
    source, filter_operand, *others = operation.inputs
    bias_operand = others[0] if others else ABSENT
    filter_, bias = editor.value_of(filter_operand), editor.value_of(bias_operand)
    if filter_ is None or (bias is None and bias_operand != ABSENT):
        return None
    groups = operation.attributes["group"] if operation.type == "CONV_2D_TRANSPOSE" else 0
    folded = derived(_scaled_filter, filter_, bias, scale, shift, groups=groups)
    if folded is None:
        return None
    filter_, bias = folded
    stem = editor.operand(editor.operation(operations[0]).outputs[0]).name
    inputs = [source, filter_operand if filter_ is None else editor.add_constant(f"{stem}.filter", filter_)]
    if bias is not None:
        inputs.append(editor.add_constant(f"{stem}.bias", bias))
    inputs += others[1:]
    return editor.add_operation(operation.type, inputs, operation.attributes, origins=(host, *operations))


def _scaled_filter(
    filter_: Array, bias: Array | None, scale: Array | None, shift: Array | None, *, groups: int
) -> tuple[Array | None, Array | None] | None:
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
    wide = filter_.astype(np.float64)
    if not groups:
        return wide * scale.reshape(-1, *[1] * (wide.ndim - 1))
    # [C, O/group, kH, kW]: rows of one group share their output channels
    grouped = wide.reshape(groups, -1, *wide.shape[1:])
    return (grouped * scale.reshape(groups, 1, wide.shape[1], 1, 1)).reshape(wide.shape)


@editing
def fuse_scale_and_bias(editor: ModelEditor) -> None:
    """Fold MUL, ADD and SUB by a constant into the filter and bias of their producer.

    1. The producer is a CONV_2D, CONV_2D_TRANSPOSE, FULLY_CONNECTED or BATCH_NORMALIZATION with constant parameters.
    2. The constant is one number, or one per output channel, and does not enlarge the output by broadcasting.
    3. Unchanged: DIV, which would round differently; an activation in between; a result that is not finite.
    """
    apply_rules(editor, _SCALE_AND_BIAS_RULES)


def _fold_constant(scale: float | None, shift: float | None) -> Replacement:
    """Return a replacement that folds the factor `scale`, and `shift` times the matched constant as an addend.

    If `scale` is None, the factor is the matched constant.
    """

    def replacement(editor: ModelEditor, match: Match) -> Sequence[int] | None:
        value = _per_channel(editor, match)
        if value is None:
            return None
        factor = value if scale is None else None if scale == 1 else derived(_broadcast, value, number=scale)
        moved = value if shift == 1 else None if shift is None else derived(_times, value, number=shift)
        return fold(editor, match.named["host"], factor, moved, match.operations)

    return replacement


def _per_channel(editor: ModelEditor, match: Match) -> Array | None:
    host = editor.operation(match.named["host"])
    type_ = editor.type_of(host.outputs[0])
    value = editor.value_of(match.operands["constant"])
    if value is None or editor.type_of(editor.operation(match.anchor).outputs[0]).dimensions != type_.dimensions:
        return None
    axis = channel_axis(host, type_) - type_.rank
    channels = type_.dimensions[axis]
    along = value.shape[axis] if value.ndim >= -axis else 1
    if value.size not in (1, along):
        return None
    return derived(_broadcast_constant, value, channels=channels) if value.size else None


def _broadcast_constant(value: Array, *, channels: int) -> Array:
    return np.array(np.broadcast_to(value.astype(np.float64).reshape(-1), (channels,)))


def _broadcast(value: Array, *, number: float) -> Array:
    return np.full(value.shape, number)


def _times(value: Array, *, number: float) -> Array:
    return value * number


_HOST, _CONSTANT = foldable("BATCH_NORMALIZATION"), constant("constant")
_SCALE_AND_BIAS_RULES = (
    RewriteRule(operation("MUL", _HOST, _CONSTANT), _fold_constant(None, None)),
    RewriteRule(operation("ADD", _HOST, _CONSTANT), _fold_constant(1, 1)),
    RewriteRule(operation("SUB", _HOST, _CONSTANT), _fold_constant(1, -1)),
    RewriteRule(operation("SUB", _CONSTANT, _HOST), _fold_constant(-1, 1)),
)


@editing
def fuse_batch_normalization(editor: ModelEditor) -> None:
    """Replace BATCH_NORMALIZATION with constant parameters.

    1. After a CONV_2D, CONV_2D_TRANSPOSE or FULLY_CONNECTED without other readers, it is folded into filter and bias,
       in float64, rounded once.
    2. Otherwise it becomes MUL and ADD.
    3. Unchanged: a producer with a fused activation or another channel axis; a result that is not finite.
    """
    apply_rules(editor, _BATCH_NORMALIZATION_RULES)


def _into_host(editor: ModelEditor, match: Match) -> Sequence[int] | None:
    host = editor.operation(match.named["host"])
    type_ = editor.type_of(host.outputs[0])
    if channel_axis(host, type_) != windows.channel_axis(type_):
        return None
    normalization = editor.operation(match.anchor)
    values = (editor.value_of(index) for index in normalization.inputs[1:])
    scale, shift = derived(_factor_and_offset, *values, epsilon=normalization.attributes["epsilon"])
    return fold(editor, match.named["host"], scale, shift, match.operations)


def _apply_scale_and_shift(editor: ModelEditor, match: Match) -> Sequence[int] | None:
    normalization = editor.operation(match.anchor)
    type_ = editor.type_of(normalization.inputs[0])
    shape = (-1, *[1] * (type_.rank - 1 - windows.channel_axis(type_)))
    values = (editor.value_of(index) for index in normalization.inputs[1:])
    coefficients = derived(
        _broadcast_parameters,
        *values,
        epsilon=normalization.attributes["epsilon"],
        dtype=type_.dtype.value,
        shape=shape,
    )
    if coefficients is None:
        return None
    scale, shift = coefficients
    name = editor.operand(normalization.outputs[0]).name
    (scaled,) = editor.add_operation(
        "MUL", (normalization.inputs[0], editor.add_constant(f"{name}.scale", scale)), origins=match.operations
    )
    return editor.add_operation("ADD", (scaled, editor.add_constant(f"{name}.shift", shift)), origins=match.operations)


def _factor_and_offset(
    scale: Array, bias: Array, mean: Array, variance: Array, *, epsilon: float
) -> tuple[Array, Array]:
    scale, bias, mean, variance = (value.astype(np.float64) for value in (scale, bias, mean, variance))
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = scale / np.sqrt(variance + epsilon)
        return factor, bias - mean * factor


def _broadcast_parameters(
    *values: Array, epsilon: float, dtype: str, shape: tuple[int, ...]
) -> tuple[Array, Array] | None:
    with np.errstate(over="ignore", invalid="ignore"):
        scale, shift = (
            coefficient.astype(dtype).reshape(shape) for coefficient in _factor_and_offset(*values, epsilon=epsilon)
        )
    return (scale, shift) if np.isfinite(scale).all() and np.isfinite(shift).all() else None


_STATISTICS = tuple(map(constant, ("scale", "bias", "mean", "variance")))
_BATCH_NORMALIZATION_RULES = (
    RewriteRule(operation("BATCH_NORMALIZATION", foldable(), *_STATISTICS), _into_host),
    RewriteRule(operation("BATCH_NORMALIZATION", operand("input"), *_STATISTICS), _apply_scale_and_shift),
)
