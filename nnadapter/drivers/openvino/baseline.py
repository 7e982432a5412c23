"""Baseline for timing: OpenVINO without nnadapter."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import ml_dtypes

from nnadapter.drivers.openvino.engine import PRECISIONS, default_precision, module, translated, version
from nnadapter.errors import CompilationError, ExecutionError

Run = Callable[[Mapping[str, Any]], Sequence[Any]]
__all__ = ["default_precision", "opened", "version"]
_ADVICE = "exclude it from the comparison"


def opened(model: str | os.PathLike[str] | bytes, *, precision: str = "float32") -> Run:
    """Compile a model for OpenVINO's CPU, with float32 computed in `precision`; dynamic shapes stay dynamic.

    Raises:
        MissingExtraError: the package is not installed.
        CompilationError: OpenVINO does not compile the model. The returned function raises ExecutionError.
    """
    package = module()
    properties = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": PRECISIONS[precision][1]}
    with translated("OpenVINO did not compile the model", _ADVICE, CompilationError):
        core = package.Core()  # the devices' core has other settings
        read = core.read_model(model if isinstance(model, bytes) else os.fspath(model))
        request = core.compile_model(read, "CPU", properties).create_infer_request()
    return partial(_run, request, [output.element_type.get_type_name() == "bf16" for output in read.outputs])


def _run(request: Any, are_bfloat16: Sequence[bool], feed: Mapping[str, Any]) -> Sequence[Any]:
    with translated("OpenVINO did not run the model", _ADVICE, ExecutionError):
        results = request.infer(feed, share_inputs=True)
        # OpenVINO returns the bits of bfloat16 as float16
        return [
            results[number].view(ml_dtypes.bfloat16) if is_bfloat16 else results[number]
            for number, is_bfloat16 in enumerate(are_bfloat16)
        ]
