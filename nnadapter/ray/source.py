"""A model as it travels: its contents, read once where the job starts, or the path of a file that all machines see."""

from __future__ import annotations

import os
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnadapter.compiled_models.reading import CompiledFile
from nnadapter.errors import InvalidModelError
from nnadapter.files.source_kind import SourceKind, kind_of
from nnadapter.onnx.files import contents_of, load_model
from nnadapter.onnx.signature import Signature, read_signature

if TYPE_CHECKING:
    import onnx

Model = "str | os.PathLike[str] | bytes | onnx.ModelProto"
_LONGEST_NAME = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A model that was read."""

    name: str
    """What reports call it."""
    contents: bytes
    """Empty where there is a path instead."""
    path: str
    """A file that every machine sees, too large for a message."""
    is_compiled: bool
    signature: Signature
    digest: str
    """Of what was read."""


def read_source(model: Any) -> Source:
    """Return a model as it travels.

    Raises:
        InvalidModelError, ModelFileError: it cannot be read.
    """
    path = str(Path(model).absolute()) if isinstance(model, (str, os.PathLike)) else ""
    name = Path(path).name[:_LONGEST_NAME] if path else "model"
    if kind_of(model) is SourceKind.COMPILED:
        contents = model if isinstance(model, bytes) else Path(path).read_bytes()
        return Source(
            name=name, contents=contents, path="", is_compiled=True, signature=CompiledFile(contents).signature,
            digest=sha256(contents).hexdigest(),
        )  # fmt: skip
    message = load_model(path or model)
    try:
        contents, path = contents_of(message), ""
    except InvalidModelError:
        if not path:
            raise
        contents = b""  # weights lie beside the model, and stay there
    digest = sha256(contents or message.SerializeToString(deterministic=True)).hexdigest()
    return Source(
        name=name, contents=contents, path=path, is_compiled=False, signature=_signature(message), digest=digest
    )


def _signature(message: onnx.ModelProto) -> Signature:
    inputs = [value.name for value in message.graph.input]
    constants = (tensor.name for tensor in message.graph.initializer)
    return read_signature(message, inputs, frozenset(constants).intersection(inputs))
