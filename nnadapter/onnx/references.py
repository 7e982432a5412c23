"""Weights by reference, and prefetching in threads.

A reference is an initializer with `data_location` EXTERNAL, so that copying a message does not copy its weights.
`external_data` describes one of three places:

- `mapped`: an external data file, memory-mapped. Replace it by renaming, never in place.
- `read`: the model's own file. Users overwrite it during a session, so contents are copied on first use.
- `memory`: an array that the reference's creator keeps alive.

Opening a file that changed since loading is an error. References stay in this process, except for drivers with
`Capability.supports_external_initializers`.
"""

from __future__ import annotations

import mmap
import os
import sys
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from itertools import count
from math import prod
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import Message
from onnx import TensorProto, helper, numpy_helper

from nnadapter.errors import ModelFileError
from nnadapter.ir.derived import know_contents
from nnadapter.ir.operand import Array, dtype_name
from nnadapter.process.resources import memoize

REFERRED_BYTES = 1 << 16
"""Minimum bytes of initializers that are replaced by references."""
_KIND = "kind"
MAPPED, READ, MEMORY = "mapped", "read", "memory"
_WHOLE_BYTES = frozenset(
    getattr(TensorProto, name)
    for name in (
        "FLOAT", "UINT8", "INT8", "UINT16", "INT16", "INT32", "INT64", "BOOL", "FLOAT16", "DOUBLE", "UINT32", "UINT64",
        "BFLOAT16",
    )
)  # fmt: skip
"""Types with the same layout in memory and files."""
_BITS = {
    getattr(TensorProto, name): bits
    for bits, names in {2: "INT2 UINT2", 4: "INT4 UINT4 FLOAT4E2M1", 6: "FLOAT6E2M3 FLOAT6E3M2"}.items()
    for name in names.split()
    if hasattr(TensorProto, name)  # newer versions of onnx have more
}
"""Bits per element, for sub-byte types."""
_numbers = count(1)
_living: dict[Hashable, weakref.ref[Array]] = {}
"""Live arrays by place. The removal callback is a C-level `pop`, so it needs no lock."""


def array_of(tensor: TensorProto) -> Array:
    """Return the contents of a tensor, read-only if referenced.

    Raises:
        ModelFileError: the file changed or cannot be read.
        TypeError, ValueError, KeyError: contents contradict the tensor.
    """
    if not is_reference(tensor):
        inline: Array = numpy_helper.to_array(tensor)
        return inline
    return _shared(identity_of(tensor), lambda: _looked_up(tensor))


def is_reference(tensor: TensorProto) -> bool:
    """Return whether a tensor's contents are outside of its message."""
    return bool(tensor.data_location == TensorProto.EXTERNAL)


def place_of(tensor: TensorProto) -> dict[str, str]:
    """Return the `external_data` of a tensor as a dictionary."""
    return {entry.key: entry.value for entry in tensor.external_data}


def is_read(tensor: TensorProto) -> bool:
    """Return whether a tensor refers to bytes of a file that are read, not mapped."""
    return is_reference(tensor) and place_of(tensor).get(_KIND) == READ


def is_in_memory(tensor: TensorProto) -> bool:
    """Return whether the referenced array is alive."""
    reference = _living.get(identity_of(tensor))
    return reference is not None and reference() is not None


def refers_to(tensor: TensorProto, path: Path) -> bool:
    """Return whether a tensor refers to valid bytes in the current file at `path`."""
    place = place_of(tensor)
    if (place.get(_KIND), place.get("location")) != (READ, str(path)):
        return False
    try:
        status, offset, length = path.stat(), int(place["offset"]), int(place["length"])
    except (OSError, KeyError, ValueError):
        return False
    return place.get("stamp") == stamp_of(status) and 0 <= offset <= status.st_size - length and fits(tensor, length)


