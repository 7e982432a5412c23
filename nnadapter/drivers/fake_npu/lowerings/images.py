"""Lowerings of operations on images: convolution, pooling, and the exchange of depth and space.

The device computes on [N, H, W, C]. Operands in ONNX's order are transposed on their way in and out; the pass
`channels_last` sees to it that this is rare.
"""

from __future__ import annotations

from typing import Any

from nnadapter.drivers.fake_npu.emitter import Emitter
from nnadapter.drivers.fake_npu.graph import Parameters, TensorType
from nnadapter.drivers.fake_npu.kernels.convolution import pack_filter
from nnadapter.drivers.fake_npu.kernels.depthwise import pack_depthwise_filter
from nnadapter.drivers.fake_npu.kernels.matrix import pack_bias
from nnadapter.drivers.fake_npu.kernels.transposed_convolution import pack_transposed_filter
from nnadapter.drivers.fake_npu.kernels.windows import Window
from nnadapter.drivers.fake_npu.kernels.winograd import WINOGRAD, pack_winograd_filter, suits_winograd
from nnadapter.drivers.fake_npu.lowerings.elementwise import Lower, activation_of
from nnadapter.ir.derived import derived
from nnadapter.ir.model import ABSENT, Operation
from nnadapter.ir.operand import Array, Layout

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
    weight = emitter.constant(operation.inputs[1])
    parameters = window_parameters(operation, weight.shape[2:])
    group: Any = operation.attributes["group"]
    kernel, packed = _packed(emitter, weight, group, Window.of(parameters), result.dimensions)
    inputs = [image, emitter.add_constant(packed)]
    if _has_bias(operation):
        inputs.append(emitter.add_constant(derived(pack_bias, emitter.constant(operation.inputs[2]))))
    (output,) = emitter.emit(kernel, inputs, (result,), parameters, activation_of(operation))
    set_image(emitter, operation.outputs[0], output)


def _packed(emitter: Emitter, weight: Array, group: int, window: Window, result: tuple[int, ...]) -> tuple[str, Array]:
    """The kernel that suits a convolution, and the filter as that kernel wants it."""
    if group == 1:
        if not emitter.exact and suits_winograd(window, weight.shape, result):
            return WINOGRAD, derived(pack_winograd_filter, weight)
        kernel = "pointwise_convolution" if window.is_pointwise else "convolution"
        return kernel, derived(pack_filter, weight, group=group)
    if group == weight.shape[0] and weight.shape[1] == 1:
        return "depthwise_convolution", derived(pack_depthwise_filter, weight)
    return "convolution", derived(pack_filter, weight, group=group)


def _has_bias(operation: Operation) -> bool:
    return len(operation.inputs) > 2 and operation.inputs[2] != ABSENT


def lower_transposed_convolution(emitter: Emitter, operation: Operation) -> None:
    """CONV_2D_TRANSPOSE."""
    image, result = image_of(emitter, operation.inputs[0]), image_type(emitter, operation.outputs[0])
    weight = emitter.constant(operation.inputs[1])
    group: Any = operation.attributes["group"]
    inputs = [image, emitter.add_constant(derived(pack_transposed_filter, weight, group=group))]
    if _has_bias(operation):
        inputs.append(emitter.add_constant(derived(pack_bias, emitter.constant(operation.inputs[2]))))
    parameters = window_parameters(operation, weight.shape[2:])
    (output,) = emitter.emit("transposed_convolution", inputs, (result,), parameters, activation_of(operation))
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
