from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from nnadapter import Options
from nnadapter.candidates import prepare
from nnadapter.costs import CostTable, FusedGraph, Fusion, cost_table, device_costs, fuse_atoms, fused_groups
from nnadapter.drivers import ModelForm
from nnadapter.planning import Judgment, Planner, Setting, open_setting


@dataclass
class Priced:
    setting: Setting
    judgment: Judgment
    fusions: dict[str, Fusion]
    fused_graph: FusedGraph
    costs: dict[str, Any]
    table: CostTable = field(init=False)

    def __post_init__(self):
        self.verdicts = self.fused_graph.verdicts(self.judgment.support.verdicts)
        conversion = self.judgment.model.conversion
        self.table = cost_table(self.fused_graph, conversion, self.verdicts, self.costs, self.fusions)

    def run(self, device, *op_types):
        """Return the seconds of the only atom with nodes of all these op types."""
        nodes = self.fused_graph.original.nodes
        (atom,) = [
            position
            for position, atom in enumerate(self.fused_graph.graph.atoms)
            if {nodes[node].op_type for node in atom} >= set(op_types)
        ]
        return self.table.prices.run[self.table.devices.index(device), atom]

    def crossing(self, device, name):
        row, column = self.table.devices.index(device), self.table.prices.values.index(name)
        assert self.table.prices.transfer_in[row, column] == self.table.prices.transfer_out[row, column]
        return self.table.prices.transfer_in[row, column]


def priced(model, devices, shapes=None, costs=None, **fusing):
    """Judge and price a model; `costs` override the devices' own, and `fusing` goes to `fused_groups`."""
    setting = open_setting(devices, Options())
    judgment = Planner(prepare(model), setting).judge(shapes or {})
    graph, conversion, verdicts = judgment.model.graph, judgment.model.conversion, judgment.support.verdicts
    asked = [device for device in setting.devices if device.name in verdicts]
    fusions = {
        device.name: fused_groups(graph, conversion, device.context, verdicts[device.name], **fusing)
        for device in asked
        if device.capability.form is ModelForm.IR
    }
    said = {
        device.name: device_costs(device.name, device.capability, device.context, device.options) for device in asked
    }
    return Priced(setting, judgment, fusions, fuse_atoms(graph, fusions.values()), {**said, **(costs or {})})
