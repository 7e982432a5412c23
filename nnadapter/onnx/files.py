"""Path, bytes or ModelProto -> ModelProto, with an error that a person can act on."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from nnadapter import limits
from nnadapter.errors import InvalidModelError, ModelFileError
from nnadapter.onnx.external_data import refer_to_files
from nnadapter.onnx.function_calls import check_calls
from nnadapter.onnx.overriding import Overrides, override
from nnadapter.onnx.references import inlined
from nnadapter.onnx.skeletons import skeleton_of
from nnadapter.onnx.walking import check_size

if TYPE_CHECKING:
    import onnx

_BEGINNING = 8
"""Bytes that tell what a file is."""


def load_model(
    source: str | os.PathLike[str] | bytes | onnx.ModelProto,
    *,
    external_data: bool = True,
    folder: str | None = None,
    overrides: Overrides | None = None,
) -> onnx.ModelProto:
    """Return the model that `source` holds. Large weights in files are referred to, and not read (`references`).

    Args:
        source: path, contents, or model.
        external_data: what lies beside the model is looked for, too.
        folder: where it lies, of a model that is no file; without one, it is the working directory.
        overrides: what takes the place of initializers, open dimensions and files.

    Raises:
        ModelFileError: the file, or a file of external data, is missing or cannot be read.
        InvalidModelError: the contents are not an ONNX model, are truncated, hold nothing to run, or are beyond
            `nnadapter.limits`.
    """
    import onnx

    if isinstance(source, onnx.ModelProto):
        # The caller may go on editing the model, and it is read again for every new shape.
        model = onnx.ModelProto()
        model.CopyFrom(source)
    elif isinstance(source, bytes):
        model = _contained(source)
    elif isinstance(source, (str, os.PathLike)):
        model = _read(Path(source))
    else:
        raise TypeError(f"a model is a path, bytes or an onnx.ModelProto, got {type(source).__name__}")
    check_not_empty(model, describe(source))
    check_calls(model)
    if overrides is not None:
        override(model, overrides)
    if external_data:
        in_folder = str(Path(folder, "model")) if folder else None
        path = os.fspath(source) if isinstance(source, (str, os.PathLike)) else in_folder
        refer_to_files(model, path, describe(source), overrides.files if overrides is not None else {})
    return model


def contents_of(model: onnx.ModelProto) -> bytes:
    """Return a model as bytes, weights included.

    Raises:
        InvalidModelError: it is larger than protobuf's 2 GiB.
    """
    from google.protobuf.message import EncodeError

    try:
        contents: bytes = inlined(model).SerializeToString()
    except (EncodeError, ValueError) as error:
        raise InvalidModelError(
            "the model is larger than protobuf's 2 GiB; save it with external data and give its path"
        ) from error
    return contents


def describe(source: object) -> str:
    """How messages call the model."""
    if isinstance(source, (str, os.PathLike)):
        return f"model {os.fspath(source)!r}"
    return "the model"


def check_not_empty(model: onnx.ModelProto, label: str) -> None:
    """Raise InvalidModelError if there is nothing to run."""
    if not model.HasField("graph"):
        raise InvalidModelError(f"{label} holds no graph, expected an ONNX model with one; export it again")
    if not (model.graph.node or model.graph.output):
        raise InvalidModelError(f"{label} has no nodes and no outputs, so there is nothing to run; export it again")


def _contained(contents: bytes) -> onnx.ModelProto:
    label = "the model given as bytes"
    with suppress(IndexError):  # it is no message, as is said where it is parsed
        check_size(contents, label)
    return _parse(contents, label)


def _read(path: Path) -> onnx.ModelProto:
    label = f"model {str(path)!r}"
    try:
        path.stat()
    except ValueError as error:
        raise ModelFileError(f"model file {str(path)!r} cannot be read: {error}; check the path") from error
    except OSError:  # what is wrong with it is said where it is read
        pass
    try:
        check_size(path, label)
    except IndexError as error:
        with path.open("rb") as file:
            beginning = file.read(_BEGINNING)
        raise _unreadable(beginning, path.stat().st_size, label) from error
    try:
        with path.open("rb") as file:
            contents = skeleton_of(file, path.absolute())
            size = os.fstat(file.fileno()).st_size
            if contents is None and size > limits.MESSAGE_BYTES:
                raise InvalidModelError(
                    f"{label} has {size:,} bytes that are no weights, expected at most {limits.MESSAGE_BYTES:,}; "
                    "export it again"
                )
            contents = contents or file.read()
    except FileNotFoundError as error:
        raise ModelFileError(f"model file {str(path)!r} does not exist; check the path") from error
    except OSError as error:
        raise ModelFileError(f"model file {str(path)!r} cannot be read: {error.strerror}; check the path") from error
    if not contents and not path.is_file():
        raise ModelFileError(
            f"model file {str(path)!r} gives nothing more, and it is read more than once; save the model in a file"
        )
    return _parse(contents, label)


def _parse(contents: bytes, label: str) -> onnx.ModelProto:
    import onnx
    from google.protobuf.message import DecodeError

    if not contents:
        raise InvalidModelError(f"{label} is empty, expected an ONNX model; export it again")
    model = onnx.ModelProto()
    try:
        model.ParseFromString(contents)
    except DecodeError as error:
        raise _unreadable(contents, len(contents), label) from error
    if not _is_text(model):
        raise InvalidModelError(f"{label} is damaged: a name in it is not UTF-8; export or download it again")
    return model


def _unreadable(contents: bytes, size: int, label: str) -> InvalidModelError:
    """What is wrong with contents, of which the beginning is enough, that are no message."""
    if contents[4:8] == b"ORTM":
        return InvalidModelError(
            f"{label} is in ONNX Runtime's own format, expected ONNX; give the ONNX file it was made from"
        )
    # Every exporter writes the IR version first; a file that starts otherwise never was a model.
    cause = "is truncated or damaged" if contents[:1] == b"\x08" else "is not an ONNX model"
    return InvalidModelError(f"{label} ({size} bytes) {cause}: protobuf cannot parse it; export or download it again")


def _is_text(model: onnx.ModelProto) -> bool:
    """Names are text: protobuf does not check it for ONNX's version of its syntax."""
    graphs, nodes = [model.graph], []
    names: list[object] = []
    try:
        for function in model.functions:
            names += (function.name, function.domain, *function.input, *function.output, *function.attribute)
            nodes.append(function.node)
        while graphs or nodes:
            if graphs:
                graph = graphs.pop()
                nodes.append(graph.node)
                every = (graph.input, graph.output, graph.initializer)
                names += (graph.name, *(value.name for values in every for value in values))
            for node in nodes.pop():
                names += (node.name, node.op_type, node.domain, *node.input, *node.output)
                for attribute in node.attribute:
                    names.append(attribute.name)
                    if attribute.type in _HOLDING_GRAPHS:
                        graphs += (attribute.g, *attribute.graphs)
    except UnicodeDecodeError:
        return False
    return all(isinstance(name, str) for name in names)


_HOLDING_GRAPHS = (5, 10)
"""Types of attributes. Source: onnx.AttributeProto.GRAPH, GRAPHS."""
