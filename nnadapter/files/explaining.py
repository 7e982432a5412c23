"""What is wrong with a document that msgspec does not take, so that a person finds it: where it is, and in words.

The document is held against what msgspec knows of the type, one rule for each kind of type. msgspec's own sentences are
English for people, name no keys of mappings, and are not read here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from types import NoneType
from typing import Any

import msgspec
from msgspec import inspect

from nnadapter.errors import close_names

Place = tuple[str | int, ...]
"""Keys and positions from the outside in: `("pin", 0, "device")`."""
Fault = tuple[Place, str]
"""Where something is wrong, and what."""


class Twice:
    """Stands for an object that names a key twice; it is of no type that anybody asks for."""

    def __init__(self, key: str) -> None:
        self.key = key

    def __str__(self) -> str:
        return "it stands twice"


def explained(document: object, kind: Any) -> Fault:
    """Return the first thing that is wrong with a document which msgspec does not convert to `kind`."""
    return next(_faults(document, inspect.type_info(kind)), ((), f"expected something else, got {brief(document)}"))


def brief(value: object) -> str:
    """Return a value as a message shows it."""
    if isinstance(value, (list, tuple, dict)):  # they may hold more than a message can
        return "an object" if isinstance(value, dict) else f"a list of {len(value)}"
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:  # Python writes no number of thousands of digits
        return f"one of {value.bit_length()} bits"
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _faults(value: Any, type_info: Any) -> Iterator[Fault]:
    """What is wrong with a value that is to be of a type, in the order in which it stands there."""
    if isinstance(value, Twice):
        yield (value.key,), str(value)
    elif isinstance(type_info, inspect.UnionType):
        yield from _of_union(value, type_info)
    elif type(type_info) in _KINDS:
        name, kinds, rule = _KINDS[type(type_info)]
        if _is_of(value, kinds):
            yield from rule(value, type_info)
        else:
            yield (), f"expected {name}, got {brief(value)}"


def _is_of(value: object, kinds: Any) -> bool:
    return isinstance(value, bool) if kinds is bool else isinstance(value, kinds) and not isinstance(value, bool)


def _within(step: str | int, faults: Iterator[Fault]) -> Iterator[Fault]:
    for place, problem in faults:
        yield (step, *place), problem


def _of_union(value: Any, type_info: inspect.UnionType) -> Iterator[Fault]:
    faults = [next(_faults(value, member), None) for member in type_info.types]
    if None in faults:
        return
    kinds = [type(member) for member in type_info.types]
    matching_faults = (fault for fault, kind in zip(faults, kinds, strict=True) if _is_of(value, _KINDS[kind][1]))
    words = " or ".join(name for kind, (name, _, _) in _KINDS.items() if kind in kinds)
    yield next(filter(None, matching_faults), None) or ((), f"expected {words}, got {brief(value)}")


def _of_fields(value: Any, type_info: inspect.StructType | inspect.DataclassType) -> Iterator[Fault]:
    if not isinstance(value, Mapping):
        return
    fields = {struct_field.encode_name: struct_field for struct_field in type_info.fields}
    for key, item in value.items():
        if key in fields:
            yield from _within(key, _faults(item, fields[key].type))
        elif getattr(type_info, "forbid_unknown_fields", False):
            yield (key,), f"there is no such key; {close_names(key, list(fields))}"
    for key, declared in fields.items():
        if declared.required and key not in value:
            yield (key,), "it is missing"
    try:  # what the fields mean together, or each beside its type
        msgspec.convert(value, type_info.cls)
    except msgspec.ValidationError as error:
        if error.__cause__ is not None:
            yield (), str(error.__cause__)


def _of_mapping(value: Mapping[Any, Any], type_info: inspect.DictType) -> Iterator[Fault]:
    for key, item in value.items():
        yield from _within(key, chain(_faults(key, type_info.key_type), _faults(item, type_info.value_type)))


def _of_items(value: Sequence[Any], type_info: Any) -> Iterator[Fault]:
    if isinstance(type_info, inspect.TupleType):
        if len(value) != len(type_info.item_types):
            yield (), f"expected a list of length {len(type_info.item_types)}, got {brief(value)}"
        kinds: Sequence[Any] = type_info.item_types
    else:
        if type_info.min_length is not None and len(value) < type_info.min_length:
            yield (), f"expected a list of length >= {type_info.min_length}, got {brief(value)}"
        kinds = [type_info.item_type] * len(value)
    for position, (item, kind) in enumerate(zip(value, kinds, strict=False)):
        yield from _within(position, _faults(item, kind))


def _of_text(value: str, type_info: inspect.StrType) -> Iterator[Fault]:
    if type_info.min_length is not None and len(value) < type_info.min_length:
        yield (), f"expected a text of length >= {type_info.min_length}, got {brief(value)}"


def _of_number(value: float, type_info: inspect.IntType | inspect.FloatType) -> Iterator[Fault]:
    name, kinds, _ = _KINDS[type(type_info)]
    kind = float if float in kinds else int
    if kind is float and isinstance(value, int) and abs(value) > _LARGEST:
        yield (), f"number out of range, got {brief(value)}"
    elif type_info.ge is not None and not value >= type_info.ge:  # not: NaN is neither
        yield (), f"expected {name} >= {kind(type_info.ge)}, got {brief(value)}"
    elif type_info.le is not None and value > type_info.le:
        yield (), f"expected {name} <= {kind(type_info.le)}, got {brief(value)}"


def _of_names(value: object, type_info: inspect.EnumType) -> Iterator[Fault]:
    names = [member.value for member in type_info.cls]
    if value not in names:
        yield (), f"it is not known; {close_names(value, names)}"


def _nothing(value: object, type_info: object) -> Iterator[Fault]:
    return iter(())


_LONGEST, _MOST_BITS = 60, 128
"""Characters of a value in a message, and bits of a number there."""
_LARGEST = 1.7976931348623157e308
"""Of the numbers that a float can be."""
_KINDS: Mapping[type, tuple[str, Any, Callable[[Any, Any], Iterator[Fault]]]] = {
    inspect.BoolType: ("true or false", bool, _nothing),
    inspect.IntType: ("a whole number", (int,), _of_number),
    inspect.FloatType: ("a number", (int, float), _of_number),
    inspect.StrType: ("a text", str, _of_text),
    inspect.StructType: ("an object", (Mapping, msgspec.Struct), _of_fields),
    inspect.DataclassType: ("an object", Mapping, _of_fields),
    inspect.DictType: ("an object", Mapping, _of_mapping),
    inspect.ListType: ("a list", (list, tuple), _of_items),
    inspect.VarTupleType: ("a list", (list, tuple), _of_items),
    inspect.TupleType: ("a list", (list, tuple), _of_items),
    inspect.EnumType: ("a name", object, _of_names),
    inspect.NoneType: ("nothing", NoneType, _nothing),
}
"""Types that files have, as messages name several: in words, as values of Python, and what else has to be so."""
