"""onnx's own inference: the one place that asks it."""

from __future__ import annotations

import onnx
from onnx import checker, shape_inference

FAILURES = (shape_inference.InferenceError, checker.ValidationError, ValueError, RuntimeError)
"""What onnx raises where types contradict each other."""
Types = dict[str, onnx.ValueInfoProto]


def infer(model: onnx.ModelProto, *, strict: bool = False) -> Types:
    """Return what is known of the types of values, by name; initializers that are no inputs are left out.

    Args:
        model: the model.
        strict: fail also where inference does not know an operator.

    Raises:
        FAILURES: types contradict each other.
    """
    graph = shape_inference.infer_shapes(model, strict_mode=strict, data_prop=True).graph
    return {value.name: value for value in (*graph.input, *graph.value_info, *graph.output)}
