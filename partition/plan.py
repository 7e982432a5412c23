"""Placement by priority, the cut of a placement into segments, and plans that run them in order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from partition.graph import Graph, GraphError, Verdict

Turn = tuple[str, tuple[int, ...]]
"""Device label, and the atoms that run before the next switch."""

_WORK = 64_000_000
_WIDEST = 128
"""Beam width; removing dominated states is quadratic in it."""


@dataclass(slots=True)
class _State:
    placement: Sequence[str]
    successors: Sequence[Sequence[int]]
    pending: list[int]
    ready: dict[str, list[int]]
    finished_atoms: int = 0
    """Set of finished atoms, as bits."""
    turns: tuple[str, ...] = ()

    @classmethod
    def at_start(cls, predecessors: Sequence[Sequence[int]], placement: Sequence[str]) -> _State:
        successors: list[list[int]] = [[] for _ in predecessors]
        ready: dict[str, list[int]] = {label: [] for label in placement}
        for atom, atom_predecessors in enumerate(predecessors):
            for predecessor in atom_predecessors:
                successors[predecessor].append(atom)
            if not atom_predecessors:
                ready[placement[atom]].append(atom)
        return cls(placement, successors, list(map(len, predecessors)), ready)

    def copy(self) -> _State:
        ready = {label: list(atoms) for label, atoms in self.ready.items()}
        return replace(self, pending=list(self.pending), ready=ready)

    def run(self, label: str) -> list[int]:
        """Run the ready atoms of device `label`, and atoms that become ready; return them in order."""
        placement, pending = self.placement, self.pending
        queue = self.ready[label]
        self.ready[label] = []
        for atom in queue:  # grows during iteration
            for successor in self.successors[atom]:
                pending[successor] -= 1
                if not pending[successor]:
                    (queue if placement[successor] == label else self.ready[placement[successor]]).append(successor)
        return queue

    def after_turn(self, label: str) -> _State:
        state = self.copy()
        state.turns += (label,)
        for atom in state.run(label):
            state.finished_atoms |= 1 << atom
        return state


def schedule(
    predecessors: Sequence[Sequence[int]], placement: Sequence[str], *, work: int = _WORK
) -> tuple[list[Turn], bool]:
    """Return turns, each on one device, that run every atom, and whether their number is proven minimal.

    The greedy schedule, which picks the label with most ready atoms, bounds the number of turns. If `work` allows, a
    beam search with dominance pruning looks for fewer; it is exact if no undominated state was dropped.
    """
    start = _State.at_start(predecessors, placement)
    greedy = _greedy(start.copy())
    labels = len(set(placement))
    width = min(_WIDEST, work // max(1, len(greedy) * labels * len(placement)))
    if width < 2:
        return greedy, len(greedy) <= labels
    turn_labels, exact = _search(start, width, len(greedy))
    return greedy if turn_labels is None else [_turn(start, label) for label in turn_labels], exact


def _turn(state: _State, label: str) -> Turn:
    return label, tuple(sorted(state.run(label)))


def _greedy(state: _State) -> list[Turn]:
    turns: list[Turn] = []
    while any(state.ready.values()):
        turns.append(_turn(state, max(state.ready, key=lambda name: len(state.ready[name]))))
    return turns


def _search(start: _State, width: int, bound: int) -> tuple[tuple[str, ...] | None, bool]:
    states, exact = [start], True
    everything = (1 << len(start.placement)) - 1
    for _ in range(bound - 1):
        following = [state.after_turn(label) for state in states for label, ready in state.ready.items() if ready]
        for state in following:
            if state.finished_atoms == everything:
                return state.turns, exact
        states = _undominated(following)
        exact = exact and len(states) <= width
        states = states[:width]
    return None, exact


def _undominated(states: Sequence[_State]) -> list[_State]:
    maximal_states: list[_State] = []
    for state in sorted(states, key=lambda state: -state.finished_atoms.bit_count()):
        if not any(state.finished_atoms & other.finished_atoms == state.finished_atoms for other in maximal_states):
            maximal_states.append(state)
    return maximal_states


def place_by_priority(
    graph: Graph, devices: Sequence[str], verdicts: Mapping[str, Sequence[Verdict]]
) -> tuple[str, ...]:
    """Return, for every atom, the first of `devices` that supports it.

    Raises:
        GraphError: no device supports some atom, or a device lacks a verdict.
    """
    for device in devices:
        verdict_count = len(verdicts.get(device, ()))
        if verdict_count != len(graph.atoms):
            raise GraphError(
                f"device {device!r} has {verdict_count} verdicts for {len(graph.atoms)} atoms; every atom needs one"
            )
    placed = [next((device for device in devices if verdicts[device][atom]), None) for atom in range(len(graph.atoms))]
    check_all_placeable(graph, devices, [atom for atom, device in enumerate(placed) if device is None])
    return tuple(device for device in placed if device is not None)


def check_all_placeable(graph: Graph, devices: Sequence[str], atoms: Sequence[int]) -> None:
    """Raise GraphError, with node names, if there are any `atoms` that no device supports."""
    if not atoms:
        return
    nodes = [graph.nodes[node] for atom in atoms for node in graph.atoms[atom]]
    named = listed([f"{node.name!r} ({node.op_type})" for node in nodes])
    raise GraphError(
        f"none of the devices {list(devices)} supports {named}; end the list with a device that supports everything"
    )


def listed(names: Sequence[str], most: int = 5) -> str:
    """Return up to `most` names for a message, joined by commas, and the number of further names."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


@dataclass(frozen=True, slots=True)
class Segment:
    """Convex set of atoms on one device."""

    device: str
    atoms: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """Partition of a graph into segments."""

    segments: tuple[Segment, ...]
    exact: bool
    """True if no cut of this placement has fewer segments."""


