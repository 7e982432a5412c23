"""What the exporter says to programmers of PyTorch, and not to ours."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_EXPORTERS = tuple(map(logging.getLogger, ("torch.onnx", "onnxscript", "onnx_ir")))
"""The exporter, and the packages that it writes ONNX with."""


@contextmanager
def quiet() -> Iterator[None]:
    """Keep back what the exporter logs and warns of (packages that are not here, its own old interfaces)."""
    levels = [each.level for each in _EXPORTERS]
    for each in _EXPORTERS:
        each.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for each, level in zip(_EXPORTERS, levels, strict=True):
            each.setLevel(level)
