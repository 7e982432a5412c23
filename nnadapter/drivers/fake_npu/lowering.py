"""From the adapter IR to the device's graph: the passes by name, then every operation's own lowering."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from nnadapter.drivers.fake_npu.emission import emit
from nnadapter.drivers.fake_npu.evaluation import EVALUATORS
from nnadapter.drivers.fake_npu.graph import Instruction, NpuGraph
from nnadapter.drivers.fake_npu.program import weight_bytes
from nnadapter.drivers.interface import NO_OPERATION
from nnadapter.ir.model import Model, Operation
from nnadapter.ir.passes import Observer, fold_constants, run_passes

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
    "quantised_to_real",
    "simplify",
    "remove_dead",
)
"""What makes a model fit this device, in the order that `nnadapter.ir.passes` recommends.

`simplify` comes once more for the transposes that the new layout brings, and `remove_dead` for what that leaves."""


_SIDE_WORK = frozenset({"transpose", "round_to_half", "cast", "copy", "centre", "requantise"})
"""Kernels that stand beside what an operation does; a report names them only where there is nothing else."""


@dataclass(frozen=True, slots=True)
class Lowered:
    """A model in the device's own form."""

    graph: NpuGraph
    weight_bytes: int
    """Of all constants."""
    runs_as: tuple[str, ...]
    """For every operation of the IR model, what it runs as; the same text for operations that run as one."""


def lower(
    model: Model, *, half_precision: bool, passes: Sequence[str] = PASSES, check: Observer | None = None
) -> Lowered:
    """Lower a model whose operations were all taken."""
    own = {"fold_constants": partial(fold_constants, evaluate=EVALUATORS[half_precision], sizes=False)}
    prepared = run_passes(_numbered(model), passes, check, own=own)
    graph, instructions = emit(prepared, half_precision=half_precision)
    return Lowered(graph, weight_bytes(graph), _runs_as(model, prepared.operations, instructions))


def _numbered(model: Model) -> Model:
    """The model with each operation's position as its origin: passes join origins, so these tell what became of it."""
    operations = tuple(
        replace(operation, origins=(str(position),)) for position, operation in enumerate(model.operations)
    )
    return Model(model.operands, operations, model.inputs, model.outputs)


def _runs_as(
    model: Model, lowered: Sequence[Operation], instructions: Sequence[Sequence[Instruction]]
) -> tuple[str, ...]:
    """For every operation of `model`, the text of the lowered operation that says most about it."""
    best = [(-1, NO_OPERATION)] * len(model.operations)
    seen: Counter[str] = Counter()
    for operation, written in zip(lowered, instructions, strict=True):
        positions = [int(origin) for origin in operation.origins]
        if not positions or not written:
            continue
        main = next((each for each in written if each.kernel not in _SIDE_WORK), written[0])
        text = f"{main.label} of {_name(model, positions[0])}"
        seen[text] += 1
        unique = text if seen[text] == 1 else f"{text} ({seen[text]})"
        for position in positions:
            same_type = operation.type == model.operations[position].type
            best[position] = max(best[position], (2 * same_type + (main.kernel not in _SIDE_WORK), unique), key=_rank)
    return tuple(text for _, text in best)


def _rank(candidate: tuple[int, str]) -> int:
    """How much a text says: most if it is of an operation of the same type. Of equals, the first is kept."""
    return candidate[0]


def _name(model: Model, position: int) -> str:
    operation = model.operations[position]
    return operation.origins[0] if operation.origins else model.operands[operation.outputs[0]].name
