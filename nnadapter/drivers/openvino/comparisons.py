"""Comparisons of reals in the engine's model: what is greater is asked for as what is less, the other way round.

The engine calls NaN greater than everything. Less it computes as ONNX does. Seen with OpenVINO 2026.4.
"""

from __future__ import annotations

from typing import Any

from nnadapter.drivers.openvino.engine import module

_SWAPPED_COMPARISONS = {"Greater": "less", "GreaterEqual": "less_equal"}
"""The engine's operators, and what makes those that take their place."""


def compare_the_other_way(model: Any) -> None:
    """Let Less take the place of every Greater of reals, its inputs exchanged."""
    operators = module().opset13
    for operator in model.get_ordered_ops():
        make = _SWAPPED_COMPARISONS.get(operator.get_type_name())
        if make is None or not operator.get_input_element_type(0).is_real():
            continue
        left, right = operator.input_values()
        comparison = getattr(operators, make)(right, left)
        comparison.set_friendly_name(operator.get_friendly_name())
        for reader in operator.output(0).get_target_inputs():
            reader.replace_source_output(comparison.output(0))
