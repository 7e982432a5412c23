"""Segments and plans: placement by priority, the cut into single-device parts, and the order in which they run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from partition.graph import Graph, GraphError, Verdict

Turn = tuple[str, tuple[int, ...]]
"""A label and the atoms that run in its turn, ascending."""

_WORK = 64_000_000
"""Atoms that the search may touch, copies of a state included: a few tenths of a second at most."""
_WIDEST = 128
"""States kept per length at most: dropping subsets is quadratic in it."""


@dataclass(slots=True)
class _State:
    """What is done after some turns; changed only by `_drain`, on a copy."""

    finished_atoms: int
    """One bit per atom."""
    pending: list[int]
    """For every atom, how many of its predecessors are not done."""
    ready: dict[str, list[int]]
    """Per label, the atoms that could run now."""
    turns: tuple[str, ...]


def schedule(
    predecessors: Sequence[Sequence[int]], placement: Sequence[str], *, work: int = _WORK
) -> tuple[list[Turn], bool]:
    """Return turns that run every atom, and whether their number is the smallest possible.

    1. The greedy schedule, always the label with most ready atoms, is linear and bounds the number of turns.
    2. Where the graph is small enough for `work`, a search keeps the best states of every length, as many as `work`
       allows. If it never had to drop a state that could have been better, its answer is exact.
    3. Else the answer is the better of the two and may be one turn or more above the minimum.

    Args:
        predecessors: for every atom, the atoms it reads from, all of them before it, each once.
        placement: the label of every atom.
        work: atoms that the search may touch.
    """
    successors = _successors(predecessors)
    greedy = _greedy(_start(predecessors, placement), successors, placement)
    labels = len(set(placement))
    width = min(_WIDEST, work // max(1, len(greedy) * labels * len(placement)))
    if width < 2:
        return greedy, len(greedy) <= labels
    turn_labels, exact = _search(_start(predecessors, placement), successors, placement, width, len(greedy))
    return greedy if turn_labels is None else _follow(turn_labels, predecessors, successors, placement), exact


def _successors(predecessors: Sequence[Sequence[int]]) -> list[list[int]]:
    successors: list[list[int]] = [[] for _ in predecessors]
    for atom, atom_predecessors in enumerate(predecessors):
        for predecessor in atom_predecessors:
            successors[predecessor].append(atom)
    return successors


def _start(predecessors: Sequence[Sequence[int]], placement: Sequence[str]) -> _State:
    ready: dict[str, list[int]] = {label: [] for label in placement}
    for atom, atom_predecessors in enumerate(predecessors):
        if not atom_predecessors:
            ready[placement[atom]].append(atom)
    return _State(0, [len(atom_predecessors) for atom_predecessors in predecessors], ready, ())


def _drain(state: _State, label: str, successors: Sequence[Sequence[int]], placement: Sequence[str]) -> list[int]:
    """Run one turn of `label`, changing `state`; return the atoms in the order in which they ran."""
    queue = state.ready[label]
    state.ready[label] = []
    for atom in queue:  # grows while it is walked
        for successor in successors[atom]:
            state.pending[successor] -= 1
            if not state.pending[successor]:
                (queue if placement[successor] == label else state.ready[placement[successor]]).append(successor)
    return queue


def _greedy(state: _State, successors: Sequence[Sequence[int]], placement: Sequence[str]) -> list[Turn]:
    turns: list[Turn] = []
    while any(state.ready.values()):
        label = max(state.ready, key=lambda name: len(state.ready[name]))
        turns.append((label, tuple(sorted(_drain(state, label, successors, placement)))))
    return turns


def _search(
    start: _State, successors: Sequence[Sequence[int]], placement: Sequence[str], width: int, bound: int
) -> tuple[tuple[str, ...] | None, bool]:
    """Return turns fewer than `bound` if some are found, and whether nothing better can exist."""
    states, exact = [start], True
    everything = (1 << len(placement)) - 1
    for _ in range(bound - 1):
        following = [
            _state_after_turn(state, label, successors, placement)
            for state in states
            for label, ready in state.ready.items()
            if ready
        ]
        for state in following:
            if state.finished_atoms == everything:
                return state.turns, exact
        states = _undominated(following)
        exact = exact and len(states) <= width
        states = states[:width]
    return None, exact


def _state_after_turn(
    state: _State, label: str, successors: Sequence[Sequence[int]], placement: Sequence[str]
) -> _State:
    ready = {name: list(atoms) for name, atoms in state.ready.items()}
    copy = _State(state.finished_atoms, list(state.pending), ready, (*state.turns, label))
    for atom in _drain(copy, label, successors, placement):
        copy.finished_atoms |= 1 << atom
    return copy


def _undominated(states: Sequence[_State]) -> list[_State]:
    """Those states that no other one contains, fullest first; one of each equal set."""
    maximal_states: list[_State] = []
    for state in sorted(states, key=lambda state: -state.finished_atoms.bit_count()):
        if not any(state.finished_atoms & other.finished_atoms == state.finished_atoms for other in maximal_states):
            maximal_states.append(state)
    return maximal_states


def _follow(
    turns: Sequence[str],
    predecessors: Sequence[Sequence[int]],
    successors: Sequence[Sequence[int]],
    placement: Sequence[str],
) -> list[Turn]:
    state = _start(predecessors, placement)
    return [(label, tuple(sorted(_drain(state, label, successors, placement)))) for label in turns]


_NAMED = 5
"""How many nodes an error message names before it only counts them."""


def place_by_priority(
    graph: Graph, devices: Sequence[str], verdicts: Mapping[str, Sequence[Verdict]]
) -> tuple[str, ...]:
    """Return, for every atom, the first of `devices` whose verdict is yes.

    Args:
        graph: the graph whose atoms are placed.
        devices: labels in order of preference; the last one normally takes everything.
        verdicts: per device, its verdict on every atom, in the order of `graph.atoms`.

    Raises:
        GraphError: no device takes some atom, or a device has not judged every atom.
    """
    for device in devices:
        verdict_count = len(verdicts.get(device, ()))
        if verdict_count != len(graph.atoms):
            raise GraphError(
                f"device {device!r} gave {verdict_count} verdicts for {len(graph.atoms)} atoms; every atom needs one"
            )
    placed = [next((device for device in devices if verdicts[device][atom]), None) for atom in range(len(graph.atoms))]
    check_all_placeable(graph, devices, [atom for atom, device in enumerate(placed) if device is None])
    return tuple(device for device in placed if device is not None)


def check_all_placeable(graph: Graph, devices: Sequence[str], atoms: Sequence[int]) -> None:
    """Do nothing if there are no atoms that none of `devices` takes.

    Raises:
        GraphError: there are; the message names the nodes of some of them.
    """
    if not atoms:
        return
    nodes = [graph.nodes[node] for atom in atoms for node in graph.atoms[atom]]
    named = ", ".join(f"{node.name!r} ({node.op_type})" for node in nodes[:_NAMED])
    more = f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else ""
    raise GraphError(
        f"none of the devices {list(devices)} takes {named}{more}; end the list with a device that takes everything"
    )


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

    Three and more labels: see `partition.plan.schedule`; `exact` says whether the number is the minimum.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One segment in its place."""

    segment: int
    """Position of the segment in the plan, which is also its name in reports."""
    device: str
    """The label of the device that runs it."""
    nodes: tuple[int, ...]
    """Positions of its nodes in the graph, ascending."""
    inputs: tuple[str, ...]
    """Values it reads that it does not make itself, constants left out, in order of first use."""
    constants: tuple[str, ...]
    """Constants it reads, in order of first use."""
    outputs: tuple[str, ...]
    """Values it makes that someone outside reads, in order of production."""
    released: tuple[str, ...]
    """Values that nobody reads after this step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A placed and cut graph, ready to be compiled."""

    graph: Graph
    devices: tuple[str, ...]
    """Labels of the devices, in the person's order of preference."""
    verdicts: Mapping[str, tuple[Verdict, ...]]
    """Per device, its verdict on every atom."""
    placement: tuple[str, ...]
    """The device of every atom."""
    steps: tuple[Step, ...]
    """In the order in which they run."""
    exact: bool
    """The number of segments is the smallest possible for this placement."""

    @property
    def produced_values(self) -> frozenset[str]:
        """Values that steps make for others, or as outputs."""
        return frozenset(name for step in self.steps for name in step.outputs)

    @property
    def switches(self) -> int:
        """How often execution passes from one device to another."""
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
    """Return the plan that runs `segments` in the given order.

    Values that sub-graphs capture count as read. A model output is never released. A model output that is itself a
    model input or a constant is no step's output.

    Args:
        graph: the graph.
        devices: labels in the person's order of preference.
        verdicts: per device, its verdict on every atom.
        placement: the device of every atom.
        segments: in the order in which they shall run.
        exact: whether the number of segments is known to be the smallest.

    Raises:
        GraphError: a segment reads a value that a later one makes, or a node is in none or in two of them.
    """
    check_order(graph, segments)
    parts = [_nodes(graph, segment) for segment in segments]
    output_names = frozenset(graph.outputs)
    # Later segments come later here too, so what stays is the last one that reads the value.
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
        raise GraphError(f"node {graph.nodes[readers[0]].name!r} reads {name!r}, which nothing makes")
    for name in graph.outputs:
        if name not in defined_names:
            raise GraphError(f"the graph's output {name!r} is made by nothing")


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
