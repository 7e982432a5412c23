"""What the exporter says to programmers of PyTorch, and not to ours."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_LOGS = {
    **dict.fromkeys(map(logging.getLogger, ("torch.onnx", "onnxscript", "onnx_ir")), logging.ERROR),
    **dict.fromkeys(map(logging.getLogger, ("torch._subclasses.fake_tensor", "torch.export")), logging.CRITICAL),
}
"""From which level on they are heard: the exporter, the packages that it writes ONNX with, and what logs a traceback
for inputs that a module does not take, or for a file that is no program, where an error is raised as well."""


@contextmanager
def quiet() -> Iterator[None]:
    """Keep back what the exporter logs and warns of (packages that are not here, its own old interfaces)."""
    levels = {log: log.level for log in _LOGS}
    for log, level in _LOGS.items():
        log.setLevel(level)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for log, level in levels.items():
            log.setLevel(level)