def bytes_of(tensor: TensorProto) -> int:
    """Return the bytes of a tensor's contents; for strings, of the strings."""
    if tensor.data_type == TensorProto.STRING:
        return sum(map(len, tensor.string_data))
    return int(-(-prod(tensor.dims) * _bits_of(tensor.data_type) // 8))


@memoize(64)
def _bits_of(data_type: int) -> int:
    if data_type not in helper.get_all_tensor_dtypes():
        return 0
    return _BITS.get(data_type) or 8 * helper.tensor_dtype_to_np_dtype(data_type).itemsize


def fits(tensor: TensorProto, length: int) -> bool:
    """Return whether a tensor has `length` bytes and may refer to them in a file."""
    return (
        length >= REFERRED_BYTES
        and sys.byteorder == "little"
        and tensor.data_type in _WHOLE_BYTES
        and bytes_of(tensor) == length
    )


def refer(tensor: TensorProto, path: Path, stamp: str, offset: int, length: int, *, is_own: bool) -> None:
    """Make a tensor refer to a file, with `stamp` from `stamp_of`, and offset and length in bytes.

    The model's own file (`is_own`), and unaligned bytes, are read instead of mapped.
    """
    aligned = offset % helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize == 0
    kind = MAPPED if aligned and not is_own else READ
    place = {"location": str(path), "stamp": stamp, "offset": str(offset), "length": str(length)}
    set_place(tensor, {_KIND: kind, **place})


def without_contents(tensor: TensorProto) -> TensorProto:
    """Return a tensor with only name, type and dimensions."""
    return TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)


def referring(tensor: TensorProto, array: Array) -> TensorProto:
    """Return a reference to `array`, which the caller keeps alive."""
    reference = without_contents(tensor)
    set_place(reference, {_KIND: MEMORY, "location": str(next(_numbers)), "length": str(array.nbytes)})
    _keep(identity_of(reference), array)
    return reference


def inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with inline contents (the same object if it has no references), or raise ModelFileError."""
    if not any(map(is_reference, model.graph.initializer)):
        return model
    inlined_model = onnx.ModelProto()
    inlined_model.CopyFrom(model)
    for tensor in filter(is_reference, inlined_model.graph.initializer):
        set_contents(tensor, array_of(tensor).tobytes())
    return inlined_model


def with_contents(tensor: TensorProto) -> TensorProto:
    """Return the tensor with inline contents. Raises as `array_of`."""
    if not is_reference(tensor):
        return tensor
    tensor_copy = TensorProto()
    tensor_copy.CopyFrom(tensor)
    set_contents(tensor_copy, array_of(tensor).tobytes())
    return tensor_copy


def set_contents(tensor: TensorProto, contents: bytes) -> None:
    """Store contents in a tensor instead of a reference."""
    tensor.ClearField("external_data")
    tensor.ClearField("data_location")
    tensor.raw_data = contents


def with_references(model: onnx.ModelProto) -> tuple[onnx.ModelProto, list[Array]]:
    """Replace large initializers by references; also return the arrays to keep alive.

    Unreadable ones stay. Returns the same object if nothing changes.
    """
    arrays: dict[int, Array] = {}
    for position, tensor in enumerate(model.graph.initializer):
        if not is_reference(tensor) and fits(tensor, bytes_of(tensor)):
            with suppress(TypeError, ValueError, KeyError):
                arrays[position] = numpy_helper.to_array(tensor)
                arrays[position].flags.writeable = False
    if not arrays:
        return model, []
    light = onnx.ModelProto()
    _copy_without(model, light, "graph")
    _copy_without(model.graph, light.graph, "initializer")
    light.graph.initializer.extend(
        referring(tensor, arrays[position]) if position in arrays else tensor
        for position, tensor in enumerate(model.graph.initializer)
    )
    return light, list(arrays.values())


def _copy_without(message: Message, copy: Message, left_out: str) -> None:
    for field, value in message.ListFields():
        if field.name == left_out:
            continue
        if isinstance(value, (int, float, str, bytes)):
            setattr(copy, field.name, value)
        elif isinstance(value, Message):
            getattr(copy, field.name).CopyFrom(value)
        else:
            getattr(copy, field.name).extend(value)


def stamp_of(status: os.stat_result) -> str:
    """Return a text that identifies a file's version by inode, size and times."""
    return f"{status.st_dev}:{status.st_ino}:{status.st_size}:{status.st_mtime_ns}:{status.st_ctime_ns}"


def set_place(tensor: TensorProto, place: Mapping[str, str]) -> None:
    """Store a reference in a tensor, instead of contents or another reference."""
    tensor.ClearField("raw_data")
    tensor.ClearField("external_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in place.items():
        tensor.external_data.add(key=key, value=value)


def identity_of(tensor: TensorProto) -> Hashable:
    """Return a key for the place, type and dimensions of a reference."""
    return (*((entry.key, entry.value) for entry in tensor.external_data), tensor.data_type, *tensor.dims)


def _looked_up(tensor: TensorProto) -> Array:
    place = place_of(tensor)
    contents = _PLACES[place[_KIND]](place)
    contents.flags.writeable = False
    array = contents.view(helper.tensor_dtype_to_np_dtype(tensor.data_type)).reshape(tuple(tensor.dims))
    release = partial(_release_pages, weakref.ref(array)) if place[_KIND] == MAPPED else None
    know_contents(array, (*sorted(place.items()), dtype_name(array.dtype), array.shape), release)
    return array


def _release_pages(reference: weakref.ref[Array]) -> None:
    """Drop a mapped array's pages from memory; the next access maps them again."""
    array = reference()
    base = None if array is None else array.base
    view = None if base is None else base.base
    file = view.obj if isinstance(view, memoryview) else view
    if array is None or not isinstance(file, mmap.mmap) or not hasattr(file, "madvise"):
        return
    start = array.__array_interface__["data"][0] - base.__array_interface__["data"][0]
    first, end = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, (start + array.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
    if end > first:
        file.madvise(mmap.MADV_DONTNEED, first, end - first)


def _mapped(place: Mapping[str, str]) -> Array:
    offset, length = int(place["offset"]), int(place["length"])
    file_bytes = _shared((place["location"], place["stamp"]), lambda: _mapped_file(place))
    return file_bytes[offset : offset + length]


def _mapped_file(place: Mapping[str, str]) -> Array:
    with _opened(place) as file:
        return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)


def _read_location(place: Mapping[str, str]) -> Array:
    length = int(place["length"])
    with _opened(place) as file:
        contents = np.fromfile(file, np.uint8, length, offset=int(place["offset"]))
    if len(contents) < length:
        raise _changed(place)
    return contents


def _raise_missing(place: Mapping[str, str]) -> Array:
    # the creator of a reference must keep its array alive
    raise RuntimeError(f"the in-memory array of reference {place['location']} was freed before it was read")


_PLACES: Mapping[str, Callable[[Mapping[str, str]], Array]] = {
    MAPPED: _mapped,
    READ: _read_location,
    MEMORY: _raise_missing,
}


@contextmanager
def _opened(place: Mapping[str, str]) -> Iterator[Any]:
    try:
        file = Path(place["location"]).open("rb", buffering=0)  # noqa: SIM115  closed below
    except OSError as error:
        raise ModelFileError(
            f"file {place['location']!r}, which holds weights of the model, cannot be read any more: "
            f"{error.strerror}; put it back, or load the model again"
        ) from error
    with file:
        if stamp_of(os.fstat(file.fileno())) != place["stamp"]:
            raise _changed(place)
        yield file


def _changed(place: Mapping[str, str]) -> ModelFileError:
    return ModelFileError(
        f"file {place['location']!r}, which holds weights of the model, has changed since the model was loaded; "
        "load the model again"
    )


def _shared(key: Hashable, make: Callable[[], Array]) -> Array:
    reference = _living.get(key)
    array = None if reference is None else reference()
    return _keep(key, make()) if array is None else array


def _keep(key: Hashable, array: Array) -> Array:
    _living[key] = weakref.ref(array, partial(_living.pop, key))
    return array


_LEAST_BYTES = 1 << 24
"""Minimum bytes for which threads are started; for fewer bytes, reading without threads is faster."""
_MOST_THREADS = 4


class ReadingAhead:
    """Prefetcher of tensors that are read, not mapped.

    It is idle unless a total of 16 MiB or more is not yet in memory. While the arrays live, `array_of` returns them.
    `array_of` also reports errors of unreadable tensors, which are skipped here.
    """

    def __init__(self, tensors: Iterable[TensorProto]) -> None:
        pending_tensors = [tensor for tensor in tensors if is_read(tensor) and not is_in_memory(tensor)]
        if sum(map(bytes_of, pending_tensors)) < _LEAST_BYTES:
            pending_tensors = []
        self._left = pending_tensors
        self._arrays: list[Array] = []
        self._helpers = [
            Thread(target=_read_pending, args=(pending_tensors, self._arrays), daemon=True)
            for _ in range(min(os.cpu_count() or 1, _MOST_THREADS, len(pending_tensors)) - 1)
        ]
        pending_tensors.reverse()  # taken from the end
        try:
            for helper in self._helpers:
                helper.start()
        except BaseException:
            self.stop()
            raise

    def finish(self) -> list[Array]:
        try:
            _read_pending(self._left, self._arrays)
        finally:
            self.stop()
        for thread in self._helpers:
            thread.join()
        return self._arrays

    def stop(self) -> None:
        self._left.clear()


def read_ahead(tensors: Iterable[TensorProto]) -> list[Array]:
    """Read tensors like `ReadingAhead`; return arrays, which `array_of` finds while they live."""
    return ReadingAhead(tensors).finish()


def _read_pending(pending_tensors: list[TensorProto], arrays: list[Array]) -> None:
    while pending_tensors:
        try:
            arrays.append(array_of(pending_tensors.pop()))
        except IndexError:  # another thread took the last one
            return
        except MemoryError:
            pending_tensors.clear()
        except (ModelFileError, TypeError, ValueError, KeyError):
            continue
