"""Application of rules: pins and bans restrict verdicts, limits drop segments.

Rules never turn a refusal into support. The caller repeats the placement until limits drop no segment.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import translate
from functools import cached_property
from operator import attrgetter
from types import MappingProxyType

from nnadapter.drivers.capability import Precision
from nnadapter.drivers.registry import device_of
from nnadapter.drivers.selection import HOSTS
from nnadapter.errors import RulesError, close_names
from nnadapter.records import dataclass, replace
from nnadapter.rules.values import Ban, Limits, Pin, Rule, Rules
from partition import Graph, Reason, Segment, Unsupported, Verdict
from partition.plan import listed

_PATTERN = re.compile(r"[*?\[]")


class Selector:
    """Selection of nodes by rules; nodes inlined from functions keep their original names."""

    def __init__(self, model_graph: Graph) -> None:
        self._own = model_graph

    def select(self, rule: Rule) -> frozenset[int]:
        return frozenset.intersection(*self._matches(rule))

    def why_nothing(self, rule: Rule) -> str:
        domain, op_type = rule.domain_and_op_type
        if op_type is not None and not self._by_op_type.get((domain, op_type)):
            op_types = [name for of_domain, name in self._by_op_type if of_domain == domain]
            chosen = "; rules find nodes of a chosen branch by the name of their 'If'"
            branch_note = chosen if op_type == "If" else ""
            return f"the model has no op type {rule.op_type!r}; {close_names(op_type, op_types)}{branch_note}"
        for tensor in (name for names in rule.region or () for name in names):
            if tensor not in self._tensors:
                return f"the model has no tensor {tensor!r}"
        if rule.name is not None and not self._named(rule.name):
            if_name = next(filter(rule.name.startswith, self._before_branches), "")[:-1]
            reason = f"; {if_name!r} runs as a whole, so its branches have no separate nodes" if if_name else ""
            return f"no node's name matches {rule.name!r}{reason}"
        if rule.region is not None and not self._between(*rule.region):
            return "no path leads from one end of the region to the other"
        return "no node matches all criteria of the rule"

    def _matches(self, rule: Rule) -> Iterable[frozenset[int]]:
        domain, op_type = rule.domain_and_op_type
        if op_type is not None:
            yield self._by_op_type.get((domain, op_type), frozenset())
        if rule.name is not None:
            yield self._named(rule.name)
        if rule.region is not None:
            yield self._between(*rule.region)

    @cached_property
    def _tensors(self) -> frozenset[str]:
        model_graph = self._own
        return frozenset((*model_graph.inputs, *model_graph.constants, *model_graph.producer))

    @cached_property
    def _by_op_type(self) -> Mapping[tuple[str | None, str], frozenset[int]]:
        positions_by_type: dict[tuple[str | None, str], list[int]] = defaultdict(list)
        for position, node in enumerate(self._own.nodes):
            positions_by_type[node.domain, node.op_type].append(position)
            positions_by_type[None, node.op_type].append(position)
        return {key: frozenset(positions) for key, positions in positions_by_type.items()}

    @cached_property
    def _by_name(self) -> Mapping[str, tuple[int, ...]]:
        positions_by_name: dict[str, list[int]] = defaultdict(list)
        for position, node in enumerate(self._own.nodes):
            for name in dict.fromkeys((node.name, *node.origins)):
                positions_by_name[name].append(position)
        return {name: tuple(positions) for name, positions in positions_by_name.items()}

    @cached_property
    def _before_branches(self) -> tuple[str, ...]:
        return tuple(f"{node.name}/" for node in self._own.nodes if node.op_type == "If" and not node.domain)

    def _named(self, pattern: str) -> frozenset[int]:
        """Return nodes by exact name, otherwise by pattern: names may contain brackets."""
        exactly = self._by_name.get(pattern)
        if exactly is not None or not _PATTERN.search(pattern):
            return frozenset(exactly or ())
        matches = re.compile(translate(pattern)).match
        return frozenset(at for name, positions in self._by_name.items() if matches(name) for at in positions)

    def _between(self, first: Sequence[str], last: Sequence[str]) -> frozenset[int]:
        nodes, consumers, producer = self._own.nodes, self._own.consumers, self._own.producer
        downstream = _reached(
            (node for name in first for node in consumers.get(name, ())),
            lambda node: (reader for name in nodes[node].outputs for reader in consumers.get(name, ())),
        )
        upstream = _reached(
            (producer[name] for name in last if name in producer),
            lambda node: (producer[name] for name in nodes[node].reads if name in producer),
        )
        return downstream & upstream


def _reached(start: Iterable[int], onward: Callable[[int], Iterable[int]]) -> frozenset[int]:
    waiting = list(start)
    nodes = set(waiting)
    while waiting:
        unvisited = set(onward(waiting.pop())) - nodes
        nodes |= unvisited
        waiting.extend(unvisited)
    return frozenset(nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleEffect:
    """Effect of a rule, for the report."""

    rule: str
    source: str
    nodes: int
    """Number of original nodes that it affects."""
    note: str = ""
    """Reason for no effect, or remarks."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AppliedRules:
    """Restricted verdicts, and the rules for devices that are asked later."""

    verdicts: Mapping[str, tuple[Verdict, ...]]
    effects: tuple[RuleEffect, ...]
    pinned: Mapping[int, tuple[str, str]]
    banned: Mapping[str, Mapping[int, str]]
    """Device -> banned atom -> location of the ban."""

    def restricted(self, device: str, verdicts: Sequence[Verdict]) -> tuple[Verdict, ...]:
        """Return a device's verdicts, but refuse atoms that are banned from it or pinned to another device."""
        changed = list(verdicts)
        for atom, (pinned_to, place) in self.pinned.items():
            if pinned_to != device and changed[atom]:
                changed[atom] = Unsupported(Reason.RULE, f"pinned to {pinned_to!r} by {place}")
        for atom, place in self.banned.get(device, {}).items():
            if changed[atom]:
                changed[atom] = Unsupported(Reason.RULE, place)
        return tuple(changed)

    def broken_pin(self, graph: Graph, atom: int, refusal: Unsupported) -> RulesError | None:
        """Return the error for an atom that is pinned to the refusing device; None if it is not pinned."""
        if atom not in self.pinned:
            return None
        device, place = self.pinned[atom]
        return _refused_pin(place, graph.nodes[graph.atoms[atom][0]].name, device, refusal)


