"""What sessions are told through ONNX Runtime's own options: threads of the CPU, and the deadline of one run."""

from __future__ import annotations

from typing import Any

from nnadapter.process.real_onnxruntime import onnxruntime
from nnadapter.running.deadlines import ENTRY


def session_options(threads: int) -> Any:
    """ONNX Runtime's options for CPU steps with so many threads; None where it decides."""
    if not threads:
        return None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return options


def run_options(seconds: float | None) -> Any:
    """Options of a run that may take so long; None where it may take its time."""
    if seconds is None:
        return None
    options = onnxruntime.RunOptions()
    options.add_run_config_entry(ENTRY, repr(max(seconds, 1e-6)))
    return options
