"""Models as protobuf bytes and files, with weights in a memory-mapped data file.

The data file has one block per distinct contents, at a multiple of 64 bytes: elements in C order, little-endian, two
4-bit elements per byte, the first in the low bits.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from hashlib import sha256
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO, TypeVar

import numpy as np

from nnadapter import limits
from nnadapter.errors import InvalidModelError, ModelFileError
from nnadapter.files.atomic_files import replace_file
from nnadapter.files.messages import Message, Messages
from nnadapter.ir.deferred_arrays import pack, unpack
from nnadapter.ir.model import Model, Operation
from nnadapter.ir.operand import (
    PACKED,
    Array,
    DataType,
    Layout,
    Lifetime,
    Operand,
    OperandType,
    Quantization,
    flat_bytes,
)
from nnadapter.ir.operations import schema_of
from nnadapter.ir.protobuf.descriptor import DESCRIPTOR
from nnadapter.ir.schema import AttributeValue
from nnadapter.ir.verification import check_attributes, verify
from nnadapter.records import dataclass

ADVICE = "it is damaged or from another program; write it again"
_MESSAGES = Messages(DESCRIPTOR, "nnadapter.ir", InvalidModelError, "model", ADVICE, limits.MESSAGE_BYTES)

new, parse, refuse_unknown = _MESSAGES.new, _MESSAGES.parse, _MESSAGES.refuse_unknown

__all__ = ["ADVICE", "Message", "new", "parse", "refuse_unknown"]


_Enum = TypeVar("_Enum", bound=StrEnum)


def write_operand(message: Message, operand: Operand) -> None:
    type_ = operand.type
    message.name = operand.name
    message.data_type = type_.dtype.value
    message.dimensions.extend(type_.dimensions)
    message.layout = type_.layout.value
    message.lifetime = operand.lifetime.value
    if type_.quantization is not None:
        message.quantization.scale.extend(type_.quantization.scale)
        message.quantization.zero_point.extend(type_.quantization.zero_point)
        if type_.quantization.axis is not None:
            message.quantization.axis = type_.quantization.axis


def read_operand(message: Message) -> Operand:
    """Return the operand in a message, without contents. Raises InvalidModelError."""
    dimensions = tuple(message.dimensions)
    if len(dimensions) > limits.RANK or any(size < 0 for size in dimensions):
        raise InvalidModelError(
            f"operand {message.name!r} has rank {len(dimensions)} and dimensions {list(dimensions[: limits.RANK])}, "
            f"expected rank {limits.RANK} or less, and no size below 0; {ADVICE}"
        )
    type_ = OperandType(
        _member(DataType, message.data_type, message.name),
        dimensions,
        _member(Layout, message.layout, message.name),
        _quantization(message.quantization) if message.HasField("quantization") else None,
    )
    return Operand(message.name, type_, _member(Lifetime, message.lifetime, message.name))


def _quantization(message: Message) -> Quantization:
    axis = message.axis if message.HasField("axis") else None
    return Quantization(scale=tuple(message.scale), zero_point=tuple(message.zero_point), axis=axis)


def _member(kind: type[_Enum], value: str, operand: str) -> _Enum:
    try:
        return kind(value)
    except ValueError:
        raise InvalidModelError(
            f"operand {operand!r} has the {kind.__name__} {value!r}, expected one of {', '.join(kind)}; {ADVICE}"
        ) from None


ALIGNMENT = 64


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Contents of one or more equal constants in the data file."""

    offset: int
    data: Array
    digest: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """Contents of a model's data file."""

    blocks: tuple[Block, ...]
    by_operand: Mapping[int, Block]

    @property
    def digest(self) -> str:
        hasher = sha256()
        for block in self.blocks:
            hasher.update(block.digest)
        return hasher.hexdigest()

    def write(self, file: BinaryIO) -> None:
        for block in self.blocks:
            file.write(block.data.data)
            file.write(bytes(-block.data.nbytes % ALIGNMENT))


def verified_weights(model: Model) -> Weights:
    """Verify a model, and return the contents of its constants; equal constants share a block."""
    if not isinstance(model, Model):
        raise InvalidModelError(f"expected a model from ModelBuilder.finish, got {type(model).__name__}")
    verify(model)
    _check_byte_order()
    blocks: dict[bytes, Block] = {}
    by_operand = {}
    offset = 0
    for index, operand in enumerate(model.operands):
        if operand.value is None:
            continue
        data = _as_bytes(operand.value, operand.type.dtype)
        digest = sha256(data.data).digest()
        if digest not in blocks:
            blocks[digest] = Block(offset, data, digest)
            offset += data.nbytes + -data.nbytes % ALIGNMENT
        by_operand[index] = blocks[digest]
    return Weights(tuple(blocks.values()), by_operand)


