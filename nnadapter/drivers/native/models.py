"""Adapter IR models as C structures.

A model with dynamic shapes is converted once, with example sizes, to a relocatable block of words (`StructTemplate`). A
specialization copies the blocks of a plan's models, and overwrites the words that depend on sizes. The copy lives as
long as a program of these models.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple

import numpy as np

from nnadapter.drivers.capability import OptionValue
from nnadapter.drivers.native.c_interface import (
    ATTRIBUTE_VALUE,
    CLASSES,
    DATA_TYPES,
    LAYOUTS,
    LIFETIMES,
    UNIONS,
    AttributeCode,
    Holder,
    read,
    read_pointers,
    read_text,
)
from nnadapter.errors import DriverError, InvalidModelError
from nnadapter.ir.deferred_arrays import pack
from nnadapter.ir.model import Model, Operation
from nnadapter.ir.operand import PACKED, Array, Operand, OperandType, Quantization
from nnadapter.ir.operations import schema_of
from nnadapter.ir.schema import AttributeKind, AttributeValue
from nnadapter.ir.structure import (
    Replay,
    SpecializableModel,
    SpecializationGroup,
    SpecializedModel,
    numbers,
    with_numbers,
)
from nnadapter.ir.symbolic_numbers import SymbolicNumber, is_symbolic, size_hint, slot_reader
from nnadapter.process.resources import Cache
from nnadapter.records import dataclass

OPEN = -1
"""Value of NNADAPTER_DYNAMIC_SIZE, for a dynamic dimension. As a size index, it marks a static value."""


class NumberedSizes:
    """Numbered symbolic sizes of a model.

    Sizes that are known to be equal at construction share a number. Later equalities are ignored, so that the model and
    its runs use the same numbers.
    """

    def __init__(self, model: Model) -> None:
        traced = {value.number: value for value in numbers(model) if isinstance(value, SymbolicNumber)}
        firsts = {number: traced_value.trace.representative(number) for number, traced_value in traced.items()}
        self._traced = tuple(dict.fromkeys(firsts.values()))
        places = {number: place for place, number in enumerate(self._traced)}
        self._place: Mapping[int, int] = {number: places[first] for number, first in firsts.items()}
        self._array = ctypes.c_int64 * len(self._traced)

    def __len__(self) -> int:
        return len(self._traced)

    def of(self, sizes: Sequence[Any]) -> list[int]:
        """Return the values of the numbered sizes; `sizes` has all symbolic sizes of a run."""
        return [sizes[number] for number in self._traced]

    def c_array(self, numbers: Sequence[int]) -> Any:
        return self._array(*numbers)

    def positions_of(self, values: Sequence[Any]) -> list[int]:
        return [self._place[value.number] if isinstance(value, SymbolicNumber) else OPEN for value in values]

    def address_of_places(self, holder: Holder, values: Sequence[Any]) -> int | None:
        places = self.positions_of(values)
        return holder.values("i32", places) if any(place != OPEN for place in places) else None


def to_c_sizes(values: Sequence[Any]) -> list[Any]:
    """Replace symbolic values by `OPEN`, C's dynamic dimension."""
    return [OPEN if isinstance(value, SymbolicNumber) else value for value in values]


def symbolic_real_attribute(operation: Operation) -> str:
    """Return the name of a symbolic real attribute, unsupported by C drivers; empty if none."""
    for name, value in operation.attributes.items():
        values = value if isinstance(value, tuple) else (value,)
        if any(isinstance(number, SymbolicNumber) and not isinstance(size_hint(number), int) for number in values):
            return name
    return ""


_KINDS = {kind: AttributeCode[f"KIND_{kind.name}"] for kind in AttributeKind}
_MEMBERS = {code: name for code, (name, _) in zip(AttributeCode, UNIONS["AttributeValue"], strict=True)}
_ELEMENTS = {AttributeCode.KIND_INTS: "i64", AttributeCode.KIND_FLOATS: "f64"}
_OPTION_KINDS: dict[type, AttributeCode] = {
    bool: AttributeCode.KIND_BOOL,
    int: AttributeCode.KIND_INT,
    float: AttributeCode.KIND_FLOAT,
    str: AttributeCode.KIND_STRING,
    tuple: AttributeCode.KIND_STRINGS,
}


