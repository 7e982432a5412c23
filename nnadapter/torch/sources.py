"""Where in a person's source an operator comes from."""

from __future__ import annotations

import re
from pathlib import Path

import torch

_FRAME = re.compile(r'^\s*File "(?P<file>.+)", line (?P<line>\d+)', re.MULTILINE)
_PYTORCH = str(Path(torch.__file__).parent)


def line_of(stack_trace: str | None) -> str:
    """Return `FILE:LINE` of the innermost call outside of PyTorch in a stack trace as text; empty if there is none."""
    frames = [(match["file"], match["line"]) for match in _FRAME.finditer(stack_trace or "")]
    outside = [f"{file}:{line}" for file, line in frames if not file.startswith(_PYTORCH)]
    return outside[-1] if outside else ""


def short(line: str) -> str:
    """Return `FILE:LINE` without folders."""
    return Path(line).name if line else ""