def apply_rules(
    rules: Rules,
    model_graph: Graph,
    graph: Graph,
    positions: Sequence[int],
    devices: Sequence[str],
    verdicts: Mapping[str, Sequence[Verdict]],
    precisions: Mapping[str, str] = MappingProxyType({}),
) -> AppliedRules:
    """Restrict verdicts by `rules`, and report the effect of each.

    Rules work as follows:

    1. Rules select nodes of `model_graph`. A rule applies to an atom of `graph` if it selects a node of the atom.
       `positions` maps nodes of `graph` to nodes of `model_graph`.
    2. A ban turns the device's support into a refusal with `Reason.RULE`; a pin does so for every other device.
    3. A ban from a floating precision bans accelerators with this precision in `precisions`. A pin to a floating
       precision bans all other accelerators. Rules on quantized precisions have no effect.
    4. Bans from devices outside the session, and rules without nodes that run, have no effect.

    Raises:
        RulesError: an atom has two different pins; it is pinned to a device that it is banned from, that refuses it or
            that is not in the session; or bans leave it no device.
    """
    binder = _Binder(rules, model_graph, graph, positions, devices, precisions)
    pinned, banned = binder.pins(), binder.bans()
    binder.check_pins(pinned, banned, verdicts)
    effects = tuple(binder.effect(rule) for rule in rules)
    places = {id(rule): effect.source for rule, effect in zip(rules, effects, strict=True)}
    applied = AppliedRules(
        verdicts={},
        effects=effects,
        pinned={atom: (binder.targets(pin)[0], places[id(pin)]) for atom, pin in pinned.items()},
        banned={device: {atom: places[id(ban)] for atom, ban in of.items()} for device, of in banned.items()},
    )
    restricted_verdicts = {
        device: applied.restricted(device, device_verdicts) for device, device_verdicts in verdicts.items()
    }
    binder.check_homes(banned, verdicts, restricted_verdicts)
    return replace(applied, verdicts=restricted_verdicts)