def attribute(
    holder: Holder, name: str, kind: AttributeKind, value: AttributeValue, sizes: NumberedSizes | None = None
) -> int:
    """Return the address of a new NNAdapterAttribute."""
    places = None
    if sizes is not None:
        numbers = value if isinstance(value, tuple) else (value,)
        places, plain = sizes.address_of_places(holder, numbers), tuple(to_c_sizes(numbers))
        value = plain if isinstance(value, tuple) else plain[0]
    return _written(holder, name, _KINDS[kind], value, places)


def option(holder: Holder, name: str, value: OptionValue) -> int:
    """Return the address of a new NNAdapterAttribute that describes an option."""
    return _written(holder, name, _OPTION_KINDS[type(value)], value)


def read_attribute(address: int) -> tuple[str, OptionValue]:
    """Return name and value of a property, or of an option's default."""
    structure = read("Attribute", address)
    name, value = read_text(structure.name), structure.value
    readers: dict[int, Any] = {
        AttributeCode.KIND_BOOL: lambda: bool(value.boolean),
        AttributeCode.KIND_INT: lambda: int(value.integer),
        AttributeCode.KIND_FLOAT: lambda: float(value.real),
        AttributeCode.KIND_STRING: lambda: read_text(value.string),
        AttributeCode.KIND_STRINGS: lambda: read_texts(value.strings, structure.count),
    }
    if structure.kind not in readers:
        raise DriverError(
            f"the driver's attribute {name!r} has kind {structure.kind}, expected that of a bool, int, float, "
            "string or strings; report it to the vendor"
        )
    result: OptionValue = readers[structure.kind]()
    return name, result


def read_texts(address: int | None, count: int) -> tuple[str, ...]:
    """Return the strings of a C array."""
    pointers = read_pointers(address, count)
    return tuple(read_text(ctypes.c_char_p(pointer).value) for pointer in pointers)


def _written(holder: Holder, name: str, kind: AttributeCode, value: Any, places: int | None = None) -> int:
    if kind is AttributeCode.KIND_STRING:
        count, encoded_value = 1, value.encode()
    elif kind is AttributeCode.KIND_STRINGS:
        count, encoded_value = len(value), holder.texts(value)
    elif kind in _ELEMENTS:
        count, encoded_value = len(value), holder.values(_ELEMENTS[kind], value)
    else:
        count, encoded_value = 1, value
    union = ATTRIBUTE_VALUE(**{_MEMBERS[kind]: encoded_value})
    return holder.make(
        "Attribute", name=name.encode(), kind=int(kind), count=count, value=holder.keep(union), sizes=places
    )


def build(model: Model, holder: Holder, sizes: NumberedSizes | None = None) -> int:
    """Return the address of a model's C structure. Constants are copied only if they are packed or unaligned."""
    operands = [_operand(holder, operand, sizes) for operand in model.operands]
    operations = [_operation(holder, operation, sizes) for operation in model.operations]
    return holder.make(
        "Model",
        operand_count=len(operands),
        operation_count=len(operations),
        input_count=len(model.inputs),
        output_count=len(model.outputs),
        operands=holder.pointers(operands),
        operations=holder.pointers(operations),
        inputs=holder.values("i32", model.inputs),
        outputs=holder.values("i32", model.outputs),
        size_count=0 if sizes is None else len(sizes),
    )


def contents(array: Array) -> int | None:
    """Return the address of an array's first element; None if empty."""
    address: int = array.__array_interface__["data"][0]
    return address if array.nbytes else None


def aligned(array: Array) -> Array:
    """Return a contiguous, aligned array."""
    # ascontiguousarray would give a scalar an axis
    return array if array.flags.c_contiguous and array.flags.aligned else array.copy(order="C")


