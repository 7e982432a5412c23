"""Rules as values: what a person may say of placement, checked when it is said."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

from nnadapter.drivers.selection import canonical
from nnadapter.errors import RulesError

Names = str | Sequence[str] | None
"""One name, several, or none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What a pin and a ban have in common: a device, and which nodes are meant. Everything that is given must match.

    Raises:
        RulesError: a value is of the wrong type or empty, nothing is selected, or only one end of a region is given.
    """

    device: str
    """A device's name; `fake_npu:0` is `fake_npu`."""
    op_type: str | None = None
    """An op type of any domain, or `domain::OpType`; `ai.onnx` is ONNX's own domain."""
    name: str | None = None
    """A node's name, or a pattern: `*` stands for any characters, `/` included, `?` for one, `[ab]` for one of them."""
    from_: Names = None
    """Tensors: with `to`, the nodes on a path from one of these to one of those. What makes these is not meant."""
    to: Names = None
    """Tensors: the other end of the region. The nodes that make these are meant."""
    line: int | None = field(default=None, compare=False)
    """The line of the rules file, counted from 1."""

    def __post_init__(self) -> None:
        """Check every value; a single tensor becomes a tuple of one."""
        for name in ("device", "op_type", "name"):
            _check_text(name, getattr(self, name), required=name == "device")
        object.__setattr__(self, "device", canonical(self.device))
        object.__setattr__(self, "from_", _tensors("from", self.from_))
        object.__setattr__(self, "to", _tensors("to", self.to))
        if self.op_type is not None and not all(self.op_type.rsplit("::", 1)):
            raise RulesError(f"op_type {self.op_type!r} lacks a part; write OpType or domain::OpType")
        if (self.from_ is None) != (self.to is None):
            given, lacking = ("to", "from") if self.from_ is None else ("from", "to")
            raise RulesError(f"{given!r} is given without {lacking!r}; a region needs both, each a tensor or a list")
        if self.op_type is None and self.name is None and self.from_ is None:
            raise RulesError("it selects no node; give op_type, name, or from and to")

    @property
    def domain_and_op_type(self) -> tuple[str | None, str | None]:
        """The domain, empty for ONNX's own and None for any, and the op type."""
        domain, separator, op_type = (self.op_type or "").rpartition("::")
        return ("" if domain == "ai.onnx" else domain) if separator else None, op_type or None

    @property
    def region(self) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
        """The tensors at both ends."""
        return None if self.from_ is None or self.to is None else (tuple(self.from_), tuple(self.to))

    @property
    def selection(self) -> tuple[object, ...]:
        """What is selected: rules for which this is equal mean the same nodes of every model."""
        return (self.domain_and_op_type, self.name, self.from_, self.to)

    @property
    def selectors(self) -> str:
        """What is selected, in words."""
        given = (("op_type", self.op_type), ("name", self.name), ("from", self.from_), ("to", self.to))
        return ", ".join(f"{key} {_shown(value)}" for key, value in given if value is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin(Rule):
    """Nodes that run on one device and on no other."""

    def __str__(self) -> str:
        """The rule in words."""
        return f"pin to {self.device!r} of {self.selectors}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ban(Rule):
    """Nodes that do not run on a device."""

    def __str__(self) -> str:
        """The rule in words."""
        return f"ban from {self.device!r} of {self.selectors}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What segments off the CPU must be worth; those that are not are given up.

    Raises:
        RulesError: a value does not fit.
    """

    max_segments: int | None = None
    """At most so many segments off the CPU; those of the largest benefit stay."""
    min_benefit_ms: float | None = None
    """A segment must save at least so many milliseconds, launch and transfers counted."""
    min_nodes: int | None = None
    """A segment must hold at least so many nodes."""
    min_flops: float | None = None
    """A segment must hold at least so many floating-point operations."""
    whole_graph: bool = False
    """One segment of one device, or everything on the CPU."""
    line: int | None = field(default=None, compare=False)
    """The line of the rules file where they begin, counted from 1."""
    lines: Mapping[str, int] = field(default_factory=dict, compare=False)
    """Limit -> its own line, likewise."""

    def __post_init__(self) -> None:
        """Check every value."""
        _check_whole("max_segments", self.max_segments, 1)
        _check_whole("min_nodes", self.min_nodes, 0)
        _check_number("min_benefit_ms", self.min_benefit_ms)
        _check_number("min_flops", self.min_flops)
        if not isinstance(self.whole_graph, bool):
            raise RulesError(f"'whole_graph' is true or false, got {self.whole_graph!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Everything that a person says of placement.

    Raises:
        RulesError: two rules that select the same contradict each other, or a value is of the wrong type.
    """

    pins: tuple[Pin, ...] = ()
    bans: tuple[Ban, ...] = ()
    limits: Limits = field(default_factory=Limits)
    source: str = field(default="Rules", compare=False)
    """The file they were read from, or what else messages shall call them."""

    def __post_init__(self) -> None:
        """Check types, and what contradicts itself in every model."""
        for name, kind in (("pins", Pin), ("bans", Ban)):
            given = getattr(self, name)
            if not isinstance(given, Sequence) or not all(type(rule) is kind for rule in given):
                raise RulesError(f"{name} of Rules are a tuple of nnadapter.{kind.__name__}, got {given!r}")
            object.__setattr__(self, name, tuple(given))
        if not isinstance(self.limits, Limits):
            raise RulesError(f"limits of Rules are an nnadapter.Limits, got {self.limits!r}")
        self._refuse_contradictions()

    def __iter__(self) -> Iterator[Pin | Ban]:
        """Pins, then bans."""
        return chain(self.pins, self.bans)

    def place(self, rule: Pin | Ban) -> str:
        """Where a rule stands: `pin in rules.toml line 3`, or `pin 2 in Rules`."""
        word, group = ("pin", self.pins) if isinstance(rule, Pin) else ("ban", self.bans)
        if rule.line is not None:
            return f"{word} in {self.source} line {rule.line}"
        return f"{word} {next((number for number, each in enumerate(group, 1) if each is rule), 0)} in {self.source}"

    def limit_place(self, name: str) -> str:
        """Where a limit stands: `max_segments in rules.toml line 9`."""
        line = self.limit_line(name)
        return f"{name} in {self.source}" + ("" if line is None else f" line {line}")

    def limit_line(self, name: str) -> int | None:
        """The line of a limit, counted from 1; None where there is no file."""
        return self.limits.lines.get(name, self.limits.line)

    def _refuse_contradictions(self) -> None:
        pins: dict[object, Pin] = {}
        for pin in self.pins:
            other = pins.setdefault(pin.selection, pin)
            if other.device != pin.device:
                raise RulesError(
                    f"{self.place(other)} and {self.place(pin)} pin the same nodes ({pin.selectors}) to two devices, "
                    f"{other.device!r} and {pin.device!r}; keep one of them",
                    source=self.source,
                    line=pin.line,
                )
        for ban in self.bans:
            pinned = pins.get(ban.selection)
            if pinned is not None and pinned.device == ban.device:
                raise RulesError(
                    f"{self.place(pinned)} and {self.place(ban)} contradict each other: the same nodes "
                    f"({ban.selectors}) are pinned to {ban.device!r} and banned from it; keep one of them",
                    source=self.source,
                    line=ban.line,
                )


def _check_text(name: str, value: object, *, required: bool) -> None:
    if value is None and not required:
        return
    if not isinstance(value, str):
        raise RulesError(f"{name!r} is a text, got {value!r}")
    if not value.strip():
        raise RulesError(f"{name!r} is empty; name something or leave it out")


def _tensors(name: str, value: object) -> tuple[str, ...] | None:
    if value is None:
        return None
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, Sequence) or not all(isinstance(each, str) for each in names):
        raise RulesError(f"{name!r} is the name of a tensor or a list of names, got {value!r}")
    if not names or not all(names):
        raise RulesError(f"{name!r} holds no name or an empty one; name at least one tensor")
    return tuple(names)


def _check_whole(name: str, value: object, least: int) -> None:
    if value is not None and (type(value) is not int or value < least):
        raise RulesError(f"{name!r} is a whole number of at least {least}, got {value!r}")


def _check_number(name: str, value: object) -> None:
    if value is None:
        return
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not math.isfinite(value) or value < 0:
        raise RulesError(f"{name!r} is a number of at least 0, got {value!r}")


def _shown(value: object) -> str:
    return ", ".join(map(repr, value)) if isinstance(value, tuple) else repr(value)
