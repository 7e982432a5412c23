"""Which device gets each atom: by the session's policy, and by what a person says in rules and a plan file.

Rules take verdicts back before anything is placed. A plan file keeps an atom on its device as long as the device takes
it; what it says of other atoms is left to the policy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType

import numpy as np

from nnadapter.converters.convert import Conversion
from nnadapter.costs.cost_model import CostTable, cost_table
from nnadapter.costs.device_costs import DeviceCosts, Source, device_costs
from nnadapter.costs.fusion import Fusion, Merged, fused_groups, merged
from nnadapter.drivers.capability import ModelForm
from nnadapter.drivers.selection import HOSTS
from nnadapter.errors import InvalidOptionError
from nnadapter.options import Options
from nnadapter.plan_files.reading import read_plan
from nnadapter.plan_files.values import PlanFile
from nnadapter.planning.doubting import on_the_cpu_in_doubt
from nnadapter.planning.targets import Target
from nnadapter.rules.reading import read_rules
from nnadapter.rules.values import Rules
from partition.by_cost.blocks import Blocks, find_blocks
from partition.by_cost.latency import Candidate, Placed, place_by_latency
from partition.by_cost.pricing import Prices
from partition.graph import Graph
from partition.placement import place_by_priority
from partition.verdict import Verdict

Verdicts = Mapping[str, Sequence[Verdict]]
Kept = Mapping[int, str]
"""Atom -> the device that it stays on as long as that takes it."""
Hashes = Callable[[], Sequence[str]]
"""Works out a hash for every node of a graph: what it is, but for where it stands."""
NONE: Kept = MappingProxyType({})

_REPEATED = 4
"""One in so many nodes has to be in repeats of one block, or a graph does not count as repeating itself."""

_TRUSTED = frozenset((Source.CALIBRATED, Source.SIMULATED))
"""Where the costs of a named device have to come from for policy `latency`."""


@dataclass(frozen=True, eq=False)
class Placement:
    """A device for every atom."""

    labels: tuple[str, ...]
    placed: Placed | None = None
    """What is known of it, where costs decided. Its atoms are those of `graph`."""
    table: CostTable | None = None
    """The costs that decided."""
    graph: Merged | None = None
    """The graph that was placed: what devices fuse is one atom."""
    note: str = ""
    """Why it is not the cheapest placement found, if it is not."""

    def candidates(self) -> tuple[Candidate, ...]:
        """The placements that were priced, cheapest first, of the atoms that `labels` are of."""
        if self.placed is None or self.graph is None:
            return ()
        return tuple(replace(each, placement=self.graph.spread(each.placement)) for each in self.placed.candidates)


@dataclass(frozen=True, eq=False)
class Placer:
    """Places for one session. Reads rules and checks the policy when it is made.

    Raises:
        RulesError: the rules contradict themselves, or their file cannot be read.
        PlanFileError: the plan file cannot be read.
        InvalidOptionError: policy `latency`, and nothing is known of what a named device costs.
        StoredFileError: a calibration cannot be used.
    """

    options: Options
    targets: tuple[Target, ...]
    rules: Rules = field(init=False)
    plan: PlanFile | None = field(init=False)

    def __post_init__(self) -> None:
        """Read the rules and the plan; check that the policy has what it needs."""
        object.__setattr__(self, "rules", read_rules(self.options.rules))
        object.__setattr__(self, "plan", None if self.options.plan is None else read_plan(self.options.plan))
        if self.options.policy == "latency":
            costs = {target.name: self.costs[target.name] for target in self.targets if target.name not in HOSTS}
            unknown = {name: each for name, each in costs.items() if each.source not in _TRUSTED}
            if unknown:
                raise InvalidOptionError(_untrusted(unknown))

    @cached_property
    def costs(self) -> Mapping[str, DeviceCosts]:
        """What every device costs."""
        return {
            target.name: device_costs(target.name, target.capability, target.context, target.options)
            for target in self.targets
        }

    def place(
        self,
        graph: Graph,
        conversion: Conversion,
        verdicts: Verdicts,
        kept: Kept = NONE,
        hashes: Hashes | None = None,
    ) -> Placement:
        """Return a device for every atom, by the policy; `kept` goes before it. See `place_by_costs`.

        Raises:
            GraphError: no device takes some atom.
        """
        kept = {atom: device for atom, device in kept.items() if verdicts.get(device, {atom: None})[atom]}
        if self.options.policy == "priority":
            labels = list(place_by_priority(graph, tuple(verdicts), verdicts))
            for atom, device in kept.items():
                labels[atom] = device
            return Placement(tuple(labels))
        return self.place_by_costs(graph, conversion, verdicts, kept, hashes)

    def place_by_costs(
        self,
        graph: Graph,
        conversion: Conversion,
        verdicts: Verdicts,
        kept: Kept = NONE,
        hashes: Hashes | None = None,
    ) -> Placement:
        """Return the cheapest placement found, and others that were priced; see `partition.by_cost.latency`.

        By policy `latency` the CPU alone is returned where the other saves less than costs are off by.

        Args:
            graph: what is placed.
            conversion: of the graph.
            verdicts: per device, of every atom.
            kept: atoms that stay on their device as long as that takes them.
            hashes: of the graph's nodes; asked for where op types say that blocks may repeat. Repeats are placed alike
                where that costs no more.
        """
        fusions = {
            target.name: fused_groups(graph, conversion, target.context, verdicts[target.name])
            for target in self.targets
            if target.name in verdicts and target.name not in HOSTS and target.capability.form is ModelForm.IR
        }
        whole = _merged(graph, fusions, kept)
        table = cost_table(whole, conversion, whole.verdicts(verdicts), self.costs, fusions)
        prices = table.prices
        place = {atom: number for number, part in enumerate(whole.parts) for atom in part}
        for atom, device in kept.items():
            others = [row for row, name in enumerate(prices.devices) if name != device]
            if np.isfinite(prices.run[prices.devices.index(device), place[atom]]):
                prices.run[others, place[atom]] = np.inf
        if self.options.fallback == "forbid":
            self._only_named(prices)
        placed, note = place_by_latency(whole.graph, prices, blocks=_repeats(whole.graph, hashes)), ""
        if self.options.policy == "latency":
            placed, note = on_the_cpu_in_doubt(placed, prices, self.costs)
        return Placement(whole.spread(placed.placement), placed, table, whole, note)

    def _only_named(self, prices: Prices) -> None:
        """Leave nothing to a device that nobody named as long as a named one takes it."""
        named = {target.name for target in self.targets if target.named}
        rows = np.array([name in named for name in prices.devices], dtype=bool)
        taken = np.isfinite(prices.run[rows]).any(axis=0)
        prices.run[np.ix_(~rows, taken)] = np.inf

    @property
    def weighs(self) -> bool:
        """Costs decide."""
        return self.options.policy != "priority"


def _merged(graph: Graph, fusions: Mapping[str, Fusion], kept: Kept) -> Merged:
    """The graph with what devices fuse joined, as long as that joins nothing that is kept on different devices."""

    def agrees(atoms: Iterable[int]) -> bool:
        return len({kept[atom] for atom in atoms if atom in kept}) < 2

    allowed = [
        replace(each, groups=tuple(group for group in each.groups if agrees(graph.atom_of[node] for node in group)))
        for each in fusions.values()
    ]
    whole = merged(graph, allowed)
    return whole if all(map(agrees, whole.parts)) else merged(graph, ())


def _repeats(graph: Graph, hashes: Hashes | None) -> tuple[Blocks, ...]:
    """The blocks that repeat, each in a good part of the graph. Op types alone tell quickly that there are none."""
    least = max(2, len(graph.nodes) // _REPEATED)
    if hashes is None or not find_blocks(graph, [(node.domain, node.op_type) for node in graph.nodes], least):
        return ()
    return find_blocks(graph, hashes(), least)


def _untrusted(costs: Mapping[str, DeviceCosts]) -> str:
    """What is said of devices whose costs nobody measured, and why a calibration of theirs is not used."""
    what = ", ".join(f"{name!r} ({each.source.value})" for name, each in costs.items())
    why = "".join(f"; {note}" for each in costs.values() for note in each.why)
    commands = " and ".join(f"`nnadapter calibrate {name}`" for name in costs)
    needs = f"policy 'latency' needs calibrated costs, and has none of {what}"
    return f"{needs}; run {commands}, or choose policy 'measured'{why}"
