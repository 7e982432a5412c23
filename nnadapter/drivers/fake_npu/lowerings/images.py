"""Lowerings of image operations: convolution, pooling, depth to space and back.

The device computes on [N, H, W, C]; other operands are transposed on the way in and out.
"""

from __future__ import annotations

from math import prod
from typing import Any

from nnadapter.drivers.fake_npu.emitter import Emitter
from nnadapter.drivers.fake_npu.graph import Parameters, TensorType
from nnadapter.drivers.fake_npu.kernels import convolution
from nnadapter.drivers.fake_npu.kernels.windows import Window
from nnadapter.drivers.fake_npu.lowerings.direct import Lower, activation_of
from nnadapter.ir import ABSENT, Array, Layout, Operation
from nnadapter.ir.derived import derived

_TO_CHANNELS_LAST = (0, 2, 3, 1)
_TO_CHANNELS_FIRST = (0, 3, 1, 2)


def pack_filter(emitter: Emitter, kernel: str, weight: Array | int, group: Any) -> int:
    """Pack a filter for a kernel. An array is packed at compile time, a tensor (passed by index) by instructions."""
    if not isinstance(weight, int):
        if kernel == "depthwise_convolution":
            return emitter.add_constant(derived(convolution.pack_depthwise_filter, weight))
        is_transposed = kernel == "transposed_convolution"
        pack = convolution.pack_transposed_filter if is_transposed else convolution.pack_filter
        return emitter.add_constant(derived(pack, weight, group=group))
    first, second, *taps = emitter.type_of(weight).dimensions
    if kernel == "depthwise_convolution":
        return emitter.transpose(emitter.view(weight, (first, prod(taps))), (1, 0))
    grouped, rows = emitter.view(weight, (group, first // group, second, *taps)), first // group
    if kernel == "transposed_convolution":
        return emitter.view(emitter.transpose(grouped, (0, 1, 3, 4, 2)), (group, rows, prod(taps) * second))
    return emitter.view(emitter.transpose(grouped, (0, 3, 4, 2, 1)), (group, prod(taps) * second, rows))


def convolution_kernel(weight: tuple[int, ...], group: int, window: Window) -> str:
    """Return the name of the convolution kernel for a filter with dimensions `weight`."""
    if group == weight[0] and weight[1] == 1 and group != 1:
        return "depthwise_convolution"
    return "pointwise_convolution" if group == 1 and window.is_pointwise else "convolution"


def image_of(emitter: Emitter, operand: int) -> int:
    """Return the tensor of an image as [N, H, W, C]."""
    tensor = emitter.tensor(operand)
    is_last = emitter.model.type_at(operand).layout is Layout.NHWC
    return tensor if is_last else emitter.transpose(tensor, _TO_CHANNELS_LAST)


def image_type(emitter: Emitter, operand: int) -> TensorType:
    """Return an output's type as [N, H, W, C]."""
    type_ = emitter.result_type(operand)
    if emitter.model.type_at(operand).layout is Layout.NHWC:
        return type_
    return TensorType(type_.dtype, tuple(type_.dimensions[axis] for axis in _TO_CHANNELS_LAST))


def set_image(emitter: Emitter, operand: int, tensor: int) -> None:
    """Assign `tensor` [N, H, W, C] to an output, transposed if the output is [N, C, H, W]."""
    is_last = emitter.model.type_at(operand).layout is Layout.NHWC
    emitter.assign(operand, tensor if is_last else emitter.transpose(tensor, _TO_CHANNELS_FIRST))


def window_parameters(operation: Operation, kernel_shape: object) -> Parameters:
    """Return window geometry as parameters of a kernel."""
    return {"kernel_shape": kernel_shape} | {
        name: operation.attributes[name] for name in ("strides", "dilations", "pads")
    }


def lower_convolution(emitter: Emitter, operation: Operation) -> None:
    """Lower CONV_2D to the pointwise, depthwise or general kernel."""
    weight = emitter.model.type_at(operation.inputs[1]).dimensions
    parameters = window_parameters(operation, weight[2:])
    group: Any = operation.attributes["group"]
    _emit_convolution(emitter, operation, convolution_kernel(weight, group, Window(**parameters)), parameters)


def lower_transposed_convolution(emitter: Emitter, operation: Operation) -> None:
    """Lower CONV_2D_TRANSPOSE."""
    kernel_shape = emitter.model.type_at(operation.inputs[1]).dimensions[2:]
    _emit_convolution(emitter, operation, "transposed_convolution", window_parameters(operation, kernel_shape))


def _emit_convolution(emitter: Emitter, operation: Operation, kernel: str, parameters: Parameters) -> None:
    (image, weight, *bias), (output,) = operation.inputs, operation.outputs
    filter_ = emitter.constant(weight) if emitter.is_constant(weight) else emitter.tensor(weight)
    inputs = [image_of(emitter, image), pack_filter(emitter, kernel, filter_, operation.attributes["group"])]
    inputs += [emitter.tensor(operand) for operand in bias if operand != ABSENT]
    result = image_type(emitter, output)
    set_image(emitter, output, emitter.emit(kernel, inputs, (result,), parameters, activation_of(operation))[0])


def pooling(kernel: str, *more: str) -> Lower:
    """Return a lowering of 2-D pools to a kernel that gets the window geometry and the attributes `more`."""

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
    """Lower DEPTH_TO_SPACE from channels [block, block, C] (DCR) or [C, block, block] (CRD)."""
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
    """Lower SPACE_TO_DEPTH to channels [block, block, C]."""
    block: Any = operation.attributes["block_size"]
    image = image_of(emitter, operation.inputs[0])
    count, height, width, channels = emitter.type_of(image).dimensions
    rows, columns = height // block, width // block
    split = emitter.view(image, (count, rows, block, columns, block, channels))
    moved = emitter.transpose(split, (0, 1, 3, 2, 4, 5))
    set_image(emitter, operation.outputs[0], emitter.view(moved, (count, rows, columns, block * block * channels)))
