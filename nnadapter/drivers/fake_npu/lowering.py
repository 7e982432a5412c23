"""Lowering of a model: passes, constant folding, and instructions for each operation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from nnadapter.drivers.arenas import Arenas
from nnadapter.drivers.fake_npu.emitter import Emitter
from nnadapter.drivers.fake_npu.execution import Binding, FakeNpuExecution, Resources
from nnadapter.drivers.fake_npu.graph import Instruction, NpuGraph
from nnadapter.drivers.fake_npu.limits import USUAL, Arithmetic
from nnadapter.drivers.fake_npu.memory import MemoryPlan, plan_memory
from nnadapter.drivers.fake_npu.operations import OPERATIONS, judge
from nnadapter.drivers.fake_npu.streams import DeviceMemory
from nnadapter.drivers.interface import NO_OPERATION
from nnadapter.ir import Array, Model, Operation
from nnadapter.ir.passes import Evaluator, Observer, Pass, fold_constants, run_passes
from nnadapter.process.resources import memoize
from nnadapter.records import dataclass

PASSES = (
    "remove_dead",
    "fold_constants",
    "simplify",
    "remove_identities",
    "common_subexpressions",
    "fuse_layer_normalization",
    "fuse_gelu",
    "fuse_hard_swish",
    "fuse_swish",
    "fuse_attention",
    "matmul_to_fully_connected",
    "fuse_scale_and_bias",
    "fuse_batch_normalization",
    "fuse_activation",
    "fuse_pad",
    "cancel_transposes",
    "channels_last",
    "quantized_to_real",
    "simplify",
    "remove_dead",
)
"""Passes in the order that `nnadapter.ir.passes` recommends. The second `simplify` is for transposes that
`channels_last` inserts.
"""
_SIDE_WORK = frozenset({"transpose", "round_to_half", "cast", "copy", "center", "requantize"})


def emit(model: Model, arithmetic: Arithmetic) -> tuple[NpuGraph, Sequence[Sequence[Instruction]]]:
    """Return the graph of supported operations, and the instructions of each."""
    with np.errstate(all="ignore"):  # constants may overflow, as in kernels
        emitter, instructions = Emitter(model, arithmetic), []
        for operation in model.operations:
            row, start = OPERATIONS[operation.type], len(emitter.instructions)
            row.lower(emitter, operation)
            if not row.moves:
                emitter.round_results(operation.outputs)
            instructions.append(emitter.instructions[start:])
        return emitter.finish(), instructions


def evaluate(model: Model, inputs: Sequence[Array], arithmetic: Arithmetic = USUAL) -> Sequence[Array] | None:
    """Run a model; return None if an operation is refused."""
    if not all(judge(model, operation, ()) for operation in model.operations):
        return None
    graph = emit(model, arithmetic)[0]
    return FakeNpuExecution(Binding(graph, plan_memory(graph)), Resources(Arenas(), DeviceMemory(0))).compute(inputs)


@memoize(256)
def evaluator(arithmetic: Arithmetic) -> Evaluator:
    """Return `evaluate` for one arithmetic: always the same object, because it is part of cache keys."""
    return partial(evaluate, arithmetic=arithmetic)


@memoize(256)
def _driver_passes(arithmetic: Arithmetic) -> Mapping[str, Pass]:
    return {"fold_constants": partial(fold_constants, evaluate=evaluator(arithmetic), sizes=False)}


@dataclass(frozen=True, slots=True)
class Lowered:
    """Device graph of a model, its memory plan, and the device operations that implement the model's operations."""

    graph: NpuGraph
    memory: MemoryPlan | None
    """None with dynamic shapes."""
    labels: tuple[tuple[str, int], ...]
    """Label of each device operation, and the position of the first model operation that it implements."""
    chosen: tuple[int, ...]

    def runs_as(self, model: Model) -> tuple[str, ...]:
        """Return the name of the device operation that computes each model operation; fused operations share a name."""
        counts: dict[str, int] = {}
        texts = []
        for label, position in self.labels:
            operation = model.operations[position]
            name = operation.origins[0] if operation.origins else model.operands[operation.outputs[0]].name
            text = f"{label} of {name}"
            count = counts[text] = counts.get(text, 0) + 1
            texts.append(text if count == 1 else f"{text} ({count})")
        return tuple(NO_OPERATION if place < 0 else texts[place] for place in self.chosen)


def lower(
    model: Model, arithmetic: Arithmetic = USUAL, *, passes: Sequence[str] = PASSES, check: Observer | None = None
) -> Lowered:
    """Run the passes over a supported model, emit instructions, and plan memory."""
    # Fusing passes join origins, so positions as origins trace operations.
    operations = tuple(
        Operation(operation.type, operation.inputs, operation.outputs, operation.attributes, (str(position),))
        for position, operation in enumerate(model.operations)
    )
    numbered = Model(model.operands, operations, model.inputs, model.outputs)
    optimized = run_passes(numbered, passes, check, driver_passes=_driver_passes(arithmetic))
    graph, instructions = emit(optimized, arithmetic)
    # The most informative lowered operation represents an operation.
    labels: list[tuple[str, int]] = []
    most, chosen = [-1] * len(model.operations), [-1] * len(model.operations)
    for operation, written in zip(optimized.operations, instructions, strict=True):
        if not operation.origins or not written:
            continue
        positions = list(map(int, operation.origins))
        main = next((instruction for instruction in written if instruction.kernel not in _SIDE_WORK), written[0])
        for position in positions:
            # the first of equals wins
            score = 2 * (operation.type == model.operations[position].type) + (main.kernel not in _SIDE_WORK)
            if score > most[position]:
                most[position], chosen[position] = score, len(labels)
        labels.append((main.label, positions[0]))
    memory = None if model.has_dynamic_shapes else plan_memory(graph)
    return Lowered(graph, memory, tuple(labels), tuple(chosen))
