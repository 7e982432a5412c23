"""Rules and verdicts -> verdicts: a ban takes a device's yes back, a pin that of all other devices.

Rules never turn a no into a yes. What cannot be kept is an error, and what did nothing is said.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from nnadapter.errors import RulesError
from nnadapter.rules.selecting import Selector
from nnadapter.rules.values import Ban, Pin, Rules
from partition.graph import Graph
from partition.verdict import Reason, Unsupported, Verdict

_NAMED = 3
"""How many nodes a note names before it only counts them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleEffect:
    """What a rule did, for the report."""

    rule: str
    """The rule in words."""
    source: str
    """Where it stands."""
    nodes: int
    """How many of the model's own nodes that run it binds; 0 for a rule that does nothing."""
    note: str = ""
    """Why it binds none, or what else is to be known."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Applied:
    """Verdicts after the rules, and what the rules say of devices that are asked later."""

    verdicts: Mapping[str, tuple[Verdict, ...]]
    """Per device, its verdict on every atom."""
    effects: tuple[RuleEffect, ...]
    """One per rule, pins first, in the order of the rules."""
    pinned: Mapping[int, tuple[str, str]]
    """Atom -> the device that it is pinned to, and where the rule stands."""
    banned: Mapping[str, Mapping[int, str]]
    """Device -> atom -> where the rule that bans it stands."""

    def restricted(self, device: str, verdicts: Sequence[Verdict]) -> tuple[Verdict, ...]:
        """The verdicts of one device without what the rules forbid; a refusal of its own stays what it was."""
        changed = list(verdicts)
        for atom, (pinned_to, place) in self.pinned.items():
            if pinned_to != device and changed[atom]:
                changed[atom] = Unsupported(Reason.RULE, f"pinned to {pinned_to!r} by {place}")
        for atom, place in self.banned.get(device, {}).items():
            if changed[atom]:
                changed[atom] = Unsupported(Reason.RULE, place)
        return tuple(changed)

    def broken_pin(self, graph: Graph, atom: int, refusal: Unsupported) -> RulesError | None:
        """The error to raise where the device that `atom` is pinned to took its yes back; None without a pin."""
        if atom not in self.pinned:
            return None
        device, place = self.pinned[atom]
        return _refused_pin(place, graph.nodes[graph.atoms[atom][0]].name, device, refusal)


def apply_rules(
    rules: Rules,
    own: Graph,
    graph: Graph,
    positions: Sequence[int],
    devices: Sequence[str],
    verdicts: Mapping[str, Sequence[Verdict]],
) -> Applied:
    """Return the verdicts without what `rules` forbid, and what each rule did.

    1. A rule means nodes of the model itself. It applies to an atom if it means any of its nodes.
    2. A ban turns the device's yes into a refusal with `Reason.RULE`, a pin that of every other device.
    3. A ban from a device that the session does not have does nothing, and so does a rule that finds no node that
       runs. Effects say so.

    Args:
        rules: what a person says.
        own: the model's own nodes.
        graph: what is left to run, with its atoms.
        positions: for every node of `graph`, the position in `own` of the node that it stands for.
        devices: the session's devices in order of preference, without a last resort that nobody named.
        verdicts: per device, its verdict on every atom; devices beside `devices` are restricted as well.

    Raises:
        RulesError: an atom is pinned to two devices, to one that refuses it, that is banned there or that the session
            does not have; or bans leave no device for an atom that had one.
    """
    binder = _Binder(rules, own, graph, positions, devices)
    pinned, banned = binder.pins(), binder.bans()
    binder.check_pins(pinned, banned, verdicts)
    effects = tuple(binder.effect(rule) for rule in rules)
    places = {id(rule): effect.source for rule, effect in zip(rules, effects, strict=True)}
    applied = Applied(
        verdicts={},
        effects=effects,
        pinned={atom: (pin.device, places[id(pin)]) for atom, pin in pinned.items()},
        banned={device: {atom: places[id(ban)] for atom, ban in of.items()} for device, of in banned.items()},
    )
    restricted_verdicts = {
        device: applied.restricted(device, device_verdicts) for device, device_verdicts in verdicts.items()
    }
    binder.check_homes(banned, verdicts, restricted_verdicts)
    return Applied(verdicts=restricted_verdicts, effects=applied.effects, pinned=applied.pinned, banned=applied.banned)


class _Binder:
    """The rules of one session, bound to one graph."""

    def __init__(
        self, rules: Rules, model_graph: Graph, graph: Graph, positions: Sequence[int], devices: Sequence[str]
    ) -> None:
        self._rules = rules
        self._own = model_graph
        self._graph = graph
        self._devices = devices
        self._selector = Selector(model_graph)
        self._selected = {id(rule): self._selector.select(rule) for rule in rules}
        self._running: dict[int, list[int]] = {}
        for node, position in enumerate(positions):
            self._running.setdefault(position, []).append(node)
        self._positions = positions

    def pins(self) -> dict[int, Pin]:
        """Atom -> the pin that holds it."""
        pins_by_atom: dict[int, Pin] = {}
        for pin in self._rules.pins:
            atoms = self._atoms(pin)
            if atoms and pin.device not in self._devices:
                raise self._error(
                    f"{self._rules.place(pin)} pins {self._called(atoms[0], pin)} to {pin.device!r}, which is none of "
                    f"the devices {', '.join(self._devices)}; name it as a device, or leave the rule out",
                )
            for atom in atoms:
                other = pins_by_atom.setdefault(atom, pin)
                if other.device != pin.device:
                    raise self._error(self._two_pins(atom, other, pin))
        return pins_by_atom

    def bans(self) -> dict[str, dict[int, Ban]]:
        """Device -> atom -> the first ban that holds it."""
        bans_by_device: dict[str, dict[int, Ban]] = {}
        for ban in self._rules.bans:
            of_device = bans_by_device.setdefault(ban.device, {})
            for atom in self._atoms(ban):
                of_device.setdefault(atom, ban)
        return bans_by_device

    def check_pins(
        self,
        pinned: Mapping[int, Pin],
        banned: Mapping[str, Mapping[int, Ban]],
        verdicts: Mapping[str, Sequence[Verdict]],
    ) -> None:
        """Refuse pins to devices that cannot have the atom."""
        for atom, pin in pinned.items():
            ban = banned.get(pin.device, {}).get(atom)
            if ban is not None:
                raise self._error(
                    f"{self._rules.place(pin)} and {self._rules.place(ban)} contradict each other: "
                    f"{self._called(atom, pin)} is pinned to {pin.device!r} and banned from it; change one of them",
                )
            verdict = verdicts[pin.device][atom]
            if isinstance(verdict, Unsupported):
                place = self._rules.place(pin)
                raise _refused_pin(place, self._name(atom, pin), pin.device, verdict, self._rules.source)

    def check_homes(
        self,
        banned: Mapping[str, Mapping[int, Ban]],
        original_verdicts: Mapping[str, Sequence[Verdict]],
        restricted_verdicts: Mapping[str, Sequence[Verdict]],
    ) -> None:
        """Refuse bans that leave no device to an atom that had one."""
        for device, atoms in banned.items():
            for atom, ban in atoms.items():
                had = [name for name in self._devices if original_verdicts[name][atom]]
                if device in had and not any(restricted_verdicts[name][atom] for name in self._devices):
                    alternatives = "; ".join(
                        f"{name!r}: {restricted_verdicts[name][atom]}" for name in self._devices if name != device
                    )
                    raise self._error(
                        f"{self._rules.place(ban)} leaves no device to {self._called(atom, ban)}: it is banned from "
                        f"{device!r}, and no other takes it"
                        f"{f' ({alternatives})' if alternatives else ''}; narrow the ban",
                    )

    def effect(self, rule: Pin | Ban) -> RuleEffect:
        """What the rule did."""
        selected = self._selected[id(rule)]
        running = sum(position in self._running for position in selected)
        away = rule.device not in self._devices
        return RuleEffect(
            rule=str(rule),
            source=self._rules.place(rule),
            nodes=0 if away else running,
            note="; ".join(self._notes(rule, len(selected), running)),
        )

    def _notes(self, rule: Pin | Ban, selected: int, running: int) -> Iterator[str]:
        if rule.device not in self._devices:
            yield f"{rule.device!r} is none of the devices {', '.join(self._devices)}"
        if not selected:
            yield self._selector.why_nothing(rule)
        elif not running:
            yield f"it binds only nodes that are folded before the run or that nobody uses ({selected})"
        elif running < selected:
            yield f"{selected - running} more are folded before the run or nobody uses them"
        along = self._along(rule)
        if along:
            named = ", ".join(map(repr, along[:_NAMED]))
            more = f" and {len(along) - _NAMED} more" if len(along) > _NAMED else ""
            yield f"it applies to {named}{more} too, placed as one with these"

    def _along(self, rule: Pin | Ban) -> list[str]:
        """Names of nodes that the rule does not mean, in atoms of nodes that it means."""
        selected = self._selected[id(rule)]
        members = (node for atom in self._atoms(rule) for node in self._graph.atoms[atom])
        return [self._graph.nodes[node].name for node in members if self._positions[node] not in selected]

    def _atoms(self, rule: Pin | Ban) -> list[int]:
        atom_of = self._graph.atom_of
        selected = self._selected[id(rule)]
        return sorted({atom_of[node] for position in selected for node in self._running.get(position, ())})

    def _name(self, atom: int, rule: Pin | Ban) -> str:
        """The first of the atom's nodes that the rule means."""
        selected = self._selected[id(rule)]
        members = self._graph.atoms[atom]
        return next(self._graph.nodes[node].name for node in members if self._positions[node] in selected)

    def _called(self, atom: int, rule: Pin | Ban) -> str:
        return f"node {self._name(atom, rule)!r}"

    def _two_pins(self, atom: int, first: Pin, second: Pin) -> str:
        first_name, other = self._name(atom, first), self._name(atom, second)
        subject = (
            f"node {first_name!r} is"
            if first_name == other
            else f"nodes {first_name!r} and {other!r}, which are placed as one, are"
        )
        return (
            f"{subject} pinned to two devices: to {first.device!r} by {self._rules.place(first)} and to "
            f"{second.device!r} by {self._rules.place(second)}; change one of them"
        )

    def _error(self, message: str) -> RulesError:
        return RulesError(message, file=self._rules.source)


def _refused_pin(place: str, node: str, device: str, refusal: Unsupported, file: str = "") -> RulesError:
    return RulesError(
        f"{place} pins node {node!r} to {device!r}, which refuses it: {refusal}; change the rule or what is refused",
        file=file,
    )
