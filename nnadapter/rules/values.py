"""Placement rules as immutable values, checked at creation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import force_setattr

from nnadapter.drivers.capability import Precision
from nnadapter.drivers.selection import canonical
from nnadapter.errors import RulesError, near_names
from nnadapter.files.documents import check_fields
from nnadapter.onnx.domains import plain_domain
from nnadapter.records import dataclass, field

Text = Annotated[str, Meta(min_length=1)]
Names = Text | Annotated[Sequence[Text], Meta(min_length=1)] | None
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Amount = Annotated[float, Meta(ge=0, le=1e300)]


class Rule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"from_": "from"}):
    """Device or precision, and criteria. A node must match all criteria.

    Raises:
        RulesError: an invalid value, neither device nor precision, no criteria, or a region with only one end.
    """

    device: Text | None = None
    """Device name; `fake_npu:0` equals `fake_npu`."""
    precision: Text | None = None
    """Precision. Sessions apply floating ones to accelerators, and ignore quantized ones, which are in the model."""
    op_type: Text | None = None
    """Op type in any domain, or `domain::OpType`; `ai.onnx` is ONNX's own."""
    name: Text | None = None
    """Name or pattern: `*` matches any characters including `/`, `?` one, `[ab]` one of them."""
    from_: Names = None
    """Tensors at the start of a region; their producers are not included."""
    to: Names = None
    """Tensors at the end of the region; their producers are included."""

    def __post_init__(self) -> None:
        check_fields(self, RulesError)
        for key in ("device", "precision", "op_type", "name"):
            if getattr(self, key) is not None and not getattr(self, key).strip():
                raise RulesError(f"{key!r} of the rule is an empty text; set it, or leave it out", key=key)
        if self.device is not None:
            force_setattr(self, "device", canonical(self.device))
        elif self.precision is None:
            raise RulesError("the rule names no device and no precision; set device, precision or both")
        if self.precision is not None and self.precision not in frozenset(Precision):
            raise RulesError(
                f"precision {self.precision!r} of the rule is none of {', '.join(Precision)}"
                f"{near_names(self.precision, list(map(str, Precision)), '; ')}",
                key="precision",
            )
        for key in ("from_", "to"):
            names = getattr(self, key)
            force_setattr(self, key, (names,) if isinstance(names, str) else names and tuple(names))
        if self.op_type is not None and not all(self.op_type.rsplit("::", 1)):
            raise RulesError(
                f"op_type {self.op_type!r} lacks a domain or an op type; write OpType or domain::OpType", key="op_type"
            )
        if (self.from_ is None) != (self.to is None):
            present_key, lacking = ("to", "from") if self.from_ is None else ("from", "to")
            raise RulesError(
                f"the rule has {present_key!r} without {lacking!r}; a region needs both, each a name of a tensor or a "
                "list of names"
            )
        if self.op_type is None and self.name is None and self.from_ is None:
            raise RulesError("the rule selects no node; set op_type, name, or from and to")

    @property
    def domain_and_op_type(self) -> tuple[str | None, str | None]:
        """Domain (empty for ONNX's, None for any) and op type."""
        domain, separator, op_type = (self.op_type or "").rpartition("::")
        return plain_domain(domain) if separator else None, op_type or None

    @property
    def region(self) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
        return None if self.from_ is None or self.to is None else (tuple(self.from_), tuple(self.to))

    @property
    def target(self) -> str:
        device = None if self.device is None else repr(self.device)
        return " in ".join(filter(None, (device, self.precision)))

    @property
    def selection(self) -> tuple[object, ...]:
        """Criteria without the device. Rules with equal criteria select the same nodes."""
        return (self.domain_and_op_type, self.name, self.from_, self.to)

    @property
    def selectors(self) -> str:
        criteria = (("op_type", self.op_type), ("name", self.name), ("from", self.from_), ("to", self.to))
        return ", ".join(f"{key} {_shown(value)}" for key, value in criteria if value is not None)


