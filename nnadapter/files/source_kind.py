"""What a person gives as a model, told by how it begins, is called, or what it is: without what reads it."""

from __future__ import annotations

import os
import sys
from enum import Enum, auto

MAGIC = b"\x89NNA\r\n\x1a\n"
"""The first bytes of a file of parts: not text, and damaged by whoever takes it for text."""
PADDLE_ENDINGS = (".json", ".pdmodel", ".pdiparams")
"""Of Paddle 3's structure, of the structure before, and of parameters."""
PADDLE_OLD_NAME = "__model__"
"""The structure of Paddle 1, without an ending."""


class SourceKind(Enum):
    """What a model is given as."""

    COMPILED = auto()
    """A file of parts, or its contents."""
    PADDLE = auto()
    """A path that Paddle has models at: by its name, or because it is a folder."""
    MODULE = auto()
    """A PyTorch module or an exported program."""
    ONNX = auto()
    """Whatever else there is. Who loads it says what is wrong with it."""


def kind_of(source: object) -> SourceKind:
    """Return what a model is given as: a path, contents, or a value."""
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
    """Whether a path is a folder, and how the file begins that it else is; a pipe is read once, and not here."""
    try:
        if not os.path.isfile(path):
            return os.path.isdir(path), b""
        with open(path, "rb") as file:
            return False, file.read(len(MAGIC))
    except (OSError, ValueError):
        return False, b""


def _is_module(source: object) -> bool:
    torch = sys.modules.get("torch")  # where it is not imported, nobody has one
    return torch is not None and isinstance(source, (torch.nn.Module, torch.export.ExportedProgram))