def _operand(holder: Holder, operand: Operand, sizes: NumberedSizes | None) -> int:
    type_ = operand.type
    places = None if sizes is None else sizes.address_of_places(holder, type_.dimensions)
    return holder.make(
        "Operand",
        name=operand.name.encode(),
        data_type=DATA_TYPES[type_.dtype],
        layout=LAYOUTS[type_.layout],
        lifetime=LIFETIMES[operand.lifetime],
        rank=type_.rank,
        dimensions=holder.values("i64", map(int, to_c_sizes(type_.dimensions))),
        quantization=None if type_.quantization is None else _quantization(holder, type_.quantization),
        data=None if operand.value is None else _constant(holder, operand, operand.value),
        bytes=_checked_bytes(operand) if places is None else 0,
        sizes=places,
    )


def _checked_bytes(operand: Operand) -> int:
    nbytes = operand.type.nbytes
    if nbytes >> 63:
        raise InvalidModelError(
            f"sizes are too large for a C driver: {operand.name!r} has {nbytes:.3g} bytes; use smaller inputs"
        )
    return nbytes


def _constant(holder: Holder, operand: Operand, value: Array) -> int | None:
    return contents(holder.keep(pack(value) if operand.type.dtype in PACKED else aligned(value)))


def _quantization(holder: Holder, quantization: Quantization) -> int:
    return holder.make(
        "Quantization",
        axis=-1 if quantization.axis is None else quantization.axis,
        count=len(quantization.scale),
        scales=holder.values("f64", quantization.scale),
        zero_points=holder.values("i64", quantization.zero_point),
    )


def _operation(holder: Holder, operation: Operation, sizes: NumberedSizes | None) -> int:
    kinds = {row.name: row.kind for row in schema_of(operation.type).attributes}
    attributes = [attribute(holder, name, kinds[name], value, sizes) for name, value in operation.attributes.items()]
    return holder.make(
        "Operation",
        type=operation.type.encode(),
        input_count=len(operation.inputs),
        output_count=len(operation.outputs),
        attribute_count=len(attributes),
        origin_count=len(operation.origins),
        inputs=holder.values("i32", operation.inputs),
        outputs=holder.values("i32", operation.outputs),
        attributes=holder.pointers(attributes),
        origins=holder.texts(operation.origins),
    )


WORD = 8
_LISTS = (AttributeCode.KIND_INTS, AttributeCode.KIND_FLOATS, AttributeCode.KIND_STRINGS)


