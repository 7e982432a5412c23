"""Operators of the engine's model that are computed in real numbers, among others that are computed in integers.

The engine computes what reads dequantized values in integers where it can, and is wrong in some of these. They get a
step in front that it does not look through: the maximum of a value and the smallest number, which is the value, or the
minimum of it and the largest one. A maximum and a minimum in a row would be one operator to the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from nnadapter.drivers.openvino.engine import module

_FLOAT32 = np.finfo(np.float32)
_SEQUENCES = 3
"""Dimensions of several sequences of vectors."""


def _pads_with_zeros(operator: Any) -> bool:
    attributes = operator.get_attributes()
    pads = (*attributes["pads_begin"], *attributes["pads_end"])
    return not attributes["exclude-pad"] and (any(pads) or attributes["auto_pad"] != "explicit")


def _has_open_channels(operator: Any) -> bool:
    return bool(operator.get_input_partial_shape(0)[1].is_dynamic)


def _has_three_dimensions(operator: Any) -> bool:
    rank = operator.get_input_partial_shape(0).rank
    return bool(rank.is_static and rank.get_length() == _SEQUENCES)


def _always(operator: Any) -> bool:
    return True


_REAL: Mapping[str, Callable[[Any], bool]] = {
    "AvgPool": _pads_with_zeros,
    "BatchNormInference": _has_open_channels,
    "Clamp": _always,
    "ConvolutionBackpropData": _always,
    "GroupConvolutionBackpropData": _always,
    "Maximum": _always,
    "Minimum": _always,
    "ReduceL1": _has_three_dimensions,
    "ReduceL2": _has_three_dimensions,
    "ReduceMax": _has_three_dimensions,
    "ReduceMean": _has_three_dimensions,
    "ReduceMin": _has_three_dimensions,
    "ReduceSum": _has_three_dimensions,
}
"""Which of the operators: the engine pads quantized values with the integer 0, cuts bounds to whole numbers, where
channels are open takes a normalization's zero for another, and behind a reduction of three dimensions reads the zero
points of the first batch for all of them, beyond their end."""


def keep_real(model: Any) -> None:
    """Put the step in front of every operator of an engine's model that has to be computed in real numbers."""
    operators = module().opset13
    for operator in model.get_ordered_ops():
        is_real = _REAL.get(operator.get_type_name())
        if is_real is None or not is_real(operator):
            continue
        for port in operator.inputs():
            source = port.get_source_output()
            is_constant = source.get_node().get_type_name() == "Constant"
            if source.get_element_type().get_type_name() == "f32" and not is_constant:
                port.replace_source_output(_same(operators, operator.get_type_name(), source).output(0))
                break


def _same(operators: Any, kind: str, source: Any) -> Any:
    """A value, by a step that neither is looked through nor becomes one with the operator behind it."""
    if kind == "Minimum":
        return operators.minimum(source, operators.constant(_FLOAT32.max))
    return operators.maximum(source, operators.constant(_FLOAT32.min))
