"""Detection of the kind of a model source, without loading its reader."""

from __future__ import annotations

import os
import sys
from enum import Enum, auto

MAGIC = b"\x89NNA\r\n\x1a\n"
"""First bytes of compiled files. A text conversion changes them, so its damage is detected."""
PADDLE_ENDINGS = (".json", ".pdmodel", ".pdiparams")
"""Endings of Paddle files: structures of Paddle 3 and 2, and parameters."""
PADDLE_OLD_NAME = "__model__"
"""File name of structures of Paddle 1."""


class SourceKind(Enum):
    """Kind of a model source."""

    COMPILED = auto()
    """Compiled file, or its contents."""
    PADDLE = auto()
    """Path of a Paddle model, by its name or because it is a folder."""
    MODULE = auto()
    """PyTorch module or exported program."""
    ONNX = auto()
    """Any other source."""


def kind_of(source: object) -> SourceKind:
    """Return the kind of a model source: a path, bytes, or an object."""
    if isinstance(source, bytes):
        return SourceKind.COMPILED if source.startswith(MAGIC) else SourceKind.ONNX
    if not isinstance(source, (str, os.PathLike)):
        return SourceKind.MODULE if _is_module(source) else SourceKind.ONNX
    path = os.fsdecode(source)
    is_folder, beginning = _looked_at(path)
    if beginning == MAGIC:
        return SourceKind.COMPILED
    name = os.path.basename(path)
    is_paddle = is_folder or name.endswith(PADDLE_ENDINGS) or name == PADDLE_OLD_NAME
    return SourceKind.PADDLE if is_paddle else SourceKind.ONNX


def _looked_at(path: str) -> tuple[bool, bytes]:
    """Return whether a path is a folder, and the first bytes of a regular file. Pipes stay unread."""
    try:
        if not os.path.isfile(path):
            return os.path.isdir(path), b""
        with open(path, "rb") as file:
            return False, file.read(len(MAGIC))
    except (OSError, ValueError):
        return False, b""


def _is_module(source: object) -> bool:
    torch = sys.modules.get("torch")  # PyTorch objects exist only after its import
    return torch is not None and isinstance(source, (torch.nn.Module, torch.export.ExportedProgram))