def _as_bytes(value: Array, dtype: DataType) -> Array:
    array = np.ascontiguousarray(value, dtype.array_type)
    return pack(array) if dtype in PACKED else flat_bytes(array)


class Contents:
    """Reader of constants in data files. `files` returns a file's bytes by name. With `check`, digests are verified."""

    def __init__(self, files: Callable[[str], memoryview], *, check: bool) -> None:
        _check_byte_order()
        self._files = files
        self._check = check
        self._opened: dict[str, memoryview] = {}
        self._blocks: dict[tuple[str, int, int, bytes], Array] = {}
        self._unpacked: dict[tuple[int, DataType, int], Array] = {}

    def add(self, references: Iterable[Message]) -> None:
        """Check references before `array` reads them. Raises ModelFileError for missing files or wrong contents."""
        keys = {
            (reference.file, reference.offset, reference.length, bytes(reference.sha256)) for reference in references
        }
        for key in sorted(keys):
            self._check_place(*key[:3])
        for (file, offset, length), (other, start, _) in pairwise(sorted({key[:3] for key in keys if key[2]})):
            if file == other and offset + length > start:
                raise ModelFileError(f"blocks of {file!r} at {offset} and {start} overlap; {ADVICE}")
        for key in keys:
            self._blocks[key] = self._block(*key)

    def array(self, reference: Message, operand: Operand) -> Array:
        """Return a constant as a read-only view of the file, or a copy if it has 4 bits. Raises InvalidModelError."""
        type_, name = operand.type, operand.name
        block = self._blocks[reference.file, reference.offset, reference.length, bytes(reference.sha256)]
        if block.nbytes != type_.nbytes:
            raise InvalidModelError(
                f"constant {name!r} is {type_} and has {block.nbytes} bytes, expected {type_.nbytes}; {ADVICE}"
            )
        try:
            array = self._elements(block, type_).reshape(type_.dimensions)
        except ValueError as error:
            raise InvalidModelError(
                f"constant {name!r} is {type_}, which is not a valid array: {error}; {ADVICE}"
            ) from error
        if self._check and type_.dtype is DataType.BOOL and (block > 1).any():
            raise InvalidModelError(f"constant {name!r} has bytes that are not bools, expected 0 and 1; {ADVICE}")
        return array

    def _elements(self, block: Array, type_: OperandType) -> Array:
        if type_.dtype not in PACKED:
            return block.view(type_.dtype.array_type)
        key = (id(block), type_.dtype, type_.size)
        if key not in self._unpacked:
            array = self._unpacked[key] = unpack(block, type_.dtype, (type_.size,))
            array.flags.writeable = False
        return self._unpacked[key]

    def _check_place(self, file: str, offset: int, length: int) -> None:
        if file not in self._opened:
            self._opened[file] = self._files(file)
        size = self._opened[file].nbytes
        if offset % ALIGNMENT or offset + length > size:
            raise ModelFileError(
                f"a constant has {length} bytes at {offset} of {file!r}, expected a multiple of {ALIGNMENT} and an end "
                f"within its {size} bytes; {ADVICE}"
            )

    def _block(self, file: str, offset: int, length: int, digest: bytes) -> Array:
        data = self._opened[file][offset : offset + length]
        if self._check and sha256(data).digest() != digest:
            raise ModelFileError(f"the {length} bytes at {offset} of {file!r} do not match their digest; {ADVICE}")
        array = np.frombuffer(data, np.uint8) if length else np.empty(0, np.uint8)
        array.flags.writeable = False
        return array


def _check_byte_order() -> None:
    if sys.byteorder != "little":
        raise ModelFileError("weights are little-endian and this machine is not; use a little-endian machine")


FORMAT = "nnadapter model"
VERSION = 1
"""Version of the format; newer ones are rejected."""
BEGINNING = b"\x0a\x0f" + FORMAT.encode()
"""First bytes of a file: field 1 of `File`."""


def to_bytes(model: Model, file: str = "weights") -> tuple[bytes, bytes]:
    """Return the bytes of a model and of its data file, called `file` in the model. The result is deterministic.

    Raises:
        InvalidModelError: not a valid model, or a number does not fit the format.
    """
    weights = verified_weights(model)
    written = BytesIO()
    weights.write(written)
    return message_of(model, weights, lambda block: (file, block.offset)), written.getvalue()


