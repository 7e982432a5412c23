"""Lowerings of operations that move elements."""

from __future__ import annotations

from typing import Any

from nnadapter.drivers.fake_npu.emitter import Emitter
from nnadapter.drivers.fake_npu.lowerings.elementwise import direct, lower_assign
from nnadapter.ir.model import Operation

lower_tile = direct("tile", "repeats")
"""TILE."""
lower_split = direct("split", "axis")
"""SPLIT."""
lower_slice = direct("slice", "starts", "ends", "axes", "steps")
"""SLICE."""
lower_gather = direct("gather", "axis")
"""GATHER."""
lower_gather_elements = direct("gather_elements", "axis")
"""GATHER_ELEMENTS."""
lower_pad = direct("pad", "mode", "pads", "value")
"""PAD."""
lower_resize_nearest = direct("resize_nearest", "scales", "coordinate_transformation_mode", "nearest_mode")
"""RESIZE_NEAREST."""
lower_resize_linear = direct("resize_linear", "scales", "coordinate_transformation_mode")
"""RESIZE_LINEAR."""


def lower_reshape(emitter: Emitter, operation: Operation) -> None:
    """RESHAPE: tensors are contiguous, so it is a view."""
    dimensions = emitter.result_type(operation.outputs[0]).dimensions
    emitter.assign(operation.outputs[0], emitter.view(emitter.tensor(operation.inputs[0]), dimensions))


def lower_transpose(emitter: Emitter, operation: Operation) -> None:
    """TRANSPOSE."""
    perm: Any = operation.attributes["perm"]
    emitter.assign(operation.outputs[0], emitter.transpose(emitter.tensor(operation.inputs[0]), perm))


def lower_expand(emitter: Emitter, operation: Operation) -> None:
    """EXPAND; a view where it only adds axes of size 1."""
    source, result = emitter.tensor(operation.inputs[0]), emitter.result_type(operation.outputs[0])
    if emitter.type_of(source).size == result.size:
        lower_reshape(emitter, operation)
    else:
        direct("expand")(emitter, operation)


def lower_concat(emitter: Emitter, operation: Operation) -> None:
    """CONCAT; one part is the whole."""
    (lower_assign if len(operation.inputs) == 1 else direct("concat", "axis"))(emitter, operation)
