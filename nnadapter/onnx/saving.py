"""Models as files that everybody reads: weights inside, or beside where they do not fit into one message."""

from __future__ import annotations

import os
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx
from onnx import TensorProto

from nnadapter.errors import ModelFileError
from nnadapter.files.replacing import replace_file, write_file
from nnadapter.onnx.building import copied
from nnadapter.onnx.references import array_of, inlined, is_reference, without_contents

LARGEST_MESSAGE = (1 << 31) - (1 << 20)
"""Bytes that are written as one file: a protobuf message ends at 2 GiB, its own fields among them."""
_ALIGNMENT = 4096
"""Where weights begin in a file beside the model: at a page, so that readers may map them."""


def save_model(model: onnx.ModelProto, path: str | os.PathLike[str], largest: int = LARGEST_MESSAGE) -> None:
    """Write a model to `path`; weights that it refers to go in, or into `path.data` where the whole would be too large.

    Args:
        model: may refer to weights (`nnadapter.onnx.references`).
        path: of the file; files are whole or not there.
        largest: bytes of the largest file that holds its weights.

    Raises:
        ModelFileError: a file cannot be written, or one that holds weights cannot be read.
    """
    target = Path(path)
    referred = [array_of(tensor).nbytes for tensor in model.graph.initializer if is_reference(tensor)]
    try:
        if model.ByteSize() + sum(referred) <= largest:
            contents = inlined(model).SerializeToString()
        else:
            contents = _with_data_beside(model, target.with_name(f"{target.name}.data")).SerializeToString()
        write_file(target, lambda file: file.write(contents))
    except OSError as error:
        raise ModelFileError(
            f"{str(target)!r} cannot be written: {error.strerror or error}; give another path"
        ) from error


def _with_data_beside(model: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    """The model, whose weights that were referred to lie in a file, which is written."""
    saved_model = copied(model)
    referred = [tensor for tensor in saved_model.graph.initializer if is_reference(tensor)]
    sources = [copied(tensor) for tensor in referred]
    offset = 0
    for tensor in referred:
        length = array_of(tensor).nbytes
        _place(tensor, {"location": path.name, "offset": str(offset), "length": str(length)})
        offset += -(-length // _ALIGNMENT) * _ALIGNMENT
    replace_file(path, lambda file: _write(sources, file))
    return saved_model


def _place(tensor: TensorProto, place: dict[str, str]) -> None:
    bare = without_contents(tensor)
    bare.data_location = TensorProto.EXTERNAL
    for key, value in place.items():
        bare.external_data.add(key=key, value=value)
    tensor.CopyFrom(bare)


def _write(tensors: list[TensorProto], file: BinaryIO) -> None:
    for tensor in tensors:
        array = array_of(tensor)
        file.write(array.reshape(-1).view(np.uint8).data)
        file.write(bytes(-array.nbytes % _ALIGNMENT))
