"""A step in the engine's model that changes nothing, which the engine moves nothing through, and puts nothing into."""

from __future__ import annotations

from typing import Any

import numpy as np

from nnadapter.drivers.openvino.engine import module


def parted(value: Any) -> Any:
    """The reals of a value behind such a step; NaN stays what it is."""
    operators = module().opset13
    least = np.array(-np.inf, value.get_element_type().to_dtype())
    return operators.maximum(operators.constant(least), value).output(0)  # of NaN its second input is what is left


def part(port: Any) -> None:
    """Put such a step in front of what reads reals."""
    port.replace_source_output(parted(port.get_source_output()))
