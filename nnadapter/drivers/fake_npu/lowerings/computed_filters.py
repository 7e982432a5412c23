"""Lowerings of convolutions on [N, C, …] in ONNX's order, whose filter may be computed."""

from __future__ import annotations

from nnadapter.drivers.fake_npu.emitter import Emitter
from nnadapter.drivers.fake_npu.lowerings.elementwise import Lower
from nnadapter.ir.model import ABSENT, Operation


def with_filter(kernel: str, *more: str) -> Lower:
    """CONV_3D, CONV_3D_TRANSPOSE and DEFORMABLE_CONV_2D; `more` names attributes beside the window's and group."""

    def lower(emitter: Emitter, operation: Operation) -> None:
        operands = operation.inputs
        parameters = {name: operation.attributes[name] for name in ("strides", "dilations", "pads", "group", *more)}
        parameters["kernel_shape"] = emitter.model.operands[operands[1]].type.dimensions[2:]
        parameters["has_bias"] = len(operands) > 3 and operands[3] != ABSENT
        emitter.emit_operation(operation, kernel, parameters)

    return lower
