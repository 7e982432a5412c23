"""A model run once, lowered as it stands, without passes: what constants are folded with, and passes checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType

from nnadapter.drivers.fake_npu.arena import Arenas
from nnadapter.drivers.fake_npu.emission import emit
from nnadapter.drivers.fake_npu.execution import FakeNpuExecution
from nnadapter.drivers.fake_npu.memory import plan_memory
from nnadapter.drivers.fake_npu.scratch import with_scratch
from nnadapter.drivers.fake_npu.verdicts import judge
from nnadapter.ir.model import Model
from nnadapter.ir.operand import Array
from nnadapter.ir.passes import Evaluator


def evaluate(model: Model, inputs: Sequence[Array], *, half_precision: bool = False) -> Sequence[Array] | None:
    """Run a model; None if the device does not take an operation of it.

    Args:
        model: any adapter IR model.
        inputs: contiguous arrays of the types of the model's inputs.
        half_precision: round as the option precision says.
    """
    if not all(judge(model, operation, ()) for operation in model.operations):
        return None
    graph = with_scratch(emit(model, half_precision=half_precision)[0])
    return FakeNpuExecution(graph, plan_memory(graph), Arenas(), 0).compute(inputs)


EVALUATORS: Mapping[bool, Evaluator] = MappingProxyType(
    {half: partial(evaluate, half_precision=half) for half in (False, True)}
)
"""By `half_precision`: objects that stay the same, since folded constants are remembered by them."""