def from_bytes(contents: bytes, files: Mapping[str, bytes], *, check_contents: bool = True) -> Model:
    """Return the model that `to_bytes` wrote. `files` maps names of data files to bytes; constants are views of them.

    With `check_contents`, digests are verified, which reads every byte.

    Raises:
        ModelFileError: a data file is missing or does not match its digest.
        InvalidModelError: not a valid model, or of a newer version.
    """
    if not isinstance(files, Mapping):
        raise InvalidModelError(f"data files are {type(files).__name__}, expected a mapping like {{'weights': data}}")

    def named(name: str) -> memoryview:
        if name not in files:
            raise ModelFileError(f"the model needs data file {name!r}, but files has {sorted(map(str, files))}; add it")
        try:
            return memoryview(files[name]).toreadonly()
        except TypeError:
            raise InvalidModelError(f"data file {name!r} is {type(files[name]).__name__}, expected bytes") from None

    return read_model(contents, named, check_contents=check_contents)


def to_parts(model: Model) -> tuple[bytes, dict[str, memoryview]]:
    """Return the bytes of a model, and a file per distinct constant, named by its hexadecimal SHA-256."""
    weights = verified_weights(model)
    message = message_of(model, weights, lambda block: (block.digest.hex(), 0))
    return message, {block.digest.hex(): block.data.data for block in weights.blocks}


def message_of(model: Model, weights: Weights, place: Callable[[Block], tuple[str, int]]) -> bytes:
    """Return the bytes of a `File` message. `place` returns a block's file and offset. Raises InvalidModelError."""
    file_message, message = new("File"), new("Model")
    try:
        _write_model(message, model, weights, place)
    except (TypeError, ValueError) as error:
        raise InvalidModelError(
            f"the model cannot be written, because the file format cannot hold a number or text in it: {error}"
        ) from error
    file_message.format, file_message.version = FORMAT, VERSION
    file_message.model = message.SerializeToString(deterministic=True)
    file_message.sha256 = sha256(file_message.model).digest()
    written: bytes = file_message.SerializeToString(deterministic=True)
    return written


def _write_model(message: Message, model: Model, weights: Weights, place: Callable[[Block], tuple[str, int]]) -> None:
    for index, operand in enumerate(model.operands):
        row = message.operands.add()
        write_operand(row, operand)
        block = weights.by_operand.get(index)
        if block is not None:
            row.contents.file, row.contents.offset = place(block)
            row.contents.length, row.contents.sha256 = block.data.nbytes, block.digest
    for operation in model.operations:
        _write_operation(message.operations.add(), operation)
    message.inputs.extend(model.inputs)
    message.outputs.extend(model.outputs)


def _write_operation(message: Message, operation: Operation) -> None:
    message.type = operation.type
    message.inputs.extend(operation.inputs)
    message.outputs.extend(operation.outputs)
    message.origins.extend(operation.origins)
    for attribute in schema_of(operation.type).attributes:
        row = message.attributes.add()
        row.name = attribute.name
        value = operation.attributes[attribute.name]
        if isinstance(value, tuple):  # fields are named after kinds
            inner = getattr(row, attribute.kind.value)
            inner.SetInParent()
            inner.values.extend(value)
        else:
            setattr(row, attribute.kind.value, value)


def read_model(contents: bytes, files: Callable[[str], memoryview], *, check_contents: bool) -> Model:
    """Read a model, see `from_bytes`."""
    message = _opened(contents)
    constants = Contents(files, check=check_contents)
    constants.add(operand.contents for operand in message.operands if operand.HasField("contents"))
    try:
        model = Model(
            tuple(_read_operand(row, constants) for row in message.operands),
            tuple(_read_operation(row) for row in message.operations),
            tuple(message.inputs),
            tuple(message.outputs),
        )
        verify(model)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:  # shape rules may fail on absurd numbers
        raise InvalidModelError(f"the model is inconsistent: {type(error).__name__}: {error}; {ADVICE}") from error
    return model


def _opened(contents: bytes) -> Message:
    if not isinstance(contents, (bytes, bytearray)):
        raise InvalidModelError(
            f"expected the bytes of a model, got {type(contents).__name__}; pass the first result of `to_bytes`"
        )
    if not contents.startswith(BEGINNING):
        raise InvalidModelError(f"{contents[:17]!r}… is not the start of an nnadapter model; write one with `save`")
    file_message = parse("File", contents)
    if not 1 <= file_message.version <= VERSION:
        raise InvalidModelError(
            f"the model has format version {file_message.version}, and this nnadapter supports 1 to {VERSION}; "
            "update nnadapter"
        )
    refuse_unknown(file_message)
    if file_message.ByteSize() != len(contents):  # protobuf keeps the last of duplicate fields
        raise InvalidModelError(
            f"the model has {len(contents)} bytes, but {file_message.ByteSize()} without duplicate fields; {ADVICE}"
        )
    if sha256(file_message.model).digest() != file_message.sha256:
        raise InvalidModelError(f"the model does not match its digest; {ADVICE}")
    message = parse("Model", file_message.model)
    refuse_unknown(message)
    return message


