"""A model with the verdicts of some devices, and what the cost model says of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from nnadapter.costs import CostTable, Fusion, Merged, cost_table, device_costs, fused_groups, merged
from nnadapter.drivers.capability import ModelForm
from nnadapter.offering.preparing import prepare
from nnadapter.options import Options
from nnadapter.planning.analysis import Analyzer
from nnadapter.planning.judged import Judged
from nnadapter.planning.placing import Placer
from nnadapter.planning.targets import open_targets


@dataclass
class Priced:
    """A model, priced."""

    judged: Judged
    fusions: dict[str, Fusion]
    merged: Merged
    costs: dict[str, Any]
    table: CostTable = field(init=False)

    def __post_init__(self):
        self.verdicts = self.merged.verdicts(self.judged.verdicts)
        conversion = self.judged.conversion
        self.table = cost_table(self.merged, conversion, self.verdicts, self.costs, self.fusions)

    def run(self, device, *op_types):
        """Seconds of the one atom with a node of each of these op types."""
        nodes = self.merged.before.nodes
        (atom,) = [
            position
            for position, atom in enumerate(self.merged.graph.atoms)
            if {nodes[node].op_type for node in atom} >= set(op_types)
        ]
        return self.table.prices.run[self.table.devices.index(device), atom]

    def crossing(self, device, name):
        row, column = self.table.devices.index(device), self.table.prices.values.index(name)
        assert self.table.prices.into[row, column] == self.table.prices.out[row, column]
        return self.table.prices.into[row, column]


def priced(model, devices, shapes=None, costs=None):
    """Judge a model and price it; `costs` are instead of what the devices say."""
    targets = open_targets(devices)
    judged = Analyzer(prepare(model), Placer(Options(), targets)).judge(shapes or {})
    fusions = {
        target.name: fused_groups(judged.graph, judged.conversion, target.context, judged.verdicts[target.name])
        for target in judged.asked
        if target.capability.form is ModelForm.IR
    }
    said = {
        target.name: device_costs(target.name, target.capability, target.context, target.options)
        for target in judged.asked
    }
    return Priced(judged, fusions, merged(judged.graph, fusions.values()), {**said, **(costs or {})})
