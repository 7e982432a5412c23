"""Values quantized to 16 bits in the engine's model, which keep the bounds of their steps.

Where a value is quantized to 16 bits and dequantized at once, the engine leaves both out, and what lay beyond the
largest or below the smallest step comes through as it is: behind a Conv whose Relu is such a bound, negative numbers.
Seen with OpenVINO 2026.4. What is not rounded is off by half a step at most.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nnadapter.drivers.openvino.engine import module

_NARROW_LEVELS = 256
"""Of 8 bits: these are computed."""
_LOW_BOUND, _HIGH_BOUND = 1, 2


def keep_bounds(model: Any) -> None:
    """Put the bounds in front of what quantizes to more than 8 bits."""
    for operator in model.get_ordered_ops():
        if operator.get_type_name() == "FakeQuantize" and operator.get_attributes()["levels"] > _NARROW_LEVELS:
            _bound(operator)


def _bound(quantizer: Any) -> None:
    operators, port = module().opset13, quantizer.input(0)
    low, high = (quantizer.input_value(position) for position in (_LOW_BOUND, _HIGH_BOUND))
    if all(map(_is_finite, (low.get_node(), high.get_node()))):
        raised = operators.maximum(port.get_source_output(), low)
        port.replace_source_output(operators.minimum(raised, high).output(0))


def _is_finite(bound: Any) -> bool:
    """Whether a bound is known, and one: a quantizer that met the smallest float, as masks have it, may make none."""
    return bound.get_type_name() == "Constant" and bool(np.isfinite(bound.data).all())
