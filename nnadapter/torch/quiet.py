"""What the exporter says to programmers of PyTorch, and not to ours."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_EXPORTER = logging.getLogger("torch.onnx")


@contextmanager
def quiet() -> Iterator[None]:
    """Keep back what the exporter logs and warns of (packages that are not here, its own old interfaces)."""
    level = _EXPORTER.level
    _EXPORTER.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        _EXPORTER.setLevel(level)
