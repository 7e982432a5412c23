"""Baseline for timing: ONNX Runtime without nnadapter."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from nnadapter.drivers.failures import one_line, translated_as
from nnadapter.drivers.onnxruntime.values import run_of
from nnadapter.errors import CompilationError, DriverError, ExecutionError
from nnadapter.onnx.onnxruntime_limits import CPU_PROVIDER
from nnadapter.process.real_onnxruntime import onnxruntime

Run = Callable[[Mapping[str, Any]], Sequence[Any]]


def version() -> str:
    """Return the version of ONNX Runtime."""
    return str(onnxruntime.__version__)


def opened(model: str | os.PathLike[str] | bytes) -> Run:
    """Load a model on the CPU; return a function that runs it."""
    with _translated("load", CompilationError):
        session = onnxruntime.InferenceSession(model, providers=[CPU_PROVIDER])
    return partial(_run, run_of(session), [output.name for output in session.get_outputs()])


def _run(run: Any, names: Sequence[str], feed: Mapping[str, Any]) -> Sequence[Any]:
    with _translated("run", ExecutionError):
        results: Sequence[Any] = run(names, feed, None)
    return results


def _translated(action: str, kind: type[DriverError]) -> AbstractContextManager[None]:
    advice = "exclude it from the comparison"
    return translated_as(f"ONNX Runtime did not {action} the model", advice, kind, _brief)


def _brief(error: BaseException) -> str:
    return one_line(str(error), error)
