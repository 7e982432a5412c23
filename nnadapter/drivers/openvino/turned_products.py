"""Convolutions of single pixels by dequantized filters in the engine's model, whose dimensions are put in an order.

The engine makes one product of matrices of both, with the channels last: that is one order of four dimensions, and it
takes every other one for it, also one that it makes of several. Seen with OpenVINO 2026.4. A step between the two keeps
them apart.
"""

from __future__ import annotations

from typing import Any

from nnadapter.drivers.openvino.parting import part

_CONVOLUTIONS = frozenset(("Convolution", "GroupConvolution"))
_FILTER = 1
_PIXEL = (1, 1)


def part_from_orders(model: Any) -> None:
    """Put a step between such convolutions and each Transpose of what they make."""
    for operator in model.get_ordered_ops():
        if operator.get_type_name() == "Transpose" and _is_of_pixels(operator.input_value(0).get_node()):
            part(operator.input(0))


def _is_of_pixels(node: Any) -> bool:
    if node.get_type_name() not in _CONVOLUTIONS:
        return False
    shape = node.get_input_partial_shape(_FILTER)
    is_plain = node.input_value(_FILTER).get_node().get_type_name() == "Constant"
    return not is_plain and shape.is_static and tuple(shape.to_shape())[-2:] == _PIXEL