def cut(graph: Graph, placement: Sequence[str], *, host: str | None = None) -> Cut:
    """Return the fewest segments that realize `placement`, in execution order.

    One or two labels: exact, linear time. Let turns alternate between the labels, starting with a possibly empty turn
    of `first`. level(v) = max over producers p of level(p) + [label(p) != label(v)], with sources at 0 for `first` and
    1 for the other label, is the earliest turn for v. By induction no schedule that starts with `first` needs fewer
    turns, and one segment per level suffices. The better of both starts is the minimum.

    Among equal totals, the start with fewer segments of labels other than `host` is preferred. This minimizes both
    numbers.

    Three or more labels: see `schedule`. Unconnected siblings share a segment.

    Raises:
        GraphError: the placement does not have one label per atom.
    """
    if len(placement) != len(graph.atoms):
        raise GraphError(
            f"the placement names {len(placement)} devices for {len(graph.atoms)} atoms; every atom needs one"
        )
    labels = tuple(dict.fromkeys(placement))
    if len(labels) > 2:
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
    other = [label != first for label in placement]  # a level is odd if and only if its label is not `first`
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
    """Check that every atom is in one segment and reads only from its own or earlier ones, so segments are convex.

    Raises:
        GraphError: a segment violates this; the message names a node.
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
    """Split a segment into two that run in sequence, minimizing the heavier half; None if it has one atom.

    Both halves are convex, because atoms are in topological order.
    """
    if len(segment.atoms) < 2:
        return None
    fronts = list(accumulate(weights[atom] for atom in segment.atoms))
    total = fronts[-1]
    at = min(range(1, len(fronts)), key=lambda size: max(fronts[size - 1], total - fronts[size - 1]))
    return Segment(segment.device, segment.atoms[:at]), Segment(segment.device, segment.atoms[at:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Segment of a plan, with its boundary values."""

    segment: int
    """Index in the plan, used in reports."""
    device: str
    nodes: tuple[int, ...]
    """Positions in the graph, ascending."""
    inputs: tuple[str, ...]
    """Values from outside, without constants, in order of first use."""
    constants: tuple[str, ...]
    outputs: tuple[str, ...]
    """Values read elsewhere, and model outputs, in order of production."""
    released: tuple[str, ...]
    """Inputs that no later step reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Placed and cut graph, ready to be compiled."""

    graph: Graph
    devices: tuple[str, ...]
    """Device labels in the user's order of preference."""
    verdicts: Mapping[str, tuple[Verdict, ...]]
    placement: tuple[str, ...]
    steps: tuple[Step, ...]
    exact: bool

    @property
    def produced_values(self) -> frozenset[str]:
        """Values that steps pass to each other or return."""
        return frozenset(name for step in self.steps for name in step.outputs)

    @property
    def switches(self) -> int:
        return sum(a.device != b.device for a, b in zip(self.steps, self.steps[1:], strict=False))


def make_plan(
    graph: Graph,
    devices: Sequence[str],
    verdicts: Mapping[str, Sequence[Verdict]],
    placement: Sequence[str],
    segments: Sequence[Segment],
    *,
    exact: bool,
) -> Plan:
    """Return the plan that runs `segments` in this order.

    Captured values of subgraphs count as read. Model outputs are never released. A model output that is also an input
    or constant is no step's output.

    Raises:
        GraphError: a segment reads a later one's value, or a node is in no segment or in two.
    """
    check_order(graph, segments)
    parts = [_nodes(graph, segment) for segment in segments]
    output_names = frozenset(graph.outputs)
    # Later segments overwrite earlier ones, so the last reader remains.
    last = {
        name: position for position, nodes in enumerate(parts) for node in nodes for name in graph.nodes[node].reads
    }
    _refuse_unknown(graph, last)
    steps = tuple(
        _step(graph, position, segment.device, nodes, last, output_names)
        for position, (segment, nodes) in enumerate(zip(segments, parts, strict=True))
    )
    return Plan(
        graph=graph,
        devices=tuple(devices),
        verdicts={device: tuple(device_verdicts) for device, device_verdicts in verdicts.items()},
        placement=tuple(placement),
        steps=steps,
        exact=exact,
    )


def _nodes(graph: Graph, segment: Segment) -> tuple[int, ...]:
    return tuple(sorted(node for atom in segment.atoms for node in graph.atoms[atom]))


def _refuse_unknown(graph: Graph, read: Iterable[str]) -> None:
    defined_names = graph.constants.union(graph.inputs, graph.producer)
    if not defined_names.issuperset(read):
        name, readers = next(item for item in graph.consumers.items() if item[0] not in defined_names)
        raise GraphError(f"node {graph.nodes[readers[0]].name!r} reads {name!r}, which no node produces")
    for name in graph.outputs:
        if name not in defined_names:
            raise GraphError(f"no node produces the graph's output {name!r}")


def _step(
    graph: Graph,
    position: int,
    device: str,
    nodes: tuple[int, ...],
    last: Mapping[str, int],
    output_names: frozenset[str],
) -> Step:
    produced_names = [name for node in nodes for name in graph.nodes[node].outputs if name]
    inside = frozenset(produced_names)
    read = [
        name for name in dict.fromkeys(name for node in nodes for name in graph.nodes[node].reads) if name not in inside
    ]
    inputs = tuple(name for name in read if name not in graph.constants)
    return Step(
        segment=position,
        device=device,
        nodes=nodes,
        inputs=inputs,
        constants=tuple(name for name in read if name in graph.constants),
        outputs=tuple(name for name in produced_names if name in output_names or last.get(name, position) > position),
        released=tuple(name for name in inputs if last[name] == position and name not in output_names),
    )
