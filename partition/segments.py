"""Segments: placement -> the fewest parts that run one after the other, each on one device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from partition.graph import Graph, GraphError


@dataclass(frozen=True, slots=True)
class Segment:
    """A convex set of atoms on one device."""

    device: str
    """The device's label."""
    atoms: tuple[int, ...]
    """Positions of its atoms, ascending."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A graph cut into segments."""

    segments: tuple[Segment, ...]
    """In an order in which they can run."""
    exact: bool
    """No cut with fewer segments exists for this placement."""


def cut(graph: Graph, placement: Sequence[str], *, host: str | None = None) -> Cut:
    """Return the fewest segments that hold `placement`.

    Up to two labels, exact and linear. Let the schedule alternate between the labels, beginning with label `first`
    (its first turn may stay empty). level(v) = max over producers p of level(p) + [label(p) != label(v)], sources at 0
    for `first` and 1 for the other label, is the earliest turn in which v can run, so by induction no schedule that
    begins with `first` needs fewer turns than the levels, and running every level as one segment needs no more.
    Every schedule begins with one of the two labels, so the better of both starts is the minimum.

    Ties: beginning with the host keeps the number of other segments at its minimum, n. A start with another label that
    needs n + 1 of those has at least 2 n + 1 segments in all, and the host's start has at most 2 n + 1. So it can tie
    and never win, and giving ties to the start with fewer segments of other labels minimizes both numbers at once.

    Three and more labels: see `partition.sequences.schedule`; `exact` says whether the number is the minimum.

    Siblings that are not connected share a segment. The last step is `check_order`.

    Args:
        graph: the graph.
        placement: the label of every atom.
        host: label of the device whose segments count for less in a tie; without it, the label of the first atom.

    Raises:
        GraphError: the placement does not name one label per atom.
    """
    if len(placement) != len(graph.atoms):
        raise GraphError(
            f"the placement names {len(placement)} devices for {len(graph.atoms)} atoms; every atom needs one"
        )
    labels = tuple(dict.fromkeys(placement))
    if len(labels) > 2:
        from partition.sequences import schedule  # most placements have two

        turns, exact = schedule(graph.atom_predecessors, placement)
        segments = tuple(Segment(label, atoms) for label, atoms in turns)
    else:
        segments, exact = _better_start(graph, placement, labels, host), True
    check_order(graph, segments)
    return Cut(segments, exact)


def _better_start(
    graph: Graph, placement: Sequence[str], labels: Sequence[str], host: str | None
) -> tuple[Segment, ...]:
    if len(labels) < 2:
        return tuple(Segment(label, tuple(range(len(placement)))) for label in labels)
    free = host if host in labels else labels[0]
    starts = [(first, _levels(graph, placement, first)) for first in labels]
    _, levels = min(starts, key=lambda start: _counts(start[1], start[0] == free))
    return _by_levels(placement, levels)


def _levels(graph: Graph, placement: Sequence[str], first: str) -> list[int]:
    other = [label != first for label in placement]  # a level is odd if, and only if, its label is the other one
    levels: list[int] = []
    for parity, predecessors in zip(other, graph.atom_predecessors, strict=True):
        level = int(parity)
        for predecessor in predecessors:
            earlier = levels[predecessor]
            earlier += (earlier ^ parity) & 1
            if earlier > level:
                level = earlier
        levels.append(level)
    return levels


def _counts(levels: Sequence[int], even_free: bool) -> tuple[int, int]:
    """How many segments there are, and how many of them count; only the lowest level may be empty."""
    deepest, lowest = max(levels), min(levels)
    even, odd = deepest // 2 + 1 - (lowest > 0), (deepest + 1) // 2
    return even + odd, odd if even_free else even


def _by_levels(placement: Sequence[str], levels: Sequence[int]) -> tuple[Segment, ...]:
    order = sorted(range(len(levels)), key=levels.__getitem__)
    ends = [at for at in range(1, len(order)) if levels[order[at]] != levels[order[at - 1]]]
    return tuple(
        Segment(placement[order[start]], tuple(order[start:end]))
        for start, end in zip([0, *ends], [*ends, len(order)], strict=True)
    )


def check_order(graph: Graph, segments: Sequence[Segment]) -> None:
    """Check that `segments` can run in the given order.

    Every atom is in exactly one segment and reads only from its own or an earlier one. All edges of the contracted
    graph then point forwards, so it has no cycle and every segment is convex.

    Raises:
        GraphError: this does not hold; the message names a node.
    """
    home = _homes(graph, segments)
    for atom, (home_segment, predecessors) in enumerate(zip(home, graph.atom_predecessors, strict=True)):
        if home_segment < 0:
            raise GraphError(f"{_name(graph, atom)} is in no segment")
        for predecessor in predecessors:
            if home[predecessor] > home_segment:
                raise GraphError(
                    f"{_name(graph, atom)} in segment {home_segment} reads from {_name(graph, predecessor)}, "
                    f"which runs later, in segment {home[predecessor]}"
                )


def _homes(graph: Graph, segments: Sequence[Segment]) -> list[int]:
    """The segment of every atom, -1 where it has none."""
    home = [-1] * len(graph.atoms)
    for position, segment in enumerate(segments):
        for atom in segment.atoms:
            if not 0 <= atom < len(home):
                raise GraphError(f"segment {position} names atom {atom}; the graph has {len(home)} atoms")
            if home[atom] >= 0:
                raise GraphError(f"{_name(graph, atom)} is in two segments, the second being {position}")
            home[atom] = position
    return home


def _name(graph: Graph, atom: int) -> str:
    return f"node {graph.nodes[graph.atoms[atom][0]].name!r}"


def halve(segment: Segment, weights: Sequence[float] | Mapping[int, float]) -> tuple[Segment, Segment] | None:
    """Split a segment in two that run one after the other, or return None where it holds a single atom.

    Atoms are numbered in a topological order, so the front and the back of the segment are convex if it is, and
    nothing in the front reads from the back. Of all such splits, the one whose heavier half is lightest is taken.

    Args:
        segment: the segment.
        weights: per atom of the graph, by its position, a number that is not negative, such as bytes.
    """
    if len(segment.atoms) < 2:
        return None
    fronts = list(accumulate(weights[atom] for atom in segment.atoms))
    total = fronts[-1]
    at = min(range(1, len(fronts)), key=lambda size: max(fronts[size - 1], total - fronts[size - 1]))
    return Segment(segment.device, segment.atoms[:at]), Segment(segment.device, segment.atoms[at:])