class _Binder:
    def __init__(
        self, rules: Rules, model_graph: Graph, graph: Graph, positions: Sequence[int], devices: Sequence[str],
        precisions: Mapping[str, str],
    ) -> None:  # fmt: skip
        self._rules = rules
        self._precisions = precisions
        self._graph = graph
        self._devices = devices
        self._selector = Selector(model_graph)
        self._selected = {id(rule): self._selector.select(rule) for rule in rules}
        self._running: dict[int, list[int]] = {}
        for node, position in enumerate(positions):
            self._running.setdefault(position, []).append(node)
        self._positions = positions

    def targets(self, rule: Rule) -> list[str]:
        """Return the devices that a rule concerns: the named one, or the session's devices of the precision."""
        if rule.precision is None:
            return [rule.device or ""]
        if not Precision(rule.precision).is_floating:
            return []
        named = self._accelerators if rule.device is None else self._devices
        of_precision = (name for name in named if self._precisions.get(name) == rule.precision)
        return [name for name in of_precision if rule.device in (None, name, device_of(name))]

    @property
    def _accelerators(self) -> list[str]:
        return [name for name in self._devices if name not in HOSTS]

    def pins(self) -> dict[int, Pin]:
        """Return atom -> pin for pins to devices, and check pins to precisions."""
        pins_by_atom: dict[int, Pin] = {}
        precisions_by_atom: dict[int, Pin] = {}
        for pin in filter(_applies, self._rules.pins):
            atoms, targets = self._atoms(pin), self.targets(pin)
            if atoms and not self._is_possible(pin):
                raise self._error(
                    f"{self._rules.entry_location(pin)} pins {self._called(atoms[0], pin)} to {pin.target}, "
                    f"which is not one of the devices {self._described_devices(pin)}; name it as a device, or leave "
                    "the rule out"
                )
            for atom in atoms:
                other = (precisions_by_atom if pin.device is None else pins_by_atom).setdefault(atom, pin)
                if self.targets(other) != targets or (pin.device is None and other.precision != pin.precision):
                    raise self._error(self._two_pins(atom, other, pin))
        return pins_by_atom

    def bans(self) -> dict[str, dict[int, Rule]]:
        bans_by_device: dict[str, dict[int, Rule]] = {}
        for rule in filter(_applies, self._rules):
            devices = self.targets(rule)
            if isinstance(rule, Pin):
                others = [name for name in self._accelerators if name not in devices]
                devices = others if rule.device is None else []
            for device in devices:
                for atom in self._atoms(rule):
                    bans_by_device.setdefault(device, {}).setdefault(atom, rule)
        return bans_by_device

    def check_pins(
        self,
        pinned: Mapping[int, Pin],
        banned: Mapping[str, Mapping[int, Rule]],
        verdicts: Mapping[str, Sequence[Verdict]],
    ) -> None:
        for atom, pin in pinned.items():
            device = self.targets(pin)[0]
            ban = banned.get(device, {}).get(atom)
            if ban is not None:
                raise self._error(
                    f"{self._rules.entry_location(pin)} and {self._rules.entry_location(ban)} contradict each other: "
                    f"{self._called(atom, pin)} is pinned to {device!r} and banned from it; change one of them"
                )
            verdict = verdicts[device][atom]
            if isinstance(verdict, Unsupported):
                place = self._rules.entry_location(pin)
                raise _refused_pin(place, self._name(atom, pin), device, verdict, self._rules.source)

    def check_homes(
        self,
        banned: Mapping[str, Mapping[int, Rule]],
        original_verdicts: Mapping[str, Sequence[Verdict]],
        restricted_verdicts: Mapping[str, Sequence[Verdict]],
    ) -> None:
        for device, atoms in banned.items():
            for atom, ban in atoms.items():
                had = [name for name in self._devices if original_verdicts[name][atom]]
                if device in had and not any(restricted_verdicts[name][atom] for name in self._devices):
                    alternatives = "; ".join(
                        f"{name!r}: {restricted_verdicts[name][atom]}" for name in self._devices if name != device
                    )
                    raise self._error(
                        f"{self._rules.entry_location(ban)} leaves {self._called(atom, ban)} without a device: it is "
                        f"banned from {device!r}, and no other supports it"
                        f"{f' ({alternatives})' if alternatives else ''}; narrow the ban"
                    )

    def effect(self, rule: Pin | Ban) -> RuleEffect:
        selected = self._selected[id(rule)]
        running = sum(position in self._running for position in selected)
        return RuleEffect(
            rule=str(rule),
            source=self._rules.entry_location(rule),
            nodes=running if _applies(rule) and self._is_possible(rule) else 0,
            note="; ".join(self._notes(rule, len(selected), running)),
        )

    def _described_devices(self, rule: Rule) -> str:
        if rule.precision is None:
            return ", ".join(self._devices)
        return ", ".join(f"{name} in {self._precisions.get(name, 'unknown')}" for name in self._devices)

    def _is_possible(self, rule: Rule) -> bool:
        if isinstance(rule, Pin) and rule.device is None:
            return rule.precision in self._precisions.values()
        return any(name in self._devices for name in self.targets(rule))

    def _notes(self, rule: Pin | Ban, selected: int, running: int) -> Iterator[str]:
        if not _applies(rule):
            yield f"{rule.precision} is for quantized models: only `nnadapter quantize` and `nnadapter tune` apply it"
        elif not self._is_possible(rule):
            yield f"{rule.target} is not one of the devices {self._described_devices(rule)}"
        if not selected:
            yield self._selector.why_nothing(rule)
        elif not running:
            yield f"it selects only nodes that are folded before the run or unused ({selected})"
        elif running < selected:
            yield f"{selected - running} more are folded before the run or unused"
        along = self._along(rule)
        if along:
            yield f"it applies to {listed(list(map(repr, along)), 3)} too, which are placed together with these"

    def _along(self, rule: Pin | Ban) -> list[str]:
        selected = self._selected[id(rule)]
        members = (node for atom in self._atoms(rule) for node in self._graph.atoms[atom])
        return [self._graph.nodes[node].name for node in members if self._positions[node] not in selected]

    def _atoms(self, rule: Rule) -> list[int]:
        atom_of = self._graph.atom_of
        selected = self._selected[id(rule)]
        return sorted({atom_of[node] for position in selected for node in self._running.get(position, ())})

    def _name(self, atom: int, rule: Rule) -> str:
        selected = self._selected[id(rule)]
        members = self._graph.atoms[atom]
        return next(self._graph.nodes[node].name for node in members if self._positions[node] in selected)

    def _called(self, atom: int, rule: Rule) -> str:
        return f"node {self._name(atom, rule)!r}"

    def _two_pins(self, atom: int, first: Pin, second: Pin) -> str:
        first_name, other = self._name(atom, first), self._name(atom, second)
        subject = (
            f"node {first_name!r} is"
            if first_name == other
            else f"nodes {first_name!r} and {other!r}, which are placed together, are"
        )
        return (
            f"{subject} pinned to two {'precisions' if first.device is None else 'devices'}: to {first.target} by "
            f"{self._rules.entry_location(first)} and to {second.target} by {self._rules.entry_location(second)}; "
            "change one of them"
        )

    def _error(self, message: str) -> RulesError:
        return RulesError(message, file=self._rules.source)


