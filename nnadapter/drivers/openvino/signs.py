"""Values of the engine's model that are multiplied by negative numbers, and quantized behind that or before.

The engine has what quantizes them do the product as well, between bounds of which the lower one is the larger; it moves
that in front of a join for it. Where sizes are open, and there is a number for each channel, that comes out wrong. A
step between the two keeps them apart. Seen with OpenVINO 2026.4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from nnadapter.drivers.openvino.parting import part
from nnadapter.ir.operand import Array

_GAMMA = 1
"""The input that a normalization multiplies by."""


def _is_by_negative(operator: Any) -> bool:
    return any(map(_has_negative, operator.input_values()))


def _is_from_known(operator: Any) -> bool:
    return known(operator.input_value(0)) is not None


def _keeps(operator: Any) -> bool:
    return False


_NEGATIVE: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("Add", "Concat", "Identity", "Relu", "Reshape", "Squeeze", "Transpose", "Unsqueeze"), _keeps),
    "BatchNormInference": lambda operator: _has_negative(operator.input_value(_GAMMA)),
    "Divide": _is_by_negative,
    "Multiply": _is_by_negative,
    "Negative": lambda operator: True,
    "Subtract": _is_from_known,
}
"""What a quantizer may go into, or in front of, and which of it changes signs."""
_OF_KNOWN: Mapping[str, Callable[..., Any]] = {"Subtract": np.subtract, "Multiply": np.multiply}
"""What dequantizes a constant, beside Convert."""


def keep_signs(model: Any) -> None:
    """Put a step between products with negative numbers and what quantizes, in an engine's model with open sizes."""
    for operator in model.get_ordered_ops():
        kind = operator.get_type_name()
        if kind == "FakeQuantize":
            port = operator.input(0)
            if _is_open(port.get_source_output()) and _is_negated(port.get_source_output()):
                part(port)
        elif changes_signs(operator):
            for port in operator.inputs():
                value = port.get_source_output()
                if _is_open(value) and value.get_node().get_type_name() == "FakeQuantize":
                    part(port)


def changes_signs(operator: Any) -> bool:
    """Whether an operator multiplies its input by negative numbers."""
    kind = operator.get_type_name()
    return kind in _NEGATIVE and _NEGATIVE[kind](operator)


def _is_open(value: Any) -> bool:
    """Whether a value is of float32, and its sizes are not known."""
    is_real = value.get_element_type().get_type_name() == "f32"
    return is_real and bool(value.get_partial_shape().is_dynamic)


def _is_negated(value: Any) -> bool:
    pending, visited = [value.get_node()], set[str]()
    while pending:
        node = pending.pop()
        if node.get_type_name() not in _NEGATIVE or node.get_name() in visited:
            continue
        if changes_signs(node):
            return True
        visited.add(node.get_name())
        computed_nodes = [source.get_node() for source in node.input_values() if known(source) is None]
        if len(computed_nodes) == 1 or node.get_type_name() == "Concat":
            pending.extend(computed_nodes)
    return False


def _has_negative(value: Any) -> bool:
    contents = known(value)
    return contents is not None and bool((contents < 0).any())


def known(value: Any) -> Array | None:
    """The numbers of a constant, or of one that is dequantized; None of what a run computes."""
    node = value.get_node()
    kind = node.get_type_name()
    if kind == "Constant":
        data: Array = node.data
        return data
    if kind == "Convert":
        contents = known(node.input_value(0))
        return None if contents is None else contents.astype(value.get_element_type().to_dtype())
    read = [known(source) for source in node.input_values()] if kind in _OF_KNOWN else [None]
    return None if any(operand is None for operand in read) else _OF_KNOWN[kind](*read)