class Pin(Rule, frozen=True):
    """Nodes that must run on one device."""

    def __str__(self) -> str:
        return f"pin to {self.target} of {self.selectors}"


class Ban(Rule, frozen=True):
    """Nodes that must not run on a device."""

    def __str__(self) -> str:
        return f"ban from {self.target} of {self.selectors}"


class Limits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Requirements for segments on devices other than the CPU. Segments that violate them run elsewhere.

    Raises:
        RulesError: an invalid value.
    """

    max_segments: Annotated[int, Meta(ge=1, le=2**63 - 1)] | None = None
    """Maximum number of segments; those with the largest benefit stay."""
    min_benefit_ms: Amount | None = None
    """Least milliseconds saved per segment, including launch and transfers."""
    min_nodes: Count | None = None
    min_flops: Amount | None = None
    whole_graph: bool = False
    """Require the entire graph in one segment on one device; otherwise it runs on the CPU."""

    def __post_init__(self) -> None:
        check_fields(self, RulesError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """All placement rules.

    Raises:
        RulesError: contradictory rules, or a value of the wrong type.
    """

    pins: tuple[Pin, ...] = ()
    bans: tuple[Ban, ...] = ()
    limits: Limits = field(default_factory=Limits)
    source: str = field(default="Rules", compare=False)

    def __post_init__(self) -> None:
        for name, kind in (("pins", Pin), ("bans", Ban)):
            rules = getattr(self, name)
            if not isinstance(rules, Sequence) or not all(type(rule) is kind for rule in rules):
                raise RulesError(f"{name} of Rules must be a tuple of nnadapter.{kind.__name__}, got {rules!r}")
            object.__setattr__(self, name, tuple(rules))
        if not isinstance(self.limits, Limits):
            raise RulesError(f"limits of Rules must be an nnadapter.Limits, got {self.limits!r}")
        self._refuse_contradictions()

    def __iter__(self) -> Iterator[Pin | Ban]:
        return chain(self.pins, self.bans)

    def entry_location(self, rule: Rule) -> str:
        """Return a rule's place: `pin 2 in rules.toml`."""
        return f"{self.entry(rule)} in {self.source}"

    def entry(self, rule: Rule) -> str:
        """Return kind and number of a rule: `pin 2`."""
        word, group = ("pin", self.pins) if isinstance(rule, Pin) else ("ban", self.bans)
        return f"{word} {next((number for number, member in enumerate(group, 1) if member is rule), 0)}"

    def limit_location(self, name: str) -> str:
        """Return a limit's place: `max_segments in rules.toml`."""
        return f"{name} in {self.source}"

    def _refuse_contradictions(self) -> None:
        pins: dict[object, list[Pin]] = {}
        for pin in self.pins:
            for other in pins.setdefault(pin.selection, []):
                for key in ("device", "precision"):
                    first, second = getattr(other, key), getattr(pin, key)
                    if None not in (first, second) and first != second:
                        raise RulesError(
                            f"{self.entry_location(other)} and {self.entry_location(pin)} pin the same nodes "
                            f"({pin.selectors}) to two {key}s, {first!r} and {second!r}; keep one of them",
                            file=self.source,
                            entry=self.entry(pin),
                        )
            pins[pin.selection].append(pin)
        for ban in self.bans:
            for pinned in pins.get(ban.selection, ()):
                if ban.device in (None, pinned.device) and ban.precision in (None, pinned.precision):
                    raise RulesError(
                        f"{self.entry_location(pinned)} and {self.entry_location(ban)} contradict each other: the same "
                        f"nodes ({ban.selectors}) are pinned to {ban.target} and banned from it; keep one of them",
                        file=self.source,
                        entry=self.entry(ban),
                    )


def _shown(value: object) -> str:
    return ", ".join(map(repr, value)) if isinstance(value, tuple) else repr(value)
