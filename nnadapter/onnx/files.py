"""Model files: loading with large weights left on disk, overriding of initializers and dimensions, and saving."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto, numpy_helper

from nnadapter import limits
from nnadapter.errors import InvalidModelError, InvalidOptionError, ModelFileError
from nnadapter.files.atomic_files import replace_file, write_file
from nnadapter.ir.operand import Array
from nnadapter.onnx import references
from nnadapter.onnx.construction import copied
from nnadapter.onnx.graphs import check_calls, graphs_of, subgraphs, with_nested
from nnadapter.onnx.wire_format import GRAPH, INITIALIZER, RAW_DATA, Contents, check_size, fields, rewritten
from nnadapter.records import dataclass, field
from partition.graph import DTYPE_OF_ELEMENT_TYPE


@dataclass(slots=True)
class Overrides:
    """Replacements for parts of a model, which ONNX Runtime's `SessionOptions` accepts but does not return."""

    initializers: dict[str, Any] = field(default_factory=dict)
    """Initializer name -> replacement, an object with a method `numpy()`."""
    sizes: dict[str, int] = field(default_factory=dict)
    """Name of a dynamic dimension (dim_param) -> size."""
    sizes_by_denotation: dict[str, int] = field(default_factory=dict)
    files: dict[str, memoryview] = field(default_factory=dict)
    """External data file name -> contents."""

    def __bool__(self) -> bool:
        return bool(self.initializers or self.sizes or self.sizes_by_denotation or self.files)


def override(model: onnx.ModelProto, overrides: Overrides) -> None:
    """Apply overrides in place. Unknown names are ignored, as in ONNX Runtime.

    Raises:
        InvalidOptionError: a replacement has another data type or shape.
    """
    for initializer in _initializers(model.graph):
        value = overrides.initializers.get(initializer.name)
        if value is not None:
            _replace(initializer, _array(initializer.name, value))
    dimensions = list(_dimensions(model.graph.input))
    sizes = {
        dimension.dim_param: overrides.sizes_by_denotation[dimension.denotation]
        for dimension in dimensions
        if dimension.dim_param and dimension.denotation in overrides.sizes_by_denotation
    } | overrides.sizes
    for dimension in (*dimensions, *_dimensions((*model.graph.output, *model.graph.value_info))):
        _fix(dimension, sizes, overrides.sizes_by_denotation)


