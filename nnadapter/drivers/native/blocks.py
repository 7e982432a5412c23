"""Structures of C in one block of memory, which is copied as it is: pointers within it move along."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from nnadapter.drivers.native.codes import AttributeCode
from nnadapter.drivers.native.structures import CLASSES, Holder
from nnadapter.ir.operand import Array

WORD = 8
"""Bytes of what a block is counted in; everything in it begins at such a place."""
_LISTS = (AttributeCode.KIND_INTS, AttributeCode.KIND_FLOATS, AttributeCode.KIND_STRINGS)


class Block:
    """What a holder made, as a pattern for others.

    Args:
        holder: what it made stays as it is, and what lies outside (constants, texts) is pointed to by all copies, so
            whoever has one keeps the holder.
        root: the address of a structure among them.
    """

    def __init__(self, holder: Holder, root: int) -> None:
        things = [each for each in holder.kept if isinstance(each, (ctypes.Structure, ctypes.Array))]
        self._starts: dict[int, int] = {}
        count = 0
        for thing in things:
            self._starts[ctypes.addressof(thing)] = count
            count += -(-ctypes.sizeof(thing) // WORD)
        self._words: Array = np.zeros(count, np.int64)
        self._moves: Array = np.zeros(count, np.int64)
        """1 where a word points into the block."""
        every = self._words.view(np.uint8)
        for thing in things:
            place = self._starts[ctypes.addressof(thing)] * WORD
            every[place : place + ctypes.sizeof(thing)] = np.frombuffer(bytes(thing), np.uint8)
            for word in _pointers(thing):
                start = self._starts.get(int(self._words[place // WORD + word]))
                if start is not None:
                    self._words[place // WORD + word] = start * WORD
                    self._moves[place // WORD + word] = 1
        self.root = self._starts[root] * WORD
        """Where the structure begins that it is about, in bytes."""

    def __len__(self) -> int:
        """Its words."""
        return len(self._words)

    def place(self, address: int, member: str = "", structure: str = "") -> int:
        """The word where a structure or an array lies, by the address where it lay; or where a member of it does."""
        offset = getattr(CLASSES[structure], member).offset if member else 0
        return self._starts[address] + int(offset) // WORD

    def with_words(self, places: Array, values: Sequence[int]) -> Block:
        """The same with other numbers in some words."""
        other = Block.__new__(Block)
        words = self._words.copy()
        words[places] = values
        other.__dict__.update(self.__dict__, _words=words)
        return other

    def copied(self) -> tuple[Array, int]:
        """A copy as words, and the address of its root."""
        words = self._words.copy()
        return words, _placed(words, self._moves) + self.root


class JoinedBlocks:
    """Blocks one after the other: numbers are written into all at once, and all are one copy."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self.starts = tuple(accumulate(map(len, blocks), initial=0))
        """The word at which each begins, and the end."""
        placed = list(zip(self.starts, blocks, strict=False))
        self._moves: Array = np.concatenate([_NONE, *(block._moves for block in blocks)])
        moved = (block._words + block._moves * (start * WORD) for start, block in placed)
        self._words: Array = np.concatenate([_NONE, *moved])

    def words(self) -> Array:
        """The words of a copy, to be written into and then placed."""
        return self._words.copy()

    def placed(self, words: Array) -> int:
        """Have the pointers of a copy point into it, and return its address."""
        return _placed(words, self._moves)


_NONE: Array = np.zeros(0, np.int64)


def _placed(words: Array, moves: Array) -> int:
    address = ctypes.addressof(ctypes.c_char.from_buffer(words.data))  # a quarter of what numpy takes to say it
    words += moves * address
    return address


def _pointers(thing: Any) -> Iterable[int]:
    """The words of a structure or an array that point to what a holder made."""
    if isinstance(thing, ctypes.Array):
        return range(len(thing)) if thing._type_ is ctypes.c_void_p else ()
    return _members(thing)


def _members(structure: Any) -> Iterator[int]:
    for name, type_ in structure._fields_:
        points = type_ is ctypes.c_void_p or (issubclass(type_, ctypes.Union) and structure.kind in _LISTS)
        if points:
            yield getattr(type(structure), name).offset // WORD
