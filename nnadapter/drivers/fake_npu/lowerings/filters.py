"""Filters of convolutions on [N, H, W, C], as kernels want them.

A constant filter is packed once, when the model is compiled. A computed one is packed by instructions, at every run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from nnadapter.drivers.fake_npu.emitter import Emitter
from nnadapter.drivers.fake_npu.graph import TensorType
from nnadapter.drivers.fake_npu.kernels.convolution import pack_filter
from nnadapter.drivers.fake_npu.kernels.depthwise import depthwise_repeats, pack_depthwise_filter
from nnadapter.drivers.fake_npu.kernels.matrix import pack_bias
from nnadapter.drivers.fake_npu.kernels.transposed_convolution import pack_transposed_filter
from nnadapter.drivers.fake_npu.kernels.windows import Window
from nnadapter.drivers.fake_npu.kernels.winograd import FILTER_TRANSFORM, WINOGRAD, pack_winograd_filter
from nnadapter.ir.derived import derived
from nnadapter.ir.model import ABSENT, Operation
from nnadapter.ir.operand import Array


def place_filter(emitter: Emitter, kernel: str, operand: int, group: int) -> int:
    """The filter that `operand` holds, in the form of a kernel."""
    if emitter.is_constant(operand):
        return place_constant_filter(emitter, kernel, emitter.constant(operand), group)
    return emit_filter(emitter, kernel, emitter.tensor(operand), group)


def place_constant_filter(emitter: Emitter, kernel: str, weight: Array, group: int) -> int:
    """A known filter in the form of a kernel."""
    return emitter.add_constant(_FORMS[kernel].pack(weight, group))


def emit_filter(emitter: Emitter, kernel: str, tensor: int, group: int) -> int:
    """The filter in a tensor, brought into the form of a kernel by instructions."""
    return _FORMS[kernel].emit(emitter, tensor, group)


def place_bias(emitter: Emitter, operation: Operation) -> list[int]:
    """The bias of a convolution in a list, an empty one if there is none; a constant is packed."""
    if len(operation.inputs) < 3 or operation.inputs[2] == ABSENT:
        return []
    bias = operation.inputs[2]
    if emitter.is_constant(bias):
        return [emitter.add_constant(derived(pack_bias, emitter.constant(bias)))]
    return [emitter.tensor(bias)]


def plain_convolution(weight: tuple[int, ...], group: int, window: Window) -> str:
    """The kernel that suits a convolution, of those that only add and multiply.

    Args:
        weight: dimensions of the filter, [O, C / group, kH, kW].
        group: into how many parts channels are cut.
        window: the filter's geometry.
    """
    if group == weight[0] and weight[1] == 1 and group != 1:
        return "depthwise_convolution"
    return "pointwise_convolution" if group == 1 and window.is_pointwise else "convolution"


def _emit_grouped(emitter: Emitter, tensor: int, group: int) -> int:
    """[O, C / group, kH, kW] -> [group, kH * kW * C / group, O / group]."""
    outputs, *window = emitter.type_of(tensor).dimensions
    grouped = emitter.view(tensor, (group, outputs // group, *window))
    return emitter.view(emitter.transpose(grouped, (0, 3, 4, 2, 1)), (group, prod(window), outputs // group))


def _emit_depthwise(emitter: Emitter, tensor: int, group: int) -> int:
    """[C, 1, kH, kW] -> [kH * kW, repeat * C]."""
    channels, _, height, width = emitter.type_of(tensor).dimensions
    taps = emitter.transpose(emitter.view(tensor, (channels, height * width)), (1, 0))
    repeats = depthwise_repeats(channels)
    result = TensorType(emitter.type_of(taps).dtype, (height * width, repeats * channels))
    return emitter.emit("tile", (taps,), (result,), {"repeats": (1, repeats)})[0] if repeats > 1 else taps


def _emit_winograd(emitter: Emitter, tensor: int, group: int) -> int:
    """[O, C, 3, 3] -> [16, C, O], transformed by one matrix product."""
    outputs, channels = emitter.type_of(tensor).dimensions[:2]
    transform = np.kron(FILTER_TRANSFORM, FILTER_TRANSFORM).T.astype(np.float32)
    factors = emitter.view(tensor, (outputs * channels, 9)), emitter.add_constant(transform)
    parameters = {"transpose_x": False, "transpose_y": False}
    (tiles,) = emitter.emit("matmul", factors, (TensorType("float32", (outputs * channels, 16)),), parameters)
    return emitter.transpose(emitter.view(tiles, (outputs, channels, 16)), (2, 1, 0))


def _emit_transposed(emitter: Emitter, tensor: int, group: int) -> int:
    """[C, O / group, kH, kW] -> [group, C / group, kH * kW * O / group]."""
    channels, *window = emitter.type_of(tensor).dimensions
    grouped = emitter.view(tensor, (group, channels // group, *window))
    return emitter.view(emitter.transpose(grouped, (0, 1, 3, 4, 2)), (group, channels // group, prod(window)))


@dataclass(frozen=True, slots=True)
class _Form:
    """The form of filter that a kernel wants."""

    pack: Callable[[Array, int], Array]
    emit: Callable[[Emitter, int, int], int]


_GROUPED = _Form(lambda weight, group: derived(pack_filter, weight, group=group), _emit_grouped)
_FORMS: Mapping[str, _Form] = {
    "convolution": _GROUPED,
    "pointwise_convolution": _GROUPED,
    "depthwise_convolution": _Form(lambda weight, group: derived(pack_depthwise_filter, weight), _emit_depthwise),
    WINOGRAD: _Form(lambda weight, group: derived(pack_winograd_filter, weight), _emit_winograd),
    "transposed_convolution": _Form(
        lambda weight, group: derived(pack_transposed_filter, weight, group=group), _emit_transposed
    ),
}
"""By kernel."""
