"""The plan: which segment runs when, what each reads and makes, and how long each value must be kept.

A plan is immutable. A run takes one reference to it and keeps it to its end; repair puts another plan in its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from partition.graph import Graph, GraphError
from partition.segments import Segment, check_order
from partition.verdict import Verdict


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
