"""Lowerings of operations on images: convolution, pooling, and exchange of depth and space.

Filters of convolutions on [N, H, W, C], as kernels want them.

A constant filter is packed once, when the model is compiled. A computed one is packed by instructions, at every run.

Lowerings of operations on images: convolution, pooling, and the exchange of depth and space.

The device computes on [N, H, W, C]. Operands in ONNX's order are transposed on their way in and out; the pass
`channels_last` sees to it that this is rare.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from nnadapter.drivers.fake_npu.emitter import Emitter
from nnadapter.drivers.fake_npu.graph import Parameters, TensorType
from nnadapter.drivers.fake_npu.kernels.convolution import (
    pack_depthwise_filter,
    pack_filter,
    pack_transposed_filter,
)
from nnadapter.drivers.fake_npu.kernels.windows import Window
from nnadapter.drivers.fake_npu.lowerings.elementwise import Lower, activation_of
from nnadapter.ir.derived import derived
from nnadapter.ir.model import ABSENT, Operation
from nnadapter.ir.operand import Array, Layout


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
    """The bias of a convolution in a list, an empty one if there is none."""
    if len(operation.inputs) < 3 or operation.inputs[2] == ABSENT:
        return []
    return [emitter.tensor(operation.inputs[2])]


def convolution_kernel(weight: tuple[int, ...], group: int, window: Window) -> str:
    """Return the kernel that suits a convolution.

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
    """[C, 1, kH, kW] -> [kH * kW, C]."""
    channels, _, height, width = emitter.type_of(tensor).dimensions
    return emitter.transpose(emitter.view(tensor, (channels, height * width)), (1, 0))


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
    "transposed_convolution": _Form(
        lambda weight, group: derived(pack_transposed_filter, weight, group=group), _emit_transposed
    ),
}
"""By kernel."""


_TO_CHANNELS_LAST = (0, 2, 3, 1)
_TO_CHANNELS_FIRST = (0, 3, 1, 2)


def image_of(emitter: Emitter, operand: int) -> int:
    """The operand's tensor as [N, H, W, C]."""
    tensor = emitter.tensor(operand)
    is_last = emitter.model.operands[operand].type.layout is Layout.NHWC
    return tensor if is_last else emitter.transpose(tensor, _TO_CHANNELS_LAST)


def image_type(emitter: Emitter, operand: int) -> TensorType:
    """The type of an output as [N, H, W, C]."""
    type_ = emitter.result_type(operand)
    if emitter.model.operands[operand].type.layout is Layout.NHWC:
        return type_
    return TensorType(type_.dtype, tuple(type_.dimensions[axis] for axis in _TO_CHANNELS_LAST))


def set_image(emitter: Emitter, operand: int, tensor: int) -> None:
    """Say that `tensor` [N, H, W, C] holds an output."""
    is_last = emitter.model.operands[operand].type.layout is Layout.NHWC
    emitter.assign(operand, tensor if is_last else emitter.transpose(tensor, _TO_CHANNELS_FIRST))


def window_parameters(operation: Operation, kernel_shape: object) -> Parameters:
    """How a window moves, as kernels want to know it."""
    names = ("strides", "dilations", "pads")
    return {"kernel_shape": kernel_shape} | {name: operation.attributes[name] for name in names}


def lower_convolution(emitter: Emitter, operation: Operation) -> None:
    """Lower CONV_2D: by one matrix product, channel by channel, or by a matrix of windows."""
    image, result = image_of(emitter, operation.inputs[0]), image_type(emitter, operation.outputs[0])
    weight = emitter.model.operands[operation.inputs[1]].type.dimensions
    parameters = window_parameters(operation, weight[2:])
    group: Any = operation.attributes["group"]
    kernel = convolution_kernel(weight, group, Window(**parameters))
    inputs = [image, place_filter(emitter, kernel, operation.inputs[1], group), *place_bias(emitter, operation)]
    (output,) = emitter.emit(kernel, inputs, (result,), parameters, activation_of(operation))
    set_image(emitter, operation.outputs[0], output)


def lower_transposed_convolution(emitter: Emitter, operation: Operation) -> None:
    """CONV_2D_TRANSPOSE."""
    image, result = image_of(emitter, operation.inputs[0]), image_type(emitter, operation.outputs[0])
    kernel, weight = "transposed_convolution", operation.inputs[1]
    group: Any = operation.attributes["group"]
    inputs = [image, place_filter(emitter, kernel, weight, group), *place_bias(emitter, operation)]
    parameters = window_parameters(operation, emitter.model.operands[weight].type.dimensions[2:])
    (output,) = emitter.emit(kernel, inputs, (result,), parameters, activation_of(operation))
    set_image(emitter, operation.outputs[0], output)


def pooling(kernel: str, *more: str) -> Lower:
    """MAX_POOL_2D and AVERAGE_POOL_2D; `more` names attributes beside the window's."""

    def lower(emitter: Emitter, operation: Operation) -> None:
        parameters = {
            **window_parameters(operation, operation.attributes["kernel_shape"]),
            **{name: operation.attributes[name] for name in more},
        }
        result = image_type(emitter, operation.outputs[0])
        (output,) = emitter.emit(kernel, (image_of(emitter, operation.inputs[0]),), (result,), parameters)
        set_image(emitter, operation.outputs[0], output)

    return lower


def lower_depth_to_space(emitter: Emitter, operation: Operation) -> None:
    """DEPTH_TO_SPACE: channels are [block, block, C] (DCR) or [C, block, block] (CRD)."""
    block: Any = operation.attributes["block_size"]
    image = image_of(emitter, operation.inputs[0])
    count, height, width, depth = emitter.type_of(image).dimensions
    channels = depth // (block * block)
    if operation.attributes["mode"] == "DCR":
        split, perm = (count, height, width, block, block, channels), (0, 1, 3, 2, 4, 5)
    else:
        split, perm = (count, height, width, channels, block, block), (0, 1, 4, 2, 5, 3)
    moved = emitter.transpose(emitter.view(image, split), perm)
    set_image(emitter, operation.outputs[0], emitter.view(moved, (count, height * block, width * block, channels)))


def lower_space_to_depth(emitter: Emitter, operation: Operation) -> None:
    """SPACE_TO_DEPTH: channels become [block, block, C]."""
    block: Any = operation.attributes["block_size"]
    image = image_of(emitter, operation.inputs[0])
    count, height, width, channels = emitter.type_of(image).dimensions
    rows, columns = height // block, width // block
    split = emitter.view(image, (count, rows, block, columns, block, channels))
    moved = emitter.transpose(split, (0, 1, 3, 2, 4, 5))
    set_image(emitter, operation.outputs[0], emitter.view(moved, (count, rows, columns, block * block * channels)))
