"""What things cost, in seconds, and where the numbers come from; see docs/partitioning.md."""

from nnadapter.costs.cost_model import (
    CostTable,
    DeviceCosts,
    FusedGraph,
    Fusion,
    Source,
    cost_table,
    device_costs,
    fuse_atoms,
    fused_groups,
)
from nnadapter.costs.work import WeightBytes, weight_bytes

__all__ = [
    "CostTable",
    "DeviceCosts",
    "FusedGraph",
    "Fusion",
    "Source",
    "WeightBytes",
    "cost_table",
    "device_costs",
    "fuse_atoms",
    "fused_groups",
    "weight_bytes",
]
