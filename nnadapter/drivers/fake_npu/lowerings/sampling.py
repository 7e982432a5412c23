"""Lowerings of operations that read images between their pixels."""

from __future__ import annotations

from nnadapter.drivers.fake_npu.emitter import Emitter
from nnadapter.drivers.fake_npu.lowerings.elementwise import direct
from nnadapter.ir.model import ABSENT, Operation

lower_grid_sample = direct("grid_sample", "mode", "padding_mode", "align_corners")
"""GRID_SAMPLE."""
lower_affine_grid = direct("affine_grid", "align_corners")
"""AFFINE_GRID."""
lower_roi_align = direct("roi_align", "spatial_scale", "sampling_ratio", "mode", "half_pixel")
"""ROI_ALIGN."""
lower_max_roi_pool = direct("max_roi_pool", "spatial_scale")
"""MAX_ROI_POOL."""


def lower_deformable_convolution(emitter: Emitter, operation: Operation) -> None:
    """DEFORMABLE_CONV_2D; inputs that are absent are left out, so the kernel is told which ones it has."""
    given = operation.inputs
    inputs = [emitter.tensor(operand) for operand in given if operand != ABSENT]
    names = ("strides", "dilations", "pads", "group", "offset_group")
    parameters = {name: operation.attributes[name] for name in names}
    parameters["kernel_shape"] = emitter.type_of(inputs[1]).dimensions[2:]
    parameters["has_bias"] = len(given) > 3 and given[3] != ABSENT
    result = emitter.result_type(operation.outputs[0])
    (output,) = emitter.emit("deformable_convolution", inputs, (result,), parameters)
    emitter.assign(operation.outputs[0], output)
