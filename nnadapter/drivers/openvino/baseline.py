"""Baseline for timing: OpenVINO without nnadapter."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import ml_dtypes

from nnadapter.drivers.openvino.engine import module, translated, version
from nnadapter.errors import CompilationError, ExecutionError

Run = Callable[[Mapping[str, Any]], Sequence[Any]]
"""Feed -> all outputs, in the model's order."""
__all__ = ["opened", "version"]
_PROPERTIES = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
_ADVICE = "leave it out of what is compared"


def opened(model: str | os.PathLike[str] | bytes) -> Run:
    """Compile a model for OpenVINO's CPU; dynamic shapes stay dynamic.

    float32 is computed in float32; OpenVINO's default may use 16 bits.

    Raises:
        MissingExtraError: the package is not installed.
        CompilationError: OpenVINO does not compile the model. The returned function raises ExecutionError.
    """
    package = module()
    with translated("OpenVINO did not compile the model", _ADVICE, CompilationError):
        core = package.Core()  # the devices' core has other settings
        read = core.read_model(model if isinstance(model, bytes) else os.fspath(model))
        request = core.compile_model(read, "CPU", _PROPERTIES).create_infer_request()
    run = partial(_run, request, len(read.outputs))
    has_bits = [output.element_type.get_type_name() == "bf16" for output in read.outputs]
    return partial(_run_with_bits, run, has_bits) if any(has_bits) else run


def _run(request: Any, outputs: int, feed: Mapping[str, Any]) -> Sequence[Any]:
    with translated("OpenVINO did not run the model", _ADVICE, ExecutionError):
        results = request.infer(feed, share_inputs=True)
        return [results[number] for number in range(outputs)]


def _run_with_bits(run: Run, has_bits: Sequence[bool], feed: Mapping[str, Any]) -> Sequence[Any]:
    """Run, and reinterpret bfloat16, which OpenVINO returns as float16 bits."""
    return [
        result.view(ml_dtypes.bfloat16) if bits else result for bits, result in zip(has_bits, run(feed), strict=True)
    ]
