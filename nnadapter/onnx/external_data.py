"""Files of external data: looked for and checked when the model is loaded, mapped when the weights are used.

1. A file lies in the model's folder, or in one inside of it; links may not lead out. Where the model itself is a link,
   the folder of the file behind it counts as well.
2. It is a regular file, and as long as the model says.
3. Large initializers refer to it (`references`). Everything else, such as tensors in attributes, is read.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from itertools import chain
from operator import attrgetter
from pathlib import Path

import onnx
from onnx import TensorProto

from nnadapter.errors import ModelFileError
from nnadapter.onnx.nodes import graphs_of
from nnadapter.onnx.references import bytes_of, fits, is_reference, refer, refers_to, stamp_of


def refer_to_files(
    model: onnx.ModelProto, path: str | None, label: str, in_memory: Mapping[str, memoryview] | None = None
) -> None:
    """Let large initializers with external data refer to their files, and read what is small.

    Args:
        model: changed in place; what refers to the file at `path` stays as it is.
        path: of the model; without one, files are looked for in the working directory, as ONNX Runtime does.
        label: how messages call the model.
        in_memory: contents of files, by the names that the model gives them.

    Raises:
        ModelFileError: a file is missing, too short, or not where it may be.
    """
    files = _Files(path, label, in_memory or {})
    for tensor in filter(is_reference, model.graph.initializer):
        if path is None or not refers_to(tensor, Path(path).absolute()):
            files.take(tensor, may_refer=True)
    for part in (model.graph, *model.functions):
        for tensor in filter(is_reference, _within(part)):
            files.take(tensor, may_refer=False)


class _Files:
    """The files beside one model."""

    def __init__(self, path: str | None, label: str, in_memory: Mapping[str, memoryview]) -> None:
        self._path, self._what, self._in_memory = path, label, in_memory
        self._known: dict[str, tuple[Path, os.stat_result]] = {}

    def take(self, tensor: TensorProto, *, may_refer: bool) -> None:
        """Let a tensor refer to its file, or read its contents."""
        place = {entry.key: entry.value for entry in tensor.external_data}
        location = place.get("location", "")
        try:
            if location in self._in_memory:
                contents = self._in_memory[location]
                offset, length = _bounds(place, len(contents), bytes_of(tensor))
                _put(tensor, bytes(contents[offset : offset + length]))
                return
            path, status = self._known.get(location) or self._found(location)
            self._known[location] = path, status
            offset, length = _bounds(place, status.st_size, bytes_of(tensor))
            if may_refer and fits(tensor, length):
                refer(tensor, path, stamp_of(status), offset, length, is_own=False)
            else:
                _fill(tensor, path, offset, length)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            advice = "put it beside the model" if self._path else "give the path of the model's file instead"
            raise ModelFileError(
                f"external data file {location!r} of {self._what} cannot be read (tensor {tensor.name!r}): "
                f"{' '.join(str(reason).split())}; {advice}"
            ) from error

    def _found(self, location: str) -> tuple[Path, os.stat_result]:
        """The path of a file, without links, and what the system says of it."""
        model = Path(self._path or "model")
        path = (model.parent / location).resolve()
        folders = (model.parent.resolve(), model.resolve().parent)
        is_named = location and not Path(location).is_absolute() and ".." not in Path(location).parts
        if not is_named or not any(map(path.is_relative_to, folders)):
            raise ValueError("it is not inside of the model's folder")
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is no regular file")
        return path, status


def _bounds(place: Mapping[str, str], size: int, expected: int) -> tuple[int, int]:
    """Where the contents start in their file, and how long they are."""
    for name in place.keys() & {"offset", "length"}:
        if not (place[name].isascii() and place[name].isdigit()):
            raise ValueError(f"its {name} is {place[name]!r}, expected a number")
    offset = int(place.get("offset", 0))
    length = int(place.get("length", expected))
    if offset + length > size:
        raise ValueError(f"it has {size} bytes, and bytes {offset} to {offset + length} are wanted")
    if length != expected:
        raise ValueError(f"{length} bytes are named, its type and dimensions take {expected}")
    return offset, length


def _fill(tensor: TensorProto, path: Path, offset: int, length: int) -> None:
    with path.open("rb") as file:
        file.seek(offset)
        contents = file.read(length)
    if len(contents) != length:
        raise ValueError("it became shorter")
    _put(tensor, contents)


def _put(tensor: TensorProto, contents: bytes) -> None:
    tensor.ClearField("external_data")
    tensor.ClearField("data_location")
    tensor.raw_data = contents


def _within(part: onnx.GraphProto | onnx.FunctionProto) -> Iterator[TensorProto]:
    """The tensors in attributes of nodes, those of inner graphs, and those that sparse ones are made of."""
    sparse = [*part.sparse_initializer] if isinstance(part, onnx.GraphProto) else []
    for attribute in chain.from_iterable(map(attrgetter("attribute"), part.node)):
        yield from (*([attribute.t] if attribute.HasField("t") else []), *attribute.tensors)
        sparse += [
            *([attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []),
            *attribute.sparse_tensors,
        ]
        for inner in graphs_of(attribute):
            yield from inner.initializer
            yield from _within(inner)
    for sparse_tensor in sparse:
        yield from (sparse_tensor.values, sparse_tensor.indices)
