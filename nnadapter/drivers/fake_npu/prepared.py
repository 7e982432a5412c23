"""A lowered model with its memory: what admission tells of, and what a program is made of."""

from __future__ import annotations

from dataclasses import dataclass

from nnadapter.drivers.fake_npu.graph import NpuGraph
from nnadapter.drivers.fake_npu.lowering import Lowered
from nnadapter.drivers.fake_npu.memory import MemoryPlan, plan_memory
from nnadapter.drivers.fake_npu.program import weight_bytes
from nnadapter.drivers.fake_npu.scratch import with_scratch
from nnadapter.ir.model import Model


@dataclass(frozen=True, slots=True, eq=False)
class LoweredModel:
    """What `admit` works out and `compile` needs again."""

    graph: NpuGraph
    """With scratch memory."""
    memory: MemoryPlan
    weight_bytes: int
    """Of all constants."""
    runs_as: tuple[str, ...]
    """For every operation of the IR model, what it runs as; the same text for operations that run as one."""


def prepared(lowered: Lowered, model: Model) -> LoweredModel:
    """Place a lowered model in memory."""
    graph = with_scratch(lowered.graph)
    return LoweredModel(graph, plan_memory(graph), weight_bytes(graph), lowered.roles.runs_as(model))
