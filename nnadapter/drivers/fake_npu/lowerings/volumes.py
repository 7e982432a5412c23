"""Lowerings of operations on windows over [N, C, …] in ONNX's order."""

from __future__ import annotations

from nnadapter.drivers.fake_npu.emitter import Emitter
from nnadapter.drivers.fake_npu.lowerings.elementwise import Lower, direct
from nnadapter.ir.model import ABSENT, Operation

_WINDOW = ("strides", "dilations", "pads")


def volume_convolution(kernel: str) -> Lower:
    """CONV_3D and CONV_3D_TRANSPOSE; the filter may be computed."""

    def lower(emitter: Emitter, operation: Operation) -> None:
        weight = emitter.tensor(operation.inputs[1])
        parameters = {name: operation.attributes[name] for name in (*_WINDOW, "group")}
        parameters["kernel_shape"] = emitter.type_of(weight).dimensions[2:]
        inputs = [emitter.tensor(operand) for operand in operation.inputs if operand != ABSENT]
        result = emitter.result_type(operation.outputs[0])
        emitter.assign(operation.outputs[0], emitter.emit(kernel, inputs, (result,), parameters)[0])

    return lower


def window_pooling(kernel: str, *more: str) -> Lower:
    """…_POOL_3D, LP_POOL_2D and pools with indices; `more` names attributes beside the window's."""
    return direct(kernel, "kernel_shape", *_WINDOW, *more)


lower_col_to_im = direct("columns_to_image", "kernel_shape", *_WINDOW)
"""COL_TO_IM."""
