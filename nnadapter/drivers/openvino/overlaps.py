"""NonMaxSuppression in the engine's model: which boxes overlap too much.

ONNX suppresses a box that overlaps another one by more than the threshold, the engine one that overlaps it by the
threshold as well. The next larger float is the same question.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nnadapter.drivers.openvino.engine import module

_THRESHOLD = 3
_LEAST = np.finfo(np.float32).tiny
"""Smaller ones are zero to the engine."""


def exclude_thresholds(model: Any) -> None:
    """Raise the thresholds of overlaps in an engine's model, where they are constants."""
    for operator in model.get_ordered_ops():
        if operator.get_type_name() != "NonMaxSuppression":
            continue
        port = operator.input(_THRESHOLD)
        threshold = port.get_source_output().get_node()
        if threshold.get_type_name() == "Constant":
            raised = np.maximum(np.nextafter(np.float32(threshold.data), np.float32(np.inf)), _LEAST)
            port.replace_source_output(module().opset13.constant(raised, dtype=np.float32).output(0))
