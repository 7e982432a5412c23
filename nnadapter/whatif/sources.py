"""What a person gives as models -> one after the other, with a name each."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nnadapter.errors import ModelFileError


def model_sources(models: Any) -> list[tuple[str, Any]]:
    """Return the name and the source of every model, each file once; a folder stands for every `*.onnx` below it.

    Files are named from the last folder that holds all of them.

    Raises:
        ModelFileError: there is no model, or a folder holds none.
    """
    sources = [models] if isinstance(models, (str, bytes, os.PathLike)) or not isinstance(models, Sequence) else models
    if not sources:
        raise ModelFileError("what-if got no model; give the path of one, or of a folder with models")
    named_sources: dict[object, tuple[str, Any]] = {}
    for position, source in enumerate(sources):
        if isinstance(source, (str, os.PathLike)):
            named_sources.update((_place(path), (str(path), path)) for path in _files(Path(source)))
        else:
            named_sources[position] = (
                getattr(getattr(source, "graph", None), "name", "") or f"model {position + 1}",
                source,
            )
    files = [path for path in named_sources if isinstance(path, Path)]
    shared = Path(os.path.commonpath([path.parent for path in files])) if files else Path()
    return [
        (str(at.relative_to(shared)) if isinstance(at, Path) else name, source)
        for at, (name, source) in named_sources.items()
    ]


def _files(path: Path) -> Sequence[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.rglob("*.onnx") if file.is_file() or _leads_nowhere(file))
    if not files:
        raise ModelFileError(f"folder {str(path)!r} holds no *.onnx file; give a folder with models")
    return files


def _place(path: Path) -> Path:
    """By which a file is the same one under another name; a broken link is itself."""
    return path.absolute() if _leads_nowhere(path) else path.resolve()


def _leads_nowhere(path: Path) -> bool:
    """Whether a link is broken: a model is missing there, which is to be told."""
    return path.is_symlink() and not path.exists()
