"""From a prepared model to the device's graph: every operation's own lowering, in their order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnadapter.drivers.fake_npu.arithmetic import Arithmetic
from nnadapter.drivers.fake_npu.emitter import Emitter
from nnadapter.drivers.fake_npu.graph import Instruction, NpuGraph
from nnadapter.drivers.fake_npu.operations import OPERATIONS
from nnadapter.ir.model import Model, Operation


def emit(model: Model, arithmetic: Arithmetic) -> tuple[NpuGraph, Sequence[Sequence[Instruction]]]:
    """Return the graph of a model whose operations were all taken, and the instructions of each operation.

    What is computed of constants meanwhile may overflow, as kernels may: the limit is the right result.
    """
    with np.errstate(all="ignore"):
        emitter = Emitter(model, arithmetic)
        instructions = [_lower_operation(emitter, operation) for operation in model.operations]
        return emitter.finish(), instructions


def _lower_operation(emitter: Emitter, operation: Operation) -> Sequence[Instruction]:
    """Write one operation's instructions and return them."""
    row, start = OPERATIONS[operation.type], emitter.instruction_count
    row.lower(emitter, operation)
    if not row.moves:
        emitter.round_results(operation.outputs)
    return emitter.instructions(start, emitter.instruction_count)