def _applies(rule: Rule) -> bool:
    return rule.precision is None or Precision(rule.precision).is_floating


def _refused_pin(place: str, node: str, device: str, refusal: Unsupported, file: str = "") -> RulesError:
    return RulesError(
        f"{place} pins node {node!r} to {device!r}, which refuses it: {refusal}; change the rule, or resolve the "
        "refusal",
        file=file,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentCandidate:
    """Segment with size and benefit."""

    segment: Segment
    accelerated: bool
    nodes: int
    flops: float | None = None
    benefit: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentsDroppedByLimits:
    """Segments that one round of limits drops."""

    segments: Mapping[int, Unsupported]
    effects: tuple[RuleEffect, ...]


Verdicts = Mapping[str, Sequence[Verdict]]


def segments_to_drop(
    rules: Rules, candidates: Sequence[SegmentCandidate], verdicts: Verdicts
) -> SegmentsDroppedByLimits:
    """Return the segments that limits drop in this round.

    The first step that drops any ends the round:

    1. `whole_graph`: if there are several segments, drop all segments on accelerators. With several accelerators,
       retain the segments of the first one that supports the entire graph.
    2. `min_nodes`, `min_flops`, `min_benefit_ms`: drop segments below the minimum. Unknown FLOPs pass.
    3. `max_segments`: drop half of the excess, smallest benefit (or FLOPs, if costs are unknown) first.

    A segment is exempt if no other device supports one of its atoms. Effects report exempt segments below a minimum.

    Raises:
        RulesError: `min_benefit_ms` without costs, or exempt segments prevent `whole_graph` or `max_segments`.
    """
    limiter = _Limiter(rules, candidates, verdicts)
    for step in (limiter.whole_graph, limiter.minima, limiter.at_most):
        outcome = step()
        if outcome.segments:
            return outcome
    return SegmentsDroppedByLimits(segments={}, effects=tuple(limiter.staying()))


_NOTHING = SegmentsDroppedByLimits(segments={}, effects=())


@dataclass(frozen=True, slots=True)
class _Limiter:
    rules: Rules
    candidates: Sequence[SegmentCandidate]
    verdicts: Verdicts

    @property
    def limits(self) -> Limits:
        return self.rules.limits

    @property
    def away(self) -> list[int]:
        return [at for at, candidate in enumerate(self.candidates) if candidate.accelerated]

    def whole_graph(self) -> SegmentsDroppedByLimits:
        away = self.away
        if not self.limits.whole_graph or not away or len(self.candidates) == 1:
            return _NOTHING
        devices = dict.fromkeys(self.candidates[at].segment.device for at in away)
        capable_devices = [device for device in devices if all(self.verdicts[device])]
        chosen_device = capable_devices[0] if capable_devices and len(devices) > 1 else None
        drop = [at for at in away if self.candidates[at].segment.device != chosen_device]
        self._refuse_stuck("whole_graph", drop)
        return self._given_up("whole_graph", "whole_graph = true", drop, "requires one segment on one device, or none")

    def minima(self) -> SegmentsDroppedByLimits:
        segments: dict[int, Unsupported] = {}
        effects: list[RuleEffect] = []
        for name, rule, below in self._below():
            drop = [at for at in below if at not in segments and self._stuck(at) is None]
            if drop:
                outcome = self._given_up(name, rule, drop, "is not reached")
                segments.update(outcome.segments)
                effects.extend(outcome.effects)
        return SegmentsDroppedByLimits(segments=segments, effects=tuple(effects))

    def staying(self) -> Iterator[RuleEffect]:
        for name, rule, below in self._below():
            if below:
                note = f"{_counted(len(below))} below it kept, because no other device supports every node"
                yield RuleEffect(rule=rule, source=self.rules.limit_location(name), nodes=0, note=note)

    def at_most(self) -> SegmentsDroppedByLimits:
        most, away = self.limits.max_segments, self.away
        if most is None or len(away) <= most:
            return _NOTHING
        free = [at for at in away if self._stuck(at) is None]
        excess = len(away) - most
        if len(free) < excess:
            self._refuse_stuck("max_segments", away)
        costs_known = all(self.candidates[at].benefit is not None for at in away)
        score = attrgetter("benefit" if costs_known else "flops")
        free.sort(key=lambda at: (score(self.candidates[at]) or 0, self.candidates[at].nodes, -at))
        least = "least benefit are dropped" if costs_known else "fewest FLOPs are dropped, since costs are not known"
        reason = f"is exceeded, so the segments with the {least}"
        return self._given_up("max_segments", f"max_segments = {most}", free[: (excess + 1) // 2], reason)

    def _below(self) -> Iterator[tuple[str, str, list[int]]]:
        for name, measure, units in _MINIMA:
            least = getattr(self.limits, name)
            if least is not None:
                below = [at for at in self.away if self._is_below(name, measure(self.candidates[at]), least / units)]
                yield name, f"{name} = {least:g}", below

    def _is_below(self, name: str, value: float | None, least: float) -> bool:
        if value is None and name == "min_benefit_ms":
            devices = dict.fromkeys(
                candidate.segment.device
                for candidate in self.candidates
                if candidate.benefit is None and candidate.accelerated
            )
            raise RulesError(
                f"{self.rules.limit_location(name)} needs costs, and those of {', '.join(map(repr, devices))} are not "
                f"known; run `nnadapter calibrate {next(iter(devices))}`, or leave the limit out",
                file=self.rules.source,
                entry="limits",
                key=name,
            )
        return value is not None and value < least

    def _stuck(self, position: int) -> tuple[int, str] | None:
        segment = self.candidates[position].segment
        other_verdicts = [
            device_verdicts for device, device_verdicts in self.verdicts.items() if device != segment.device
        ]
        for atom in segment.atoms:
            if not any(device_verdicts[atom] for device_verdicts in other_verdicts):
                return atom, "; ".join(dict.fromkeys(str(device_verdicts[atom]) for device_verdicts in other_verdicts))
        return None

    def _refuse_stuck(self, name: str, positions: Sequence[int]) -> None:
        for position in positions:
            stuck = self._stuck(position)
            if stuck is not None:
                device = self.candidates[position].segment.device
                raise RulesError(
                    f"{self.rules.limit_location(name)} cannot be met: a segment on {device!r} must stay there, as "
                    f"other devices refuse part of it ({stuck[1]}); change the limit, or resolve the refusals",
                    file=self.rules.source,
                    entry="limits",
                    key=name,
                )

    def _given_up(self, name: str, rule: str, drop: Sequence[int], reason: str) -> SegmentsDroppedByLimits:
        place = self.rules.limit_location(name)
        effect = RuleEffect(
            rule=rule,
            source=place,
            nodes=sum(self.candidates[at].nodes for at in drop),
            note=f"{_counted(len(drop))} dropped: the limit {reason}",
        )
        refusal = Unsupported(Reason.RULE, f"the limit {place}: {rule} {reason}")
        return SegmentsDroppedByLimits(segments=dict.fromkeys(drop, refusal), effects=(effect,))


def _counted(segments: int) -> str:
    return "1 segment" if segments == 1 else f"{segments} segments"


_MINIMA = (
    ("min_nodes", attrgetter("nodes"), 1),
    ("min_flops", attrgetter("flops"), 1),
    ("min_benefit_ms", attrgetter("benefit"), 1e3),
)
