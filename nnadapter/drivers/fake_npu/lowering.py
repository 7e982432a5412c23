"""From the adapter IR to the device's graph: the passes by name, then every operation's own lowering."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from nnadapter.drivers.fake_npu.emission import emit
from nnadapter.drivers.fake_npu.evaluation import EVALUATORS
from nnadapter.drivers.fake_npu.graph import Instruction, NpuGraph
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
class Roles:
    """What became of the operations of a model, whatever their names are."""

    labels: tuple[tuple[str, int], ...]
    """For every operation of the device that says something: what it is called, and the position of the first operation
    that it stands for."""
    chosen: tuple[int, ...]
    """For every operation of the model, its place in `labels`; -1 where it costs nothing."""

    def runs_as(self, model: Model) -> tuple[str, ...]:
        """For every operation of `model`, what it runs as; the same text for operations that run as one."""
        seen: Counter[str] = Counter()
        texts = []
        for label, position in self.labels:
            text = f"{label} of {_name(model, position)}"
            seen[text] += 1
            texts.append(text if seen[text] == 1 else f"{text} ({seen[text]})")
        return tuple(NO_OPERATION if place < 0 else texts[place] for place in self.chosen)


@dataclass(frozen=True, slots=True)
class Lowered:
    """A model in the device's own form."""

    graph: NpuGraph
    roles: Roles


def lower(
    model: Model, *, half_precision: bool, passes: Sequence[str] = PASSES, check: Observer | None = None
) -> Lowered:
    """Lower a model whose operations were all taken."""
    own = {"fold_constants": partial(fold_constants, evaluate=EVALUATORS[half_precision], sizes=False)}
    prepared = run_passes(_numbered(model), passes, check, own=own)
    graph, instructions = emit(prepared, half_precision=half_precision)
    return Lowered(graph, _roles(model, prepared.operations, instructions))


def _numbered(model: Model) -> Model:
    """The model with each operation's position as its origin: passes join origins, so these tell what became of it."""
    operations = tuple(
        replace(operation, origins=(str(position),)) for position, operation in enumerate(model.operations)
    )
    return Model(model.operands, operations, model.inputs, model.outputs)


def _roles(model: Model, lowered: Sequence[Operation], instructions: Sequence[Sequence[Instruction]]) -> Roles:
    """For every operation of `model`, the lowered operation that says most about it."""
    labels: list[tuple[str, int]] = []
    best = [(-1, -1)] * len(model.operations)
    for operation, written in zip(lowered, instructions, strict=True):
        positions = [int(origin) for origin in operation.origins]
        if not positions or not written:
            continue
        main = next((each for each in written if each.kernel not in _SIDE_WORK), written[0])
        labels.append((main.label, positions[0]))
        for position in positions:
            same_type = operation.type == model.operations[position].type
            says = 2 * same_type + (main.kernel not in _SIDE_WORK)
            best[position] = max(best[position], (says, len(labels) - 1), key=_rank)
    return Roles(tuple(labels), tuple(place for _, place in best))


def _rank(candidate: tuple[int, int]) -> int:
    """How much a text says: most if it is of an operation of the same type. Of equals, the first is kept."""
    return candidate[0]


def _name(model: Model, position: int) -> str:
    operation = model.operations[position]
    return operation.origins[0] if operation.origins else model.operands[operation.outputs[0]].name