def _initializers(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for node in with_nested(graph.node):
        for inner in subgraphs(node):
            yield from inner.initializer


def _array(name: str, value: Any) -> Array:
    try:
        return value.numpy()  # type: ignore[no-any-return]
    except RuntimeError as error:
        raise InvalidOptionError(
            f"the replacement of initializer {name!r} cannot be read as a numpy array: {error}; put it into the model"
        ) from error


def _replace(initializer: onnx.TensorProto, array: Array) -> None:
    dtype, shape = DTYPE_OF_ELEMENT_TYPE.get(initializer.data_type), tuple(initializer.dims)
    if (array.dtype.name, array.shape) != (dtype, shape):
        raise InvalidOptionError(
            f"initializer {initializer.name!r} is {dtype}{list(shape)}, but its replacement is "
            f"{array.dtype.name}{list(array.shape)}; give the session options an array of its type and shape"
        )
    initializer.CopyFrom(numpy_helper.from_array(array, initializer.name))


def _fix(dimension: Any, sizes: Mapping[str, int], by_denotation: Mapping[str, int]) -> None:
    if dimension.HasField("dim_value"):
        return
    size = sizes.get(dimension.dim_param, by_denotation.get(dimension.denotation))
    if size is not None:
        dimension.dim_value = size


def _dimensions(values: Iterable[onnx.ValueInfoProto]) -> Iterable[Any]:
    for value in values:
        if value.type.HasField("tensor_type"):
            yield from value.type.tensor_type.shape.dim


def refer_to_files(
    model: onnx.ModelProto, path: str | None, label: str, in_memory: Mapping[str, memoryview] | None = None
) -> None:
    """Replace external data in `model` by references if large, and by contents if small.

    References to the file at `path` itself stay. If `path` is None, files are searched in the working directory, as in
    ONNX Runtime. `in_memory` maps file names to contents.

    Raises:
        ModelFileError: a file is missing, too short, or outside of the model's folder.
    """
    files = _Files(path, label, in_memory or {})
    for tensor in filter(references.is_reference, model.graph.initializer):
        if path is None or not references.refers_to(tensor, Path(path).absolute()):
            files.take(tensor, may_refer=True)
    for part in (model.graph, *model.functions):
        for tensor in filter(references.is_reference, _within(part)):
            files.take(tensor, may_refer=False)


class _Files:
    def __init__(self, path: str | None, label: str, in_memory: Mapping[str, memoryview]) -> None:
        self._path, self._what, self._in_memory = path, label, in_memory
        self._known: dict[str, tuple[Path, os.stat_result]] = {}

    def take(self, tensor: TensorProto, *, may_refer: bool) -> None:
        place = references.place_of(tensor)
        location = place.get("location", "")
        try:
            if location in self._in_memory:
                contents = self._in_memory[location]
                offset, length = _bounds(place, len(contents), references.bytes_of(tensor))
                references.set_contents(tensor, bytes(contents[offset : offset + length]))
                return
            path, status = self._known.get(location) or self._resolve(location)
            self._known[location] = path, status
            offset, length = _bounds(place, status.st_size, references.bytes_of(tensor))
            if may_refer and references.fits(tensor, length):
                references.refer(tensor, path, references.stamp_of(status), offset, length, is_own=False)
            else:
                _fill(tensor, path, offset, length)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            advice = "put it next to the model" if self._path else "give the path of the model's file instead"
            raise ModelFileError(
                f"external data file {location!r} of {self._what} cannot be read (tensor {tensor.name!r}): "
                f"{' '.join(str(reason).split())}; {advice}"
            ) from error

    def _resolve(self, location: str) -> tuple[Path, os.stat_result]:
        """Return path and status of a regular file in the model's folder, or raise ValueError."""
        model = Path(self._path or "model")
        path = (model.parent / location).resolve()
        folders = (model.parent.resolve(), model.resolve().parent)
        is_named = location and not Path(location).is_absolute() and ".." not in Path(location).parts
        if not is_named or not any(map(path.is_relative_to, folders)):
            raise ValueError("the file is outside of the model's folder")
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("the path is not a regular file")
        return path, status


def _bounds(place: Mapping[str, str], size: int, expected: int) -> tuple[int, int]:
    for name in place.keys() & {"offset", "length"}:
        if not (place[name].isascii() and place[name].isdigit()):
            raise ValueError(f"the {name} of the tensor's data is {place[name]!r}, expected a number")
    offset = int(place.get("offset", 0))
    length = int(place.get("length", expected))
    if offset + length > size:
        raise ValueError(f"the file has {size} bytes, but bytes {offset} to {offset + length} are needed")
    if length != expected:
        raise ValueError(f"the model states {length} bytes, but the tensor's type and dimensions need {expected}")
    return offset, length


def _fill(tensor: TensorProto, path: Path, offset: int, length: int) -> None:
    with path.open("rb") as file:
        file.seek(offset)
        contents = file.read(length)
    if len(contents) != length:
        raise ValueError("the file became shorter while it was read")
    references.set_contents(tensor, contents)


def _within(part: onnx.GraphProto | onnx.FunctionProto) -> Iterator[TensorProto]:
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


def skeleton_of(file: BinaryIO, path: Path) -> bytes | None:
    """Return a model's contents with references instead of large initializers; None if nothing can be replaced."""
    status = os.fstat(file.fileno())
    if status.st_size < references.REFERRED_BYTES:
        return None
    try:
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as contents:
            return _Writer(contents, path, references.stamp_of(status)).model()
    except (OSError, ValueError, IndexError, DecodeError):
        return None  # Not mappable, or not a model: the parser reports the error.


@dataclass(slots=True)
class _Writer:
    contents: Contents
    path: Path
    stamp: str

    def model(self) -> bytes | None:
        return rewritten(self.contents, 0, len(self.contents), GRAPH, self._graph)

    def _graph(self, start: int, end: int) -> bytes | None:
        return rewritten(self.contents, start, end, INITIALIZER, self._initializer)

    def _initializer(self, start: int, end: int) -> bytes | None:
        if end - start < references.REFERRED_BYTES:
            return None
        raw_fields = [
            (at, begin, stop) for tag, at, begin, stop in fields(self.contents, start, end) if tag == RAW_DATA
        ]
        if len(raw_fields) != 1 or raw_fields[0][2] > end:
            return None
        at, begin, stop = raw_fields[0]
        tensor = onnx.TensorProto.FromString(self.contents[start:at] + self.contents[stop:end])
        is_plain = tensor.data_location == onnx.TensorProto.DEFAULT and not tensor.HasField("segment")
        if not is_plain or not references.fits(tensor, stop - begin):
            return None
        references.refer(tensor, self.path, self.stamp, begin, stop - begin, is_own=True)
        written: bytes = tensor.SerializeToString()
        return written


_BEGINNING = 8


def load_model(
    source: str | os.PathLike[str] | bytes | onnx.ModelProto,
    *,
    external_data: bool = True,
    folder: str | None = None,
    overrides: Overrides | None = None,
) -> onnx.ModelProto:
    """Load a model, with large weights as references (`references`).

    With `external_data`, external data files are resolved. If `source` is no path, they are searched in `folder`, by
    default the working directory.

    Raises:
        ModelFileError: a file is missing or cannot be read.
        InvalidModelError: not an ONNX model, truncated, empty, or beyond `nnadapter.limits`.
    """
    import onnx

    if isinstance(source, onnx.ModelProto):
        model = copied(source)  # callers may edit their model later, and this one is read again for every new shape
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
    """Return a model as bytes with weights, or raise InvalidModelError beyond 2 GiB."""
    from google.protobuf.message import EncodeError

    try:
        contents: bytes = references.inlined(model).SerializeToString()
    except (EncodeError, ValueError) as error:
        raise InvalidModelError(
            "the model is larger than protobuf's 2 GiB; save it with external data and give its path"
        ) from error
    return contents


def describe(source: object) -> str:
    """Return a model's name for messages."""
    if isinstance(source, (str, os.PathLike)):
        return f"model {os.fspath(source)!r}"
    return "the model"


def check_not_empty(model: onnx.ModelProto, label: str) -> None:
    """Raise InvalidModelError if there is nothing to run."""
    if not model.HasField("graph"):
        advice = "export it again, or convert a model in adapter IR with `nnadapter export`"
        raise InvalidModelError(f"{label} holds no graph, expected an ONNX model with one; {advice}")
    if not (model.graph.node or model.graph.output):
        raise InvalidModelError(f"{label} has no nodes and no outputs, so there is nothing to run; export it again")


def _contained(contents: bytes) -> onnx.ModelProto:
    label = "the model given as bytes"
    with suppress(IndexError):  # Not a protobuf message: the parser reports it.
        check_size(contents, label)
    return _parse(contents, label)


def _read(path: Path) -> onnx.ModelProto:
    label = f"model {str(path)!r}"
    try:
        path.stat()
    except ValueError as error:
        raise ModelFileError(f"model file {str(path)!r} cannot be read: {error}; check the path") from error
    except OSError:  # The read below reports the error.
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
                    f"{label} has {size:,} bytes other than weights, expected at most {limits.MESSAGE_BYTES:,}; "
                    "export it again"
                )
            contents = contents or file.read()
    except FileNotFoundError as error:
        raise ModelFileError(f"model file {str(path)!r} does not exist; check the path") from error
    except OSError as error:
        raise ModelFileError(f"model file {str(path)!r} cannot be read: {error.strerror}; check the path") from error
    if not contents and not path.is_file():
        raise ModelFileError(
            f"model file {str(path)!r} is empty when read again, like a pipe; save it in a regular file"
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
    if contents[4:8] == b"ORTM":
        return InvalidModelError(
            f"{label} is in ONNX Runtime's own format, expected ONNX; give the ONNX file it was made from"
        )
    # Exporters write the IR version first, so any other first byte was never a model.
    cause = "is truncated or damaged" if contents[:1] == b"\x08" else "is not an ONNX model"
    return InvalidModelError(f"{label} ({size} bytes) {cause}: protobuf cannot parse it; export or download it again")


def _is_text(model: onnx.ModelProto) -> bool:
    """Return whether all names are UTF-8, which protobuf does not check in proto2."""
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


class BegunModel:
    """Loaded model whose weights are being prefetched."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._model = load_model(path)
        self._reading = references.ReadingAhead(self._model.graph.initializer)

    def finish(self) -> tuple[onnx.ModelProto, list[Array]]:
        """Return the model and its weights; references resolve to these arrays while alive."""
        return self._model, self._reading.finish()

    def stop(self) -> None:
        self._reading.stop()


LARGEST_MESSAGE = (1 << 31) - (1 << 20)
"""Maximum bytes of a file: protobuf's 2 GiB less a margin."""
_ALIGNMENT = 4096
"""Page size, so that weights can be mapped."""


def save_model(model: onnx.ModelProto, path: str | os.PathLike[str], largest: int = LARGEST_MESSAGE) -> None:
    """Write a model to `path` atomically; beyond `largest` bytes, referenced weights go to `path.data`.

    Raises:
        ModelFileError: a file cannot be written, or a weight file cannot be read.
    """
    target = Path(path)
    referred = filter(references.is_reference, model.graph.initializer)
    size = model.ByteSize() + sum(references.array_of(tensor).nbytes for tensor in referred)
    try:
        if size <= largest:
            contents = references.inlined(model).SerializeToString()
        else:
            contents = _with_data_beside(model, target.with_name(f"{target.name}.data")).SerializeToString()
        write_file(target, lambda file: file.write(contents))
    except OSError as error:
        raise ModelFileError(
            f"{str(target)!r} cannot be written: {error.strerror or error}; give another path"
        ) from error


def _with_data_beside(model: onnx.ModelProto, path: Path) -> onnx.ModelProto:
    saved_model = copied(model)
    referred = [*filter(references.is_reference, saved_model.graph.initializer)]
    sources = [copied(tensor) for tensor in referred]
    offset = 0
    for tensor in referred:
        length = references.array_of(tensor).nbytes
        tensor.CopyFrom(references.without_contents(tensor))
        references.set_place(tensor, {"location": path.name, "offset": str(offset), "length": str(length)})
        offset += -(-length // _ALIGNMENT) * _ALIGNMENT
    replace_file(path, lambda file: _write(sources, file))
    return saved_model


def _write(tensors: list[TensorProto], file: BinaryIO) -> None:
    for tensor in tensors:
        array = references.array_of(tensor)
        file.write(array.reshape(-1).view(np.uint8).data)
        file.write(bytes(-array.nbytes % _ALIGNMENT))
