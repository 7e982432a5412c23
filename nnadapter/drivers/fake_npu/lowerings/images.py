"""Lowerings of operations on images: convolution, pooling, and the exchange of depth and space.

The device computes on [N, H, W, C]. Operands in ONNX's order are transposed on their way in and out; the pass
`channels_last` sees to it that this is rare.
"""

from __future__ import annotations

from typing import Any

from nnadapter.drivers.fake_npu.emitter import Emitter
from nnadapter.drivers.fake_npu.graph import Parameters, TensorType
from nnadapter.drivers.fake_npu.kernels.windows import Window
from nnadapter.drivers.fake_npu.kernels.winograd import WINOGRAD, suits_winograd
from nnadapter.drivers.fake_npu.lowerings.elementwise import Lower, activation_of
from nnadapter.drivers.fake_npu.lowerings.filters import place_bias, place_filter, plain_convolution
from nnadapter.ir.model import Operation
from nnadapter.ir.operand import Layout

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
    """CONV_2D: by one matrix product, channel by channel, by transformed tiles, or by a matrix of windows."""
    image, result = image_of(emitter, operation.inputs[0]), image_type(emitter, operation.outputs[0])
    weight = emitter.model.operands[operation.inputs[1]].type.dimensions
    parameters = window_parameters(operation, weight[2:])
    group: Any = operation.attributes["group"]
    kernel = _kernel(emitter, weight, group, Window.of(parameters), result.dimensions)
    inputs = [image, place_filter(emitter, kernel, operation.inputs[1], group), *place_bias(emitter, operation)]
    (output,) = emitter.emit(kernel, inputs, (result,), parameters, activation_of(operation))
    set_image(emitter, operation.outputs[0], output)


def _kernel(emitter: Emitter, weight: tuple[int, ...], group: int, window: Window, result: tuple[int, ...]) -> str:
    if group == 1 and not emitter.exact and suits_winograd(window, weight, result):
        return WINOGRAD
    return plain_convolution(weight, group, window)


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
