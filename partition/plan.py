"""The plan: which segment runs when, what each reads and makes, and how long each value must be kept.

A plan is immutable. A run takes one reference to it and keeps it to its end; repair puts another plan in its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from partition.graph import Graph
from partition.segments import Segment
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

    Raises:
        GraphError: a segment reads a value that a later one makes, or a node is in none or in two of them.
    """
    raise NotImplementedError
