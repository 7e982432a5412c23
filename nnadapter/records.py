"""Data classes that are fast to define: `dataclass` and `replace` in place of the functions in `dataclasses`.

The standard library compiles up to six functions per class. Here only `__init__` is compiled, at the first instance;
the other methods are closures. `fields`, `asdict`, `replace` and `is_dataclass` of the standard library accept these
classes. These and standard data classes may inherit from each other.
"""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, FrozenInstanceError, field
from functools import partial
from operator import attrgetter
from types import MemberDescriptorType, MethodType, SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass, replace

__all__ = ["dataclass", "field", "replace"]

_Fields = Mapping[str, "Field[Any]"]


class _Factory:
    """Placeholder in signatures for a default that a factory creates."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY = _Factory()


def _dataclass(cls: type | None = None, /, **options: bool) -> Any:
    return partial(_define, **options) if cls is None else _define(cls, **options)


def _replace(instance: Any, /, **changes: Any) -> Any:
    for name, each in type(instance).__dataclass_fields__.items():
        if each.init and name not in changes:
            changes[name] = getattr(instance, name)
    return type(instance)(**changes)


def _define(
    cls: Any,
    *,
    frozen: bool = False,
    slots: bool = False,
    eq: bool = True,
    kw_only: bool = False,
    weakref_slot: bool = False,
) -> type:
    added = {
        name: _field_of(cls, name, annotation, kw_only)
        for name, annotation in vars(cls).get("__annotations__", {}).items()
        if not annotation.startswith("ClassVar")
    }
    fields: dict[str, Field[Any]] = {}
    for base in reversed(cls.__mro__[1:]):
        fields |= base.__dict__.get("__dataclass_fields__", {})
    fields |= added
    if slots:
        cls = _with_slots(cls, added, weakref_slot)
    else:
        for name, each in added.items():
            if each.default is not MISSING:
                setattr(cls, name, each.default)
            elif name in cls.__dict__:
                delattr(cls, name)
    cls.__dataclass_fields__ = fields
    cls.__dataclass_params__ = SimpleNamespace(
        init=True, repr=True, eq=eq, order=False, unsafe_hash=False, frozen=frozen,
        match_args=True, kw_only=kw_only, slots=slots, weakref_slot=weakref_slot,
    )  # fmt: skip
    explicit = cls.__dict__
    has_hash = explicit.get("__hash__") is not None
    for name, method in _methods(cls, fields, frozen=frozen, slots=slots, eq=eq).items():
        if name not in explicit or (name == "__hash__" and not has_hash):
            setattr(cls, name, method)
    if "__init__" not in explicit:
        cls.__init__ = _Initializer(cls, fields, frozen)
    return cls  # type: ignore[no-any-return]


def _field_of(cls: type, name: str, annotation: str, kw_only: bool) -> Field[Any]:
    default = cls.__dict__.get(name, MISSING)
    result: Any = default if isinstance(default, Field) else field(default=default)
    result.name, result.type, result._field_type = name, annotation, dataclasses._FIELD  # type: ignore[attr-defined]
    if result.kw_only is MISSING:
        result.kw_only = kw_only
    return result  # type: ignore[no-any-return]


def _with_slots(cls: Any, added: _Fields, weakref_slot: bool) -> Any:
    inherited = {name for base in cls.__mro__[1:] for name in base.__dict__.get("__slots__", ())}
    namespace = {name: value for name, value in cls.__dict__.items() if name not in added}
    namespace.pop("__dict__", None)
    namespace.pop("__weakref__", None)
    weak = ("__weakref__",) if weakref_slot else ()
    namespace["__slots__"] = (*(name for name in added if name not in inherited), *weak)
    result = type(cls)(cls.__name__, cls.__bases__, namespace)
    result.__qualname__ = cls.__qualname__
    return result


def _methods(cls: type, fields: _Fields, *, frozen: bool, slots: bool, eq: bool) -> Mapping[str, object]:
    shown = [name for name, each in fields.items() if each.repr]

    @reprlib.recursive_repr()
    def describe(self: Any) -> str:
        values = (f"{name}={getattr(self, name)!r}" for name in shown)
        return f"{type(self).__qualname__}({', '.join(values)})"

    positional = tuple(name for name, each in fields.items() if each.init and not each.kw_only)
    result: dict[str, object] = {"__repr__": describe, "__match_args__": positional, "__replace__": _replace}
    if eq:
        result |= _comparison(tuple(name for name, each in fields.items() if each.compare), frozen)
    if frozen:
        result |= _protection(cls, fields)
    if frozen and slots:
        result |= _pickling(tuple(fields))
    return result


def _comparison(names: tuple[str, ...], frozen: bool) -> dict[str, object]:
    values: Callable[[Any], object]
    if len(names) > 1:
        values = attrgetter(*names)
    else:
        getters = [attrgetter(name) for name in names]

        def values(self: Any) -> tuple[object, ...]:
            return tuple(get(self) for get in getters)

    def equal(self: Any, other: Any) -> bool:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    def hash_values(self: Any) -> int:
        return hash(values(self))

    return {"__eq__": equal, "__hash__": hash_values if frozen else None}


def _protection(cls: Any, fields: _Fields) -> dict[str, object]:
    def set_attribute(self: Any, name: str, value: object) -> None:
        if type(self) is cls or name in fields:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def delete_attribute(self: Any, name: str) -> None:
        if type(self) is cls or name in fields:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return {"__setattr__": set_attribute, "__delattr__": delete_attribute}


def _pickling(names: tuple[str, ...]) -> dict[str, object]:
    """Return the methods by which pickle and copy handle frozen slots, which cannot be set in the usual way."""

    def get_state(self: Any) -> list[object]:
        return [getattr(self, name) for name in names]

    def set_state(self: Any, state: list[object]) -> None:
        for name, value in zip(names, state, strict=True):
            object.__setattr__(self, name, value)

    return {"__getstate__": get_state, "__setstate__": set_state}


class _Initializer:
    """`__init__` of a class, which is compiled when it is first used."""

    def __init__(self, cls: Any, fields: _Fields, frozen: bool) -> None:
        self.cls, self.fields, self.frozen = cls, fields, frozen

    def __get__(self, instance: object, owner: type) -> Any:
        function = _compile_init(self.cls, self.fields, self.frozen)
        self.cls.__init__ = function
        return function if instance is None else MethodType(function, instance)


def _compile_init(cls: Any, fields: _Fields, frozen: bool) -> Callable[..., None]:
    names: dict[str, object] = {"_FACTORY": _FACTORY, "_set": object.__setattr__}
    parameters: tuple[list[str], list[str]] = ([], [])
    body = []
    for name, each in fields.items():
        value = name
        default = ""
        if each.default_factory is not MISSING:
            names[f"_make_{name}"] = each.default_factory
            value = f"_make_{name}() if {name} is _FACTORY else {name}" if each.init else f"_make_{name}()"
            default = "=_FACTORY"
        elif each.default is not MISSING:
            names[f"_default_{name}"] = each.default
            value = name if each.init else f"_default_{name}"
            default = f"=_default_{name}"
        elif not each.init:
            continue
        if each.init:
            parameters[each.kw_only is True].append(name + default)
        slot = getattr(cls, name, None)
        if not frozen:
            body.append(f"self.{name} = {value}")
        elif isinstance(slot, MemberDescriptorType):
            names[f"_set_{name}"] = slot.__set__  # takes half the time of object.__setattr__
            body.append(f"_set_{name}(self, {value})")
        else:
            body.append(f"_set(self, {name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    keywords = ["*", *parameters[True]] if parameters[True] else []
    signature = ", ".join(["self", *parameters[False], *keywords])
    exec(f"def __init__({signature}):\n " + "\n ".join(body or ["pass"]), names)
    result: Any = names["__init__"]
    result.__qualname__ = f"{cls.__qualname__}.__init__"
    result.__module__ = cls.__module__
    result.__annotations__ = {name: each.type for name, each in fields.items() if each.init} | {"return": None}
    return result  # type: ignore[no-any-return]


if not TYPE_CHECKING:
    dataclass, replace = _dataclass, _replace