def _read_operand(message: Message, contents: Contents) -> Operand:
    operand = read_operand(message)
    if not message.HasField("contents"):
        return operand
    return Operand(operand.name, operand.type, operand.lifetime, contents.array(message.contents, operand))


def _read_operation(message: Message) -> Operation:
    attributes = {row.name: _value(row) for row in message.attributes}
    if len(attributes) != len(message.attributes):
        raise InvalidModelError(f"{message.type}: an attribute occurs twice, expected each once; {ADVICE}")
    complete = check_attributes(schema_of(message.type), attributes)
    return Operation(message.type, tuple(message.inputs), tuple(message.outputs), complete, tuple(message.origins))


def _value(message: Message) -> AttributeValue:
    kind = message.WhichOneof("value")
    if kind is None:
        raise InvalidModelError(f"attribute {message.name!r} has no value, expected one; {ADVICE}")
    value: AttributeValue = getattr(message, kind)
    return tuple(value.values) if kind in ("ints", "floats") else value  # type: ignore[union-attr]


_FORBIDDEN = frozenset("/\\:\0")
_DIGITS = 16


def save(model: Model, path: str | os.PathLike[str]) -> None:
    """Write a model to `path`, and its weights, if any, to `path.DIGEST.weights`.

    Files appear when complete, the model last.

    Raises:
        InvalidModelError: not a valid model, or it does not fit the format.
        ModelFileError: a file cannot be written, or `path` is a folder.
    """
    weights = verified_weights(model)
    target = _path(path)
    if not target.name or target.is_dir():
        raise ModelFileError(f"{str(target)!r} is a folder; give the path of a file in it")
    data = target.with_name(f"{target.name}.{weights.digest[:_DIGITS]}.weights")
    contents = message_of(model, weights, lambda block: (data.name, block.offset))
    try:
        if weights.blocks:
            replace_file(data, weights.write)
        replace_file(target, lambda file: file.write(contents))
    except OSError as error:
        raise ModelFileError(f"{str(target)!r} cannot be written: {_error_reason(error)}; give another path") from error


def load(path: str | os.PathLike[str], *, check_contents: bool = True) -> Model:
    """Return the model at `path`, with memory-mapped constants.

    Args:
        path: a file from `save`; while the model lives, its files may be replaced but not modified.
        check_contents: verify digests, which reads every byte.

    Raises:
        ModelFileError: a file is missing, unreadable, in another folder, or does not match its digest.
        InvalidModelError: not a valid model, or of a newer version.
    """
    source = _path(path)
    try:
        if source.exists() and not source.is_file():  # reading a pipe may never end
            raise ModelFileError(f"{str(source)!r} is not a file; give the path of a model")
        with source.open("rb") as file:
            contents = file.read(len(BEGINNING))
            if contents == BEGINNING:  # the file may be large if it is not a model
                contents += file.read(_remaining(file, source))
    except OSError as error:
        raise ModelFileError(
            f"{str(source)!r} cannot be read: {_error_reason(error)}; give the path of a model"
        ) from error
    if not contents.startswith(BEGINNING):
        raise InvalidModelError(f"{str(source)!r} is not an nnadapter model; write one with `save`")
    folder = source.parent
    return read_model(contents, lambda name: _mapped(folder, name), check_contents=check_contents)


def _path(path: object) -> Path:
    if not isinstance(path, (str, os.PathLike)):
        raise ModelFileError(f"a model's path is {path!r}, expected a str or a path")
    return Path(path)


def _mapped(folder: Path, name: str) -> memoryview:
    if name in ("", ".", "..") or not _FORBIDDEN.isdisjoint(name):
        raise ModelFileError(f"the model's data file is called {name!r}, expected a plain file name in its folder")
    try:
        path = (folder / name).resolve()
        if path.parent != folder.resolve():
            raise ModelFileError(f"the model's data file {name!r} is at {str(path)!r}, expected the model's folder")
        if not path.is_file():
            raise ModelFileError(f"the model's data file {name!r} is not in {str(folder)!r}; put it there")
        with path.open("rb") as file:
            if not os.fstat(file.fileno()).st_size:  # mmap rejects empty files
                return memoryview(b"")
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, RuntimeError) as error:  # RuntimeError: symbolic link loop
        raise ModelFileError(f"the model's data file {name!r} cannot be read: {_error_reason(error)}") from error


def _remaining(file: BinaryIO, source: Path) -> int:
    size = os.fstat(file.fileno()).st_size
    if size > limits.MESSAGE_BYTES:
        raise ModelFileError(
            f"{str(source)!r} has {size} bytes, expected at most {limits.MESSAGE_BYTES} without the weights"
        )
    return size


def _error_reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
