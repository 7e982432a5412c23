"""Costs of a plan by segment, and whether predicted savings exceed the error of the costs.

The ratio of two devices' times varies over the small networks of a calibration. Its spread gives the probability that
the cheaper device is faster. Just over one half (4/7) suffices, because a wrong CPU choice is as bad as a wrong device
choice. A mixed placement must save more than the sum of the errors of CPU and devices, because ONNX Runtime fuses no
nodes across cuts, and its threads sleep while devices run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import hypot, log
from typing import TYPE_CHECKING

import numpy as np

from nnadapter.converters.convert import Conversion
from nnadapter.costs.calibration import spread
from nnadapter.costs.cost_model import (
    CostTable,
    DeviceCosts,
    FusedGraph,
    Fusion,
    Source,
    cost_table,
    fuse_atoms,
    fusion_of,
)
from nnadapter.drivers.interface import NO_OPERATION
from nnadapter.records import dataclass, replace
from partition import Graph, Plan, Segment, Verdict
from partition.by_cost.pricing import SegmentPrice, all_on, price, price_segments

if TYPE_CHECKING:
    from partition.by_cost.latency import Candidate, CheapestPlacement
    from partition.by_cost.pricing import Prices


Costs = Mapping[str, DeviceCosts]
RunsAs = Sequence[str]
"""Device's descriptions of a segment's operations, empty if unknown; equal texts mean one fused kernel."""


@dataclass(frozen=True, eq=False, kw_only=True)
class PlanPrice:
    """Predicted costs of a plan, in seconds."""

    table: CostTable
    graph: FusedGraph
    segments: tuple[SegmentPrice, ...]
    benefits: tuple[float | None, ...]
    """Savings over the CPU by step; None on the CPU, or if unknown."""
    on_cpu: float | None
    """Seconds of the entire model on the CPU, ignoring rules; None if the CPU refuses a node."""

    @property
    def seconds(self) -> float:
        return sum(segment.total for segment in self.segments)

    def of_nodes(self, plan: Plan, flops: Sequence[int | None]) -> dict[int, float]:
        """Return the seconds of every node; fused groups are split by FLOPs, except on the CPU."""
        row = {device: number for number, device in enumerate(self.table.devices)}
        seconds_by_node: dict[int, float] = {}
        for atom, part in enumerate(self.graph.parts):
            nodes = self.graph.graph.atoms[atom]
            if plan.placement[part[0]] == self.table.prices.host:
                seconds_by_node.update((node, float(self.table.on_host[node])) for node in nodes)
                continue
            seconds = float(self.table.prices.run[row[plan.placement[part[0]]], atom])
            work = [flops[node] or 0 for node in nodes]
            shares = [node_flops / sum(work) for node_flops in work] if sum(work) else [1 / len(nodes)] * len(nodes)
            seconds_by_node.update((node, seconds * share) for node, share in zip(nodes, shares, strict=True))
        return seconds_by_node


def costs_of(
    plan: Plan, conversion: Conversion, runs_as: Sequence[RunsAs], costs: Costs
) -> tuple[CostTable, FusedGraph]:
    """Return the costs of a plan's atoms, and its graph with fused groups as atoms.

    `runs_as` describes the operations of each step.
    """
    fusions = _fusions(plan, conversion, runs_as)
    graph = fuse_atoms(plan.graph, fusions.values())
    return cost_table(graph, conversion, graph.verdicts(plan.verdicts), costs, fusions), graph


def cpu_table(
    table: CostTable, graph: FusedGraph, conversion: Conversion, takes: Sequence[Verdict], costs: Costs
) -> CostTable:
    """Return the CPU's costs of all atoms, ignoring rules; `takes` are the CPU's verdicts."""
    if np.isfinite(table.prices.run[table.devices.index(table.prices.host)]).all():
        return table
    return cost_table(graph, conversion, graph.verdicts({table.prices.host: takes}), costs)


def price_plan(plan: Plan, table: CostTable, graph: FusedGraph, cpu: CostTable) -> PlanPrice:
    """Return the price of a plan; no segment boundary may split an atom of `graph`."""
    prices = table.prices
    home = {plan.graph.atom_of[node]: step.segment for step in plan.steps for node in step.nodes}
    atoms_by_step: list[list[int]] = [[] for _ in plan.steps]
    for atom, part in enumerate(graph.parts):
        atoms_by_step[home[part[0]]].append(atom)
    labels = [plan.placement[part[0]] for part in graph.parts]
    parts = [Segment(step.device, tuple(atoms)) for step, atoms in zip(plan.steps, atoms_by_step, strict=True)]
    segments = price_segments(graph.graph, prices, labels, parts)
    if len(segments) == 1:
        (only,) = segments
        segments = (replace(only, launch=table.sole_launch_seconds[only.device]),)
    return PlanPrice(
        table=table,
        graph=graph,
        segments=segments,
        benefits=tuple(_benefit(table, cpu, segment, part) for segment, part in zip(segments, parts, strict=True)),
        on_cpu=_on_cpu(graph.graph, cpu),
    )


def holds_together(plan: Plan, graph: FusedGraph) -> bool:
    """Return whether no segment boundary splits an atom of `graph`."""
    home = {plan.graph.atom_of[node]: step.segment for step in plan.steps for node in step.nodes}
    return all(len({home[atom] for atom in part}) == 1 for part in graph.parts)


def _fusions(plan: Plan, conversion: Conversion, runs_as: Sequence[RunsAs]) -> dict[str, Fusion]:
    texts_by_device: dict[str, list[tuple[int, str]]] = {}
    for step, texts in zip(plan.steps, runs_as, strict=True):
        operations = sorted(part for node in step.nodes for part in conversion.operations[node])
        if len(texts) == len(operations):
            # Equal texts in different segments are different groups.
            unique_texts = (text if text == NO_OPERATION else f"{step.segment} {text}" for text in texts)
            texts_by_device.setdefault(step.device, []).extend(zip(operations, unique_texts, strict=True))
    return {
        device: fusion_of(plan.graph, conversion, [part for part, _ in pairs], [text for _, text in pairs])
        for device, pairs in texts_by_device.items()
    }


def _benefit(table: CostTable, cpu: CostTable, segment: SegmentPrice, part: Segment) -> float | None:
    host = cpu.prices.host
    if segment.device == host or table.sources[segment.device] is Source.ASSUMED:
        return None
    host_seconds = float(cpu.prices.run[cpu.devices.index(host), list(part.atoms)].sum())
    return host_seconds - segment.total if np.isfinite(host_seconds) else None


def _on_cpu(graph: Graph, cpu: CostTable) -> float | None:
    if not graph.atoms:
        return 0.0
    prices = cpu.prices
    seconds = price(graph, prices, (prices.host,) * len(graph.atoms)) - cpu.sole_launch_savings(prices.host)
    return seconds if np.isfinite(seconds) else None


FOUR_OF_SEVEN = 0.18
"""z-score of probability 4/7."""


def beyond_doubt(
    placed: CheapestPlacement, prices: Prices, costs: Mapping[str, DeviceCosts]
) -> tuple[CheapestPlacement, str]:
    """Return the cheapest placement, or a simpler one if the saving is within the error of the costs.

    CPU only is simplest, then other single devices, then mixed placements. The note explains any result other than
    `placed`.
    """
    host = prices.host
    cpu = next((candidate for candidate in placed.candidates if candidate.origin == all_on(host)), None)
    if cpu is None or cpu.placement == placed.placement or cpu.cost <= 0:
        return placed, ""
    best, doubt = cpu, 0.0
    for candidate in sorted(placed.candidates, key=_pieces):  # stable: cheapest first within each kind
        in_doubt = _doubt(candidate, cpu, prices, costs)
        if best.cost - candidate.cost >= in_doubt and candidate.cost < best.cost:
            best = candidate
        if candidate.placement == placed.placement:
            doubt = in_doubt
    if best.placement == placed.placement:
        return placed, ""
    other_candidates = tuple(candidate for candidate in placed.candidates if candidate is not best)
    where = "the CPU" if best is cpu else best.placement[0]
    return (
        replace(placed, placement=best.placement, cost=best.cost, candidates=(best, *other_candidates)),
        f"the cheapest placement found saves {_percent((best.cost - placed.cost) / best.cost)}, less than the "
        f"error of the costs ({_percent(doubt / best.cost)}), so everything runs on {where}; policy 'measured' finds "
        "the faster one",
    )


def _pieces(candidate: Candidate) -> bool:
    return len(set(candidate.placement)) > 1


def _doubt(candidate: Candidate, cpu: Candidate, prices: Prices, costs: Mapping[str, DeviceCosts]) -> float:
    host = prices.host
    devices = set(candidate.placement) - {host}
    if not _pieces(candidate):
        return max((FOUR_OF_SEVEN * _between(costs[host], costs[name]) * cpu.cost for name in devices), default=0.0)
    away = np.array([device != host for device in candidate.placement])
    delegated = candidate.cost - float(prices.run[prices.devices.index(host)][~away].sum())
    return costs[host].off_by * cpu.cost + max(costs[name].off_by for name in devices) * delegated


def _between(first: DeviceCosts, second: DeviceCosts) -> float:
    both = [(measured, second.networks[name]) for name, measured in first.networks.items() if name in second.networks]
    if not both:
        return hypot(first.off_by, second.off_by)
    return spread(log(mine.quotient / theirs.quotient) for mine, theirs in both if mine.predicted and theirs.predicted)


def _percent(share: float) -> str:
    return f"{100 * share:.{0 if share >= 0.01 else 1}f} %"
