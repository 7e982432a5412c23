"""What refusals cause between devices: a trial per group of them, with their nodes on the device that refuses them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice, pairwise
from math import isfinite

from nnadapter.drivers.selection import CPU
from nnadapter.planning.pricing import PlanPrice
from nnadapter.reports.cost_facts import RefusalCost
from partition.by_cost.pricing import Prices, price_segments
from partition.graph import Graph
from partition.plan import Plan
from partition.segments import cut
from partition.verdict import Unsupported

_MOST = 20
"""Groups that are tried, the most frequent ones; a trial is a cut, linear in the graph."""
_Group = tuple[str, str, str]
"""Device, op type, reason."""


def refusal_costs(plan: Plan, price: PlanPrice | None) -> tuple[RefusalCost, ...]:
    """Return what refusals of nodes that run behind the refusing device cause, the most frequent ones.

    1. The nodes of a group go to the device that refuses them; all others stay where they are.
    2. The graph is cut again: so many switches less, and so much less for transfers and launches.

    Args:
        plan: the plan.
        price: what it costs; None where that is not known.
    """
    groups = _groups(plan)
    if not groups:
        return ()
    parts = price.graph.parts if price is not None else tuple((atom,) for atom in range(len(plan.graph.atoms)))
    graph, prices = (price.graph.graph, price.table.prices) if price is not None else (plan.graph, None)
    labels = [plan.placement[part[0]] for part in parts]
    home = {atom: place for place, part in enumerate(parts) for atom in part}
    was_so_cut = prices is None and plan.exact  # and not by a beam, or in halves for memory
    switches, seconds = (plan.switches, 0.0) if was_so_cut else _between(graph, labels, prices)
    costs = []
    for (device, op_type, reason), atoms in islice(groups.items(), _MOST):
        moved = list(labels)
        for atom in atoms:
            moved[home[atom]] = device
        fewer, less = _between(graph, moved, prices)
        saved = seconds - less
        costs.append(
            RefusalCost(
                device=device,
                op_type=op_type,
                reason=reason,
                switches=switches - fewer,
                seconds=saved if prices is not None and isfinite(saved) else None,
            )
        )
    return tuple(costs)


def _groups(plan: Plan) -> Mapping[_Group, set[int]]:
    """Atoms of each group, those of most atoms first; of a device that comes before the one that runs them."""
    before = {device: plan.devices[:place] for place, device in enumerate(plan.devices)}
    atoms_by_group: dict[_Group, set[int]] = {}
    for atom, home in enumerate(plan.placement):
        for device in before[home]:
            verdict = plan.verdicts[device][atom]
            if isinstance(verdict, Unsupported):
                for node in plan.graph.atoms[atom]:
                    key = device, plan.graph.nodes[node].op_type, verdict.reason.value
                    atoms_by_group.setdefault(key, set()).add(atom)
    return dict(sorted(atoms_by_group.items(), key=lambda item: (-len(item[1]), item[0])))


def _between(graph: Graph, labels: Sequence[str], prices: Prices | None) -> tuple[int, float]:
    """Switches between devices, and seconds of transfers and launches; 0 where they are not known."""
    segments = cut(graph, labels, host=CPU).segments
    switches = sum(first.device != second.device for first, second in pairwise(segments))
    if prices is None:
        return switches, 0.0
    priced = price_segments(graph, prices, labels, segments)
    return switches, sum(segment.into + segment.out + segment.launch for segment in priced)
