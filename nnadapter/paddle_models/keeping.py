"""Paddle models -> ONNX models, converted once and kept in the folder of the cache by what they hold."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from hashlib import file_digest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnadapter.caching.folder import Folder
from nnadapter.caching.key import Key, KeyPart, text_part
from nnadapter.caching.outcome import warn_once
from nnadapter.caching.usual import folder_of
from nnadapter.errors import ModelFileError
from nnadapter.files.source_kind import SourceKind, kind_of
from nnadapter.options import Options, options_from
from nnadapter.paddle_models.converting import convert
from nnadapter.paddle_models.finding import PaddleFiles, files_of
from nnadapter.paddle_models.requirements import require_paddle
from nnadapter.paddle_models.worker import OPSET
from nnadapter.process.forking import new_lock

if TYPE_CHECKING:
    import onnx

KIND = "onnx"
"""Of entries that are models which were converted."""
_REVISION = 4
"""Raised whenever `mending` or `worker` make something else of a model, or `checking` refuses more."""
_converting = new_lock()
"""One model is converted at a time: who wants the same one finds it kept."""


def as_onnx(
    source: str | os.PathLike[str] | bytes | onnx.ModelProto,
    options: Options | Mapping[str, Any] | None = None,
    parameters: str | os.PathLike[str] | None = None,
) -> Any:
    """Return what a person gives as what is read as an ONNX model: all but Paddle's and PyTorch's is so already.

    Raises:
        As `onnx_of` and `torch_models.modules.model_of` do.
    """
    kind = kind_of(source)
    if kind is SourceKind.PADDLE:
        assert isinstance(source, (str, os.PathLike)), "nothing else is"
        return onnx_of(source, options, parameters)
    if kind is SourceKind.MODULE:
        from nnadapter.torch_models.modules import model_of

        return model_of(source)
    return source


def onnx_of(
    path: str | os.PathLike[str],
    options: Options | Mapping[str, Any] | None = None,
    parameters: str | os.PathLike[str] | None = None,
) -> bytes:
    """Return a model of Paddle's as the contents of an ONNX file.

    Args:
        path: a file of the model, or its folder.
        options: say where it is kept: in the folder of the cache, the usual one unless `cache_dir` names another.
        parameters: the file of its parameters, where that does not stand beside it under its name.

    Raises:
        MissingExtraError: Paddle or paddle2onnx are not here.
        ModelFileError, InvalidModelError: the model cannot be read, or not be converted.
    """
    files = files_of(Path(path), Path(parameters) if parameters is not None else None)
    versions = require_paddle(f"Paddle model {os.fspath(path)!r}")
    chosen = options_from(options)
    if chosen.cache_dir is False:
        with _converting:
            return convert(files)
    return _kept(files, versions, folder_of(chosen))


def _kept(files: PaddleFiles, versions: Mapping[str, str], folder: Folder) -> bytes:
    key = _key(files, versions)
    cached_contents = folder.contents(key)
    if isinstance(cached_contents, memoryview):
        return bytes(cached_contents)
    with _converting:
        cached_contents = folder.contents(key)
        if isinstance(cached_contents, memoryview):
            return bytes(cached_contents)
        folder.told(cached_contents)
        started = time.perf_counter()
        contents = convert(files)
        if _key(files, versions) != key:
            raise ModelFileError(
                f"Paddle model {str(files.structure)!r} changed while it was converted; wait until it is written"
            )
        reason = folder.keep(key, contents, time.perf_counter() - started)
    if reason:
        warn_once(f"a Paddle model that was converted is not kept: {reason}")
    return contents


def _key(files: PaddleFiles, versions: Mapping[str, str]) -> Key:
    nothing = text_part({})
    parts = {
        "device": text_part({"name": "paddle"}),
        "driver": text_part(versions),
        "host": text_part({"revision": _REVISION}),
        "machine": nothing,
        "options": text_part({"opset": OPSET}),
        "structure": _part(files.structure, {"operations": f"a Paddle model, {files.structure.name}"}),
        "shapes": KeyPart(nothing.digest, {"inputs": "all shapes"}),
        "constants": nothing if files.parameters is None else _part(files.parameters, {}),
    }
    return Key(KIND, parts)


def _part(path: Path, words: Mapping[str, str]) -> KeyPart:
    """A file, by what it holds."""
    try:
        with path.open("rb") as file:
            return KeyPart(file_digest(file, "sha256").hexdigest(), {**words, "bytes": str(path.stat().st_size)})
    except OSError as error:
        raise ModelFileError(f"{str(path)!r} cannot be read: {error.strerror}; check the path") from error
