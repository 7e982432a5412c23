"""A model run once, lowered as it stands, without passes: what constants are folded with, and passes checked."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from nnadapter.drivers.arenas import Arenas
from nnadapter.drivers.fake_npu.arithmetic import USUAL, Arithmetic
from nnadapter.drivers.fake_npu.binding import Binding, Frame
from nnadapter.drivers.fake_npu.device_memory import DeviceMemory
from nnadapter.drivers.fake_npu.emission import emit
from nnadapter.drivers.fake_npu.execution import FakeNpuExecution
from nnadapter.drivers.fake_npu.memory import plan_memory
from nnadapter.drivers.fake_npu.scratch import with_scratch
from nnadapter.drivers.fake_npu.verdicts import judge
from nnadapter.ir.model import Model
from nnadapter.ir.operand import Array
from nnadapter.ir.passes import Evaluator
from nnadapter.process.cache import remembered


def evaluate(model: Model, inputs: Sequence[Array], arithmetic: Arithmetic = USUAL) -> Sequence[Array] | None:
    """Run a model; None if the device does not take an operation of it.

    Args:
        model: any adapter IR model.
        inputs: contiguous arrays of the types of the model's inputs.
        arithmetic: how to round.
    """
    if not all(judge(model, operation, ()) for operation in model.operations):
        return None
    graph = with_scratch(emit(model, arithmetic)[0])
    return FakeNpuExecution(Binding(Frame.of(graph, plan_memory(graph))), Arenas(), DeviceMemory(0), 0).compute(inputs)


@remembered(256)
def evaluator(arithmetic: Arithmetic) -> Evaluator:
    """`evaluate` in that arithmetic; always the same object, since folded constants are remembered by it."""
    return partial(evaluate, arithmetic=arithmetic)
