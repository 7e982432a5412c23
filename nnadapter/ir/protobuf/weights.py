"""Contents of constants as blocks of a data file, each once, and back as arrays that look into the file.

A block begins at a multiple of 64 bytes. It holds elements in C order, little-endian; two 4-bit elements to a byte, the
first in the low bits.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from typing import BinaryIO

import numpy as np

from nnadapter.errors import InvalidModelError, ModelFileError
from nnadapter.ir.model import Model
from nnadapter.ir.operand import PACKED, Array, DataType, Operand, OperandType
from nnadapter.ir.packing import pack, unpack
from nnadapter.ir.protobuf.messages import ADVICE, Message

ALIGNMENT = 64
"""Bytes; enough for any instruction that reads several elements at once."""


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """A place in the data file."""

    offset: int
    data: Array
    """Bytes, flat."""
    digest: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """The data file of a model."""

    blocks: tuple[Block, ...]
    by_operand: Mapping[int, Block]
    """For every constant, by its position."""

    @property
    def digest(self) -> str:
        """What names the file: the same for the same blocks."""
        hasher = sha256()
        for block in self.blocks:
            hasher.update(block.digest)
        return hasher.hexdigest()

    def write(self, file: BinaryIO) -> None:
        """Write every block."""
        for block in self.blocks:
            file.write(block.data.data)
            file.write(bytes(-block.data.nbytes % ALIGNMENT))


def weights_of(model: Model) -> Weights:
    """Return the contents of all constants; equal ones share a block."""
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
    return pack(array) if dtype in PACKED else array.reshape(-1).view(np.uint8)


class Contents:
    """Arrays of constants, out of data files that somebody else opens.

    Args:
        files: the contents of a data file by its name; raises ModelFileError where there is none.
        check: digests are compared and bools looked at, which reads every byte.
    """

    def __init__(self, files: Callable[[str], memoryview], *, check: bool) -> None:
        _check_byte_order()
        self._files = files
        self._check = check
        self._opened: dict[str, memoryview] = {}
        self._blocks: dict[tuple[str, int, int, bytes], Array] = {}
        self._unpacked: dict[tuple[int, DataType, int], Array] = {}

    def add(self, references: Iterable[Message]) -> None:
        """Look up every block, once.

        Raises:
            ModelFileError: a file is not there, a block is not in it or overlaps another one, or is not what it was.
        """
        keys = {
            (reference.file, reference.offset, reference.length, bytes(reference.sha256)) for reference in references
        }
        for key in sorted(keys):
            self._check_place(*key[:3])
        for (file, offset, length), (other, start, _) in pairwise(sorted({key[:3] for key in keys if key[2]})):
            if file == other and offset + length > start:
                raise ModelFileError(f"blocks of {file!r} at {offset} and {start} overlap, expected none to; {ADVICE}")
        for key in keys:
            self._blocks[key] = self._block(*key)

    def array(self, reference: Message, operand: Operand) -> Array:
        """Return the contents of a constant: read-only, looking into the file but for 4-bit types.

        Raises:
            InvalidModelError: the block does not fit the operand's type.
        """
        type_, name = operand.type, operand.name
        block = self._blocks[reference.file, reference.offset, reference.length, bytes(reference.sha256)]
        if block.nbytes != type_.nbytes:
            raise InvalidModelError(
                f"constant {name!r} is {type_} and has {block.nbytes} bytes, expected {type_.nbytes}; {ADVICE}"
            )
        try:
            array = self._elements(block, type_).reshape(type_.dimensions)
        except ValueError as error:
            raise InvalidModelError(f"constant {name!r} is {type_}, which is no array: {error}; {ADVICE}") from error
        if self._check and type_.dtype is DataType.BOOL and (block > 1).any():
            raise InvalidModelError(f"constant {name!r} has bytes that are no bool, expected 0 and 1; {ADVICE}")
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
            raise ModelFileError(f"the {length} bytes at {offset} of {file!r} are not what they were; {ADVICE}")
        array = np.frombuffer(data, np.uint8) if length else np.empty(0, np.uint8)
        array.flags.writeable = False
        return array


def _check_byte_order() -> None:
    if sys.byteorder != "little":
        raise ModelFileError("weights are little-endian and this machine is not; use another machine")


def references_in(operands: Iterable[Message]) -> Iterator[Message]:
    """The references of those operands that have contents."""
    return (operand.contents for operand in operands if operand.HasField("contents"))
