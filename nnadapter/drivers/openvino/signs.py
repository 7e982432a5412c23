"""Values of the engine's model that are multiplied by negative numbers, and quantized.

The engine has what quantizes them do the product as well, between bounds of which the lower one is the larger. Where
sizes are open, and there is a number for each channel, that comes out wrong. A step between the two keeps them apart.
Seen with OpenVINO 2026.4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from nnadapter.drivers.openvino.engine import module

_LEAST = np.finfo(np.float32).min
_GAMMA = 1
"""The input that a normalization multiplies by."""


def _is_by_negative(operator: Any) -> bool:
    return any(map(_has_negative, operator.input_values()))


def _is_from_constant(operator: Any) -> bool:
    return bool(operator.input_value(0).get_node().get_type_name() == "Constant")


_NEGATIVE: Mapping[str, Callable[[Any], bool]] = {
    "Add": lambda operator: False,
    "BatchNormInference": lambda operator: _has_negative(operator.input_value(_GAMMA)),
    "Divide": _is_by_negative,
    "Identity": lambda operator: False,
    "Multiply": _is_by_negative,
    "Negative": lambda operator: True,
    "Subtract": _is_from_constant,
}
"""What may go into a quantizer, and which of it changes signs."""


def keep_signs(model: Any) -> None:
    """Put a step in front of what quantizes values of open sizes in an engine's model that were multiplied so."""
    operators = module().opset13
    for operator in model.get_ordered_ops():
        if operator.get_type_name() != "FakeQuantize" or not operator.get_input_partial_shape(0).is_dynamic:
            continue
        port = operator.input(0)
        value = port.get_source_output()
        if value.get_element_type().get_type_name() == "f32" and _is_negated(value):
            port.replace_source_output(operators.maximum(value, operators.constant(_LEAST)).output(0))


def _is_negated(value: Any) -> bool:
    node = value.get_node()
    while node.get_type_name() in _NEGATIVE:
        if _NEGATIVE[node.get_type_name()](node):
            return True
        others = [each for each in node.input_values() if each.get_node().get_type_name() != "Constant"]
        if len(others) != 1:
            return False
        node = others[0].get_node()
    return False


def _has_negative(value: Any) -> bool:
    node = value.get_node()
    return node.get_type_name() == "Constant" and bool((node.data < 0).any())
