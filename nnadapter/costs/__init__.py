"""What things cost, in seconds, and where the numbers come from; see docs/partitioning.md."""

from nnadapter.costs.cost_model import CostTable, Fusion, Merged, cost_table, fused_groups, merged
from nnadapter.costs.device_costs import DeviceCosts, Source, device_costs
from nnadapter.costs.work import WeightBytes, weight_bytes

__all__ = [
    "CostTable",
    "DeviceCosts",
    "Fusion",
    "Merged",
    "Source",
    "WeightBytes",
    "cost_table",
    "device_costs",
    "fused_groups",
    "merged",
    "weight_bytes",
]
