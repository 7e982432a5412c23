"""Atoms that a device refused, offered to it node by node."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nnadapter.offering.atoms import inside
from partition.graph import Graph
from partition.verdict import Verdict

Answers = Sequence[Sequence[Verdict]]
"""Per device in the order of preference, the host left out, its verdict on every atom."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """An atom of several nodes that the first device, or more, refused."""

    nodes: tuple[str, ...]
    """Their names."""
    inside: frozenset[str]
    """Values that only they read."""
    before: int | None
    """How many devices refused it before one took it; None if none did."""


def offers(graph: Graph, answers: Answers) -> Iterator[Offer]:
    """The atoms to offer node by node; none where there is no device to offer them to."""
    for atom, nodes in enumerate(graph.atoms if answers else ()):
        if len(nodes) == 1:  # most atoms
            continue
        taker = next((place for place, device_verdicts in enumerate(answers) if device_verdicts[atom]), None)
        if taker != 0:
            names = tuple(graph.nodes[node].name for node in nodes)
            yield Offer(nodes=names, inside=inside(graph, atom), before=taker)


def accepted_splits(offered: Sequence[Offer], graph: Graph, answers: Answers) -> list[Offer]:
    """Return those whose nodes stay apart, after devices were asked for each node.

    They do where no device takes the atom whole, and where one that comes before such a device takes a node of it.
    """
    atom_of = {graph.nodes[node].name: atom for atom, nodes in enumerate(graph.atoms) for node in nodes}
    return [
        offer
        for offer in offered
        if offer.before is None
        or any(
            device_verdicts[atom_of[name]]
            for device_verdicts in answers[: offer.before]
            for name in offer.nodes
            if name in atom_of
        )
    ]
