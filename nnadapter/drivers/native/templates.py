"""A model of adapter IR for one set of sizes after the other -> NNAdapterModel: put together once, then numbers alone.

1. Once per class of shapes each model is built as any other, at the sizes that it was traced at, and becomes a `Block`.
2. Where numbers stand in it that hang on sizes is looked up: dimensions, bytes, attributes; and contents that do.
3. At new sizes these are written for all models at once that are filled then, in one piece of memory, which lives as
   long as a program of one of them. No operand or operation is made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np

from nnadapter.drivers.native.blocks import WORD, Block, JoinedBlocks
from nnadapter.drivers.native.models import aligned, build, contents
from nnadapter.drivers.native.structures import CLASSES, Holder, read_pointers
from nnadapter.errors import InvalidModelError
from nnadapter.ir.filled_model import Replay, SpecializableModel, SpecializationGroup, SpecializedModel
from nnadapter.ir.operand import PACKED, Array, OperandType
from nnadapter.ir.operations import schema_of
from nnadapter.ir.replaying import taking
from nnadapter.ir.schema import AttributeKind, AttributeValue
from nnadapter.ir.structure import numbers, with_numbers
from nnadapter.ir.tracing import Traced, current, is_traced
from nnadapter.process.cache import Cache

_MOST_JOINED = 16
"""Different sets of models that are filled at once."""


@dataclass(frozen=True, slots=True)
class _Bytes:
    """Where the bytes of an operand stand, and what they are the product of."""

    place: int
    factor: int
    numbers: tuple[int, ...]


class _Template:
    """NNAdapterModel of a model of traced numbers, and where its sizes stand."""

    def __init__(self, of: SpecializableModel) -> None:
        traced = of.model
        plain = with_numbers(traced, list(map(current, numbers(traced))))
        self.holder = Holder()
        root = build(plain, self.holder)
        self.block = Block(self.holder, root)
        model_struct = CLASSES["Model"].from_address(root)
        integers, reals = list[tuple[int, int]](), list[tuple[int, int]]()
        self.bytes, self.data = list[_Bytes](), dict[int, int]()
        for index, address in enumerate(read_pointers(model_struct.operands, model_struct.operand_count)):
            assert address is not None, "it was made"
            operand, type_ = CLASSES["Operand"].from_address(address), traced.operands[index].type
            if is_traced(type_.dimensions):
                integers += _of_list(self.block.place(operand.dimensions), type_.dimensions)
                self.bytes.append(_bytes(self.block.place(address, "bytes", "Operand"), type_))
            if index in of.given:
                self.data[index] = self.block.place(address, "data", "Operand")
        for index, address in enumerate(read_pointers(model_struct.operations, model_struct.operation_count)):
            assert address is not None, "it was made"
            operation, type_name = CLASSES["Operation"].from_address(address), traced.operations[index].type
            kinds = {row.name: row.kind for row in schema_of(type_name).attributes}
            addresses = read_pointers(operation.attributes, operation.attribute_count)
            for (name, value), place in zip(traced.operations[index].attributes.items(), addresses, strict=True):
                if is_traced(value) and place is not None:
                    into = reals if kinds[name] in _REAL else integers
                    into += self._of_attribute(place, value)
        self.integers: Sequence[tuple[int, int]] = integers
        """Places of words, and the numbers that stand there."""
        self.reals: Sequence[tuple[int, int]] = reals

    def _of_attribute(self, address: int, value: AttributeValue) -> Iterator[tuple[int, int]]:
        if isinstance(value, tuple):
            return _of_list(self.block.place(CLASSES["Attribute"].from_address(address).value.integers), value)
        return _of_list(self.block.place(address, "value", "Attribute"), (value,))


_REAL = (AttributeKind.FLOAT, AttributeKind.FLOATS)


class ModelTemplates:
    """NNAdapterModels of models that are filled together."""

    def __init__(self, of: SpecializationGroup) -> None:
        self._templates = {model.place: _Template(model) for model in of.models if not _has_packed_sizes(model)}
        """By the places of their models."""
        self._joined: Cache[tuple[int, ...], _Joined] = Cache("models in C that are filled at once", _MOST_JOINED)

    def build(self, model: SpecializedModel, holder: Holder) -> int | None:
        """The address of one of the models, see `models.build`; None for one that is built anew at each sizes.

        Raises:
            InvalidModelError: numbers of one of them have more than 64 bits.
        """
        place = model.of.place
        if place not in self._templates:
            return None
        filled: _SpecializedStructs = model.replay.prepared(self, self._filled)
        start = filled.starts.pop(place, None)
        if start is None:  # the model came later, or is there twice
            filled = self._filled_at((place,), model.replay)
            start = filled.starts.pop(place)
        template = self._templates[place]
        for index, value in model.contents.items():
            filled.words[start + template.data[index]] = contents(holder.keep(aligned(value))) or 0
        holder.keep((filled.words, template.holder))
        return filled.address + start * WORD + template.block.root

    def _filled(self, replay: Replay) -> _SpecializedStructs:
        return self._filled_at(tuple([place for place in replay.places if place in self._templates]), replay)

    def _filled_at(self, places: tuple[int, ...], replay: Replay) -> _SpecializedStructs:
        joined = self._joined.made(places, lambda: _Joined({place: self._templates[place] for place in places}))
        try:
            return joined.filled(replay.known)
        except OverflowError as error:
            raise InvalidModelError(f"sizes are too large for a driver in C: {error}; give smaller inputs") from error


class _SpecializedStructs(NamedTuple):
    """Models at some sizes, in one piece of memory."""

    words: Array
    address: int
    starts: dict[int, int]
    """By the places of those that nobody has yet, the word where each begins."""


class _Joined:
    """Models that are filled at once, by their places: those of a plan that others do not have yet."""

    def __init__(self, templates: Mapping[int, _Template]) -> None:
        self._blocks = JoinedBlocks([template.block for template in templates.values()])
        self._starts = dict(zip(templates, self._blocks.starts, strict=False))
        moved = list(zip(self._blocks.starts, templates.values(), strict=False))
        self._integers = _Numbers(
            (start + word, number) for start, template in moved for word, number in template.integers
        )
        self._reals = _Numbers((start + word, number) for start, template in moved for word, number in template.reals)
        self._products = _Products((start, product) for start, template in moved for product in template.bytes)

    def filled(self, values: Sequence[Any]) -> _SpecializedStructs:
        """Write the numbers of a replay.

        Raises:
            OverflowError: one does not fit.
        """
        words = self._blocks.words()
        self._integers.write(words, values)
        self._reals.write(words.view(np.float64), values)
        self._products.write(words, values)
        return _SpecializedStructs(words, self._blocks.placed(words), self._starts.copy())


class _Numbers:
    """Numbers of a replay, by the words where they stand."""

    def __init__(self, standing: Iterable[tuple[int, int]]) -> None:
        numbers = list(standing)
        self._words = np.array([word for word, _ in numbers], np.intp)
        self._take = taking([number for _, number in numbers])

    def write(self, words: Array, values: Sequence[Any]) -> None:
        """Write them all."""
        words[self._words] = self._take(values)


class _Products:
    """Products of numbers of a replay, by the words where they stand."""

    def __init__(self, standing: Iterable[tuple[int, _Bytes]]) -> None:
        different = dict[tuple[int, tuple[int, ...]], list[int]]()
        for start, product in standing:
            different.setdefault((product.factor, product.numbers), []).append(start + product.place)
        self._different = tuple(different)
        """A factor and numbers each: there are few, as a model has few forms of tensors."""
        self._words = np.array([word for words in different.values() for word in words], np.intp)
        self._of = np.repeat(np.arange(len(different)), list(map(len, different.values())))
        """Per word which product stands there."""

    def write(self, words: Array, values: Sequence[Any]) -> None:
        """Write them all.

        Raises:
            OverflowError: one does not fit.
        """
        products = [factor * prod(map(values.__getitem__, numbers)) for factor, numbers in self._different]
        words[self._words] = np.array(products, np.int64)[self._of]


def _has_packed_sizes(of: SpecializableModel) -> bool:
    """Whether elements of four bits have open sizes: their bytes are no product."""
    packed = (operand.type for operand in of.model.operands if operand.type.dtype in PACKED)
    return any(is_traced(type_.dimensions) for type_ in packed) or any(
        of.model.operands[index].type.dtype in PACKED for index in of.given
    )


def _of_list(start: int, values: Sequence[Any]) -> Iterator[tuple[int, int]]:
    """The places of traced numbers in a list of 8-byte numbers that begins there, and which they are."""
    return ((start + place, value.number) for place, value in enumerate(values) if isinstance(value, Traced))


def _bytes(place: int, type_: OperandType) -> _Bytes:
    dimensions: tuple[Any, ...] = type_.dimensions
    plain = prod(size for size in dimensions if not isinstance(size, Traced))
    traced = tuple(size.number for size in dimensions if isinstance(size, Traced))
    return _Bytes(place, plain * int(type_.dtype.itemsize), traced)