class StructTemplate:
    """Relocatable copy of a holder's structures. Copies refer to the holder's constants and texts, so keep it alive."""

    def __init__(self, holder: Holder, root: int) -> None:
        things = [thing for thing in holder.objects if isinstance(thing, (ctypes.Structure, ctypes.Array))]
        self._starts: dict[int, int] = {}
        count = 0
        for thing in things:
            self._starts[ctypes.addressof(thing)] = count
            count += -(-ctypes.sizeof(thing) // WORD)
        self.words: Array = np.zeros(count, np.int64)
        self.moves: Array = np.zeros(count, np.int64)
        """1 for each word that is an address within the block, otherwise 0."""
        block_bytes = self.words.view(np.uint8)
        for thing in things:
            place = self._starts[ctypes.addressof(thing)] * WORD
            block_bytes[place : place + ctypes.sizeof(thing)] = np.frombuffer(bytes(thing), np.uint8)
            for word in _pointers(thing):
                start = self._starts.get(int(self.words[place // WORD + word]))
                if start is not None:
                    self.words[place // WORD + word] = start * WORD
                    self.moves[place // WORD + word] = 1
        self.root = self._starts[root] * WORD

    def __len__(self) -> int:
        return len(self.words)

    def word_of(self, address: int, member: str = "", structure: str = "") -> int:
        offset = getattr(CLASSES[structure], member).offset if member else 0
        return self._starts[address] + int(offset) // WORD

    def with_words(self, places: Array, values: Sequence[int]) -> StructTemplate:
        other = StructTemplate.__new__(StructTemplate)
        words = self.words.copy()
        words[places] = values
        other.__dict__.update(self.__dict__, words=words)
        return other

    def copied(self) -> tuple[Array, int]:
        words = self.words.copy()
        return words, _relocate(words, self.moves) + self.root


def _relocate(words: Array, moves: Array) -> int:
    address = ctypes.addressof(ctypes.c_char.from_buffer(words.data))  # faster than numpy's own attributes
    words += moves * address
    return address


def _pointers(thing: Any) -> Iterable[int]:
    if isinstance(thing, ctypes.Array):
        return range(len(thing)) if thing._type_ is ctypes.c_void_p else ()
    return _members(thing)


def _members(structure: Any) -> Iterator[int]:
    for name, type_ in structure._fields_:
        points = type_ is ctypes.c_void_p or (issubclass(type_, ctypes.Union) and structure.kind in _LISTS)
        if points:
            yield getattr(type(structure), name).offset // WORD


_MOST_JOINED = 16


@dataclass(frozen=True, slots=True)
class _Bytes:
    place: int
    factor: int
    numbers: tuple[int, ...]


class _Template:
    def __init__(self, of: SpecializableModel) -> None:
        traced = of.model
        plain = with_numbers(traced, list(map(size_hint, numbers(traced))))
        self.holder = Holder()
        root = build(plain, self.holder)
        self.block = StructTemplate(self.holder, root)
        model_struct = CLASSES["Model"].from_address(root)
        integers, reals = list[tuple[int, int]](), list[tuple[int, int]]()
        self.bytes, self.data = list[_Bytes](), dict[int, int]()
        for index, address in enumerate(read_pointers(model_struct.operands, model_struct.operand_count)):
            assert address is not None, "built above"
            operand, type_ = CLASSES["Operand"].from_address(address), traced.type_at(index)
            if is_symbolic(type_.dimensions):
                integers += _of_list(self.block.word_of(operand.dimensions), type_.dimensions)
                self.bytes.append(_bytes(self.block.word_of(address, "bytes", "Operand"), type_))
            if index in of.given:
                self.data[index] = self.block.word_of(address, "data", "Operand")
        for index, address in enumerate(read_pointers(model_struct.operations, model_struct.operation_count)):
            assert address is not None, "built above"
            operation, type_name = CLASSES["Operation"].from_address(address), traced.operations[index].type
            kinds = {row.name: row.kind for row in schema_of(type_name).attributes}
            addresses = read_pointers(operation.attributes, operation.attribute_count)
            for (name, value), place in zip(traced.operations[index].attributes.items(), addresses, strict=True):
                if is_symbolic(value) and place is not None:
                    into = reals if kinds[name] in _REAL else integers
                    into += self._of_attribute(place, value)
        self.integers: Sequence[tuple[int, int]] = integers
        self.reals: Sequence[tuple[int, int]] = reals

    def _of_attribute(self, address: int, value: AttributeValue) -> Iterator[tuple[int, int]]:
        if isinstance(value, tuple):
            return _of_list(self.block.word_of(CLASSES["Attribute"].from_address(address).value.integers), value)
        return _of_list(self.block.word_of(address, "value", "Attribute"), (value,))


_REAL = (AttributeKind.FLOAT, AttributeKind.FLOATS)


class ModelTemplates:
    """Templates of models that are specialized together."""

    def __init__(self, of: SpecializationGroup) -> None:
        self._templates = {model.group_index: _Template(model) for model in of.models if not _has_packed_sizes(model)}
        self._joined: Cache[tuple[int, ...], _Joined] = Cache("models in C that are filled at once", _MOST_JOINED)

    def build(self, model: SpecializedModel, holder: Holder) -> int | None:
        place = model.of.group_index
        if place not in self._templates:
            return None
        structs: _SpecializedStructs = model.replay.prepared(self, self._specialize)
        start = structs.starts.pop(place, None)
        if start is None:  # added later, or used twice
            structs = self._specialize_at((place,), model.replay)
            start = structs.starts.pop(place)
        template = self._templates[place]
        for index, value in model.contents.items():
            structs.words[start + template.data[index]] = contents(holder.keep(aligned(value))) or 0
        holder.keep((structs.words, template.holder))
        return structs.address + start * WORD + template.block.root

    def _specialize(self, replay: Replay) -> _SpecializedStructs:
        return self._specialize_at(tuple([place for place in replay.places if place in self._templates]), replay)

    def _specialize_at(self, places: tuple[int, ...], replay: Replay) -> _SpecializedStructs:
        joined = self._joined.get_or_make(places, lambda: _Joined({place: self._templates[place] for place in places}))
        try:
            return joined.write_sizes(replay.replay_values)
        except OverflowError as error:
            raise InvalidModelError(f"sizes are too large for a C driver: {error}; use smaller inputs") from error


class _SpecializedStructs(NamedTuple):
    words: Array
    address: int
    starts: dict[int, int]
    """Group index -> first word of the model. A model's entry is removed when a program uses it."""


class _Joined:
    def __init__(self, templates: Mapping[int, _Template]) -> None:
        starts = list(accumulate((len(template.block) for template in templates.values()), initial=0))
        self._starts = dict(zip(templates, starts, strict=False))
        moved = list(zip(starts, templates.values(), strict=False))
        empty = np.zeros(0, np.int64)
        self._moves: Array = np.concatenate([empty, *(template.block.moves for template in templates.values())])
        words = (template.block.words + template.block.moves * (start * WORD) for start, template in moved)
        self._words: Array = np.concatenate([empty, *words])
        self._integers = _Numbers(
            (start + word, number) for start, template in moved for word, number in template.integers
        )
        self._reals = _Numbers((start + word, number) for start, template in moved for word, number in template.reals)
        self._products = _Products((start, product) for start, template in moved for product in template.bytes)

    def write_sizes(self, values: Sequence[Any]) -> _SpecializedStructs:
        words = self._words.copy()
        self._integers.write(words, values)
        self._reals.write(words.view(np.float64), values)
        self._products.write(words, values)
        return _SpecializedStructs(words, _relocate(words, self._moves), self._starts.copy())


class _Numbers:
    def __init__(self, standing: Iterable[tuple[int, int]]) -> None:
        numbers = list(standing)
        self._words = np.array([word for word, _ in numbers], np.intp)
        self._take = slot_reader([number for _, number in numbers])

    def write(self, words: Array, values: Sequence[Any]) -> None:
        words[self._words] = self._take(values)


class _Products:
    def __init__(self, standing: Iterable[tuple[int, _Bytes]]) -> None:
        different = dict[tuple[int, tuple[int, ...]], list[int]]()
        for start, product in standing:
            different.setdefault((product.factor, product.numbers), []).append(start + product.place)
        self._different = tuple(different)
        self._words = np.array([word for words in different.values() for word in words], np.intp)
        self._of = np.repeat(np.arange(len(different)), list(map(len, different.values())))

    def write(self, words: Array, values: Sequence[Any]) -> None:
        products = [factor * prod(map(values.__getitem__, numbers)) for factor, numbers in self._different]
        words[self._words] = np.array(products, np.int64)[self._of]


def _has_packed_sizes(of: SpecializableModel) -> bool:
    """Return whether a packed tensor has a dynamic shape or contents. Its number of bytes is no product of sizes."""
    packed = (operand.type for operand in of.model.operands if operand.type.dtype in PACKED)
    return any(is_symbolic(type_.dimensions) for type_ in packed) or any(
        of.model.type_at(index).dtype in PACKED for index in of.given
    )


def _of_list(start: int, values: Sequence[Any]) -> Iterator[tuple[int, int]]:
    return ((start + place, value.number) for place, value in enumerate(values) if isinstance(value, SymbolicNumber))


def _bytes(place: int, type_: OperandType) -> _Bytes:
    dimensions: tuple[Any, ...] = type_.dimensions
    plain = prod(size for size in dimensions if not isinstance(size, SymbolicNumber))
    traced = tuple(size.number for size in dimensions if isinstance(size, SymbolicNumber))
    return _Bytes(place, plain * int(type_.dtype.itemsize), traced)
