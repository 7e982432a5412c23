"""Lowering of a model: passes, evaluation of constants, and instructions for each operation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from nnadapter.drivers.arenas import Arenas
from nnadapter.drivers.fake_npu.device_memory import DeviceMemory
from nnadapter.drivers.fake_npu.emitter import Emitter
from nnadapter.drivers.fake_npu.execution import Binding, FakeNpuExecution
from nnadapter.drivers.fake_npu.graph import Instruction, NpuGraph
from nnadapter.drivers.fake_npu.limits import USUAL, Arithmetic
from nnadapter.drivers.fake_npu.memory import MemoryPlan, plan_memory
from nnadapter.drivers.fake_npu.operations import OPERATIONS, judge
from nnadapter.drivers.fake_npu.program import weight_bytes
from nnadapter.drivers.interface import NO_OPERATION
from nnadapter.ir.model import Model, Operation
from nnadapter.ir.operand import Array
from nnadapter.ir.passes import Evaluator, Observer, Pass, fold_constants, run_passes
from nnadapter.process.resources import memoize


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


def evaluate(model: Model, inputs: Sequence[Array], arithmetic: Arithmetic = USUAL) -> Sequence[Array] | None:
    """Run a model; None if the device does not take an operation of it.

    Args:
        model: any adapter IR model.
        inputs: contiguous arrays of the types of the model's inputs.
        arithmetic: how to round.
    """
    if not all(judge(model, operation, ()) for operation in model.operations):
        return None
    graph = emit(model, arithmetic)[0]
    return FakeNpuExecution(Binding(graph, plan_memory(graph)), Arenas(), DeviceMemory(0), 0).compute(inputs)


@memoize(256)
def evaluator(arithmetic: Arithmetic) -> Evaluator:
    """`evaluate` in that arithmetic; always the same object, since folded constants are remembered by it."""
    return partial(evaluate, arithmetic=arithmetic)


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
"""What makes a model fit this device, in the order that `nnadapter.ir.passes` recommends.

`simplify` comes once more for the transposes that the new layout brings, and `remove_dead` for what that leaves."""


@memoize(256)
def _own(arithmetic: Arithmetic) -> Mapping[str, Pass]:
    """The passes that have parameters."""
    return {"fold_constants": partial(fold_constants, evaluate=evaluator(arithmetic), sizes=False)}


_SIDE_WORK = frozenset({"transpose", "round_to_half", "cast", "copy", "center", "requantize"})
"""Kernels that stand beside what an operation does; a report names them only where there is nothing else."""


@dataclass(frozen=True, slots=True)
class Roles:
    """What became of the operations of a model, whatever their names are."""

    labels: tuple[tuple[str, int], ...]
    """For every operation of the device that says something: what it is called, and the position of the first operation
    that it stands for."""
    chosen: tuple[int, ...]
    """For every operation of the model, its place in `labels`; -1 where it costs nothing."""

    def runs_as(self, model: Model) -> tuple[str, ...]:
        """For every operation of `model`, what it runs as; the same text for operations that run as one."""
        seen: dict[str, int] = {}
        texts = []
        for label, position in self.labels:
            text = f"{label} of {_name(model, position)}"
            count = seen[text] = seen.get(text, 0) + 1
            texts.append(text if count == 1 else f"{text} ({count})")
        return tuple(NO_OPERATION if place < 0 else texts[place] for place in self.chosen)


@dataclass(frozen=True, slots=True)
class Lowered:
    """A model in the device's own form."""

    graph: NpuGraph
    roles: Roles


def lower(
    model: Model, arithmetic: Arithmetic = USUAL, *, passes: Sequence[str] = PASSES, check: Observer | None = None
) -> Lowered:
    """Lower a model whose operations were all taken."""
    prepared = run_passes(_numbered(model), passes, check, driver_passes=_own(arithmetic))
    graph, instructions = emit(prepared, arithmetic)
    return Lowered(graph, _roles(model, prepared.operations, instructions))


def _numbered(model: Model) -> Model:
    """The model with each operation's position as its origin: passes join origins, so these tell what became of it."""
    operations = tuple(
        Operation(operation.type, operation.inputs, operation.outputs, operation.attributes, (str(position),))
        for position, operation in enumerate(model.operations)
    )
    return Model(model.operands, operations, model.inputs, model.outputs)


def _roles(model: Model, lowered: Sequence[Operation], instructions: Sequence[Sequence[Instruction]]) -> Roles:
    """For every operation of `model`, the lowered operation that says most about it."""
    labels: list[tuple[str, int]] = []
    most, chosen = [-1] * len(model.operations), [-1] * len(model.operations)
    for operation, written in zip(lowered, instructions, strict=True):
        if not operation.origins or not written:
            continue
        positions = list(map(int, operation.origins))
        main = written[0]
        if main.kernel in _SIDE_WORK:
            main = next((instruction for instruction in written if instruction.kernel not in _SIDE_WORK), main)
        is_main = main.kernel not in _SIDE_WORK
        for position in positions:
            # A text says most if it is of an operation of the same type. Of equals, the first is kept.
            says = 2 * (operation.type == model.operations[position].type) + is_main
            if says > most[position]:
                most[position], chosen[position] = says, len(labels)
        labels.append((main.label, positions[0]))
    return Roles(tuple(labels), tuple(chosen))


def _name(model: Model, position: int) -> str:
    operation = model.operations[position]
    return operation.origins[0] if operation.origins else model.operands[operation.outputs[0]].name


@dataclass(frozen=True, slots=True, eq=False)
class LoweredModel:
    """What `admit` works out and `compile` needs again."""

    graph: NpuGraph
    memory: MemoryPlan
    weight_bytes: int
    """Of all constants."""
    runs_as: tuple[str, ...]
    """For every operation of the IR model, what it runs as; the same text for operations that run as one."""


def prepared(lowered: Lowered, model: Model) -> LoweredModel:
    """Place a lowered model in memory."""
    graph = lowered.graph
    return LoweredModel(graph, plan_memory(graph), weight_bytes(graph), lowered.roles.runs_as(model))
