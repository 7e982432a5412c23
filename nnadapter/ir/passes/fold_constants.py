"""Constant folding: operations that compute with nothing but constants, and their evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nnadapter.ir.builder import ModelBuilder
from nnadapter.ir.derived import applied, derived
from nnadapter.ir.editor import ModelEditor
from nnadapter.ir.model import ABSENT, Model, Operation
from nnadapter.ir.operand import Array, Layout
from nnadapter.ir.rewrite import editing
from nnadapter.ir.schema import Attributes
from nnadapter.ir.symbolic_numbers import guard_value

Evaluator = Callable[[Model, Sequence[Array]], Sequence[Array] | None]
"""Runs a model once: the model and one array per model input -> one array per model output, None where it cannot."""


def move(model: Model, inputs: Sequence[Array]) -> Sequence[Array] | None:
    """Run a model of one operation that only moves elements of constants; see `Evaluator`.

    Every data type goes through unchanged, so no device could come to another result.
    """
    if inputs or len(model.operations) != 1 or model.operations[0].type not in MOVES:
        return None
    (operation,) = model.operations
    result = MOVES[operation.type](operation.attributes, *(model.operands[index].value for index in operation.inputs))
    return result if isinstance(result, list) else [result]


def _split(attributes: Mapping[str, Any], x: Array) -> list[Array]:
    return np.split(x, np.cumsum(attributes["split"])[:-1], attributes["axis"])


def _slice(attributes: Mapping[str, Any], x: Array) -> Array:
    where = [slice(None)] * x.ndim
    for axis, *bounds in zip(*(attributes[name] for name in ("axes", "starts", "ends", "steps")), strict=True):
        where[axis] = slice(*bounds)
    return x[tuple(where)]


MOVES: Mapping[str, Callable[..., Any]] = {
    "ASSIGN": lambda attributes, x: x,
    "CONCAT": lambda attributes, *inputs: np.concatenate(inputs, attributes["axis"]),
    "EXPAND": lambda attributes, x: np.broadcast_to(x, attributes["shape"]),
    "RESHAPE": lambda attributes, x: x.reshape(attributes["shape"]),
    "SLICE": _slice,
    "SPLIT": _split,
    "TILE": lambda attributes, x: np.tile(x, attributes["repeats"]),
    "TRANSPOSE": lambda attributes, x: x.transpose(attributes["perm"]),
}
"""By operation type: attributes and inputs -> one result, or a list of them."""


MOST_BYTES = 64 << 20
"""Of all results of one call, unless the driver says otherwise."""

_SIZES = frozenset({"shape", "scales", "repeats", "starts", "ends", "split", "pads", "k", "count"})
"""Attributes that may follow from the sizes of a model's inputs."""


@editing
def fold_constants(
    editor: ModelEditor, *, evaluate: Evaluator = move, most_bytes: int = MOST_BYTES, sizes: bool = True
) -> None:
    """Compute now what does not depend on model inputs.

    1. An operation whose inputs are all constants is run by `evaluate`, as a model of its own without inputs; its
       results become constants, so a chain of such operations goes in one sweep. The first operation that reads the
       result stands for it too.
    2. `evaluate` is the driver's, so that a constant is rounded as the device would. Without one, only what moves
       elements is computed: ASSIGN, CONCAT, EXPAND, RESHAPE, SLICE, SPLIT, TILE and TRANSPOSE.
    3. Results live as long as the constants that they were made from (`ir.derived`), unless attributes say sizes,
       which may be others for the next shape: then they are computed for each model, or not at all, as `sizes` says.
    4. Refused: what `evaluate` gives None for; a model output; an operation without inputs, which may draw random
       numbers; quantized operands and results in NHWC; results that together would have more than `most_bytes` bytes,
       counted from the first operation on.

    Args:
        editor: what the operations are in.
        evaluate: a function of the module, or another object that stays the same: results are remembered by it.
        most_bytes: of all results together.
        sizes: fold operations whose attributes say sizes too, such as RESHAPE and EXPAND. A driver that lowers once for
            many shapes (`ir.symbolic_numbers`) does not want that: what it made would hold for one shape alone.
    """
    for index in editor.sweep():
        operation = editor.operation(index)
        if any(operand != ABSENT and editor.value_of(operand) is None for operand in operation.inputs[:1]):
            continue  # nearly always
        if sizes or _SIZES.isdisjoint(operation.attributes):
            most_bytes -= _fold(editor, index, evaluate, most_bytes)


def _fold(editor: ModelEditor, index: int, evaluate: Evaluator, room: int) -> int:
    """Fold one operation, if it can be; returns the bytes of its results."""
    operation = editor.operation(index)
    arrays = [editor.value_of(operand) for operand in operation.inputs]
    present_inputs = [operand for operand in operation.inputs if operand != ABSENT]
    if (
        not present_inputs
        or any(editor.value_of(operand) is None for operand in present_inputs)
        or not _is_plain(editor, operation)
    ):
        return 0
    needed = sum(editor.type_of(operand).nbytes for operand in operation.outputs)
    results = None if needed > room else _results(operation, arrays, evaluate)
    if results is None:
        return 0
    names = [editor.operand(operand).name for operand in operation.outputs]
    read_first = map(editor.first_reader, operation.outputs)
    heir = next((reader for reader in read_first if reader is not None), None)
    if heir is not None:
        editor.adopt(heir, (index,))
    constants = [editor.add_constant(f"{name}.value", result) for name, result in zip(names, results, strict=True)]
    editor.replace((index,), constants)
    return needed


def _is_plain(editor: ModelEditor, operation: Operation) -> bool:
    if any(map(editor.is_output, operation.outputs)):
        return False
    touched = [editor.type_of(operand) for operand in (*operation.inputs, *operation.outputs) if operand != ABSENT]
    return not any(type_.quantization is not None or type_.layout is Layout.NHWC for type_ in touched)


def _results(operation: Operation, arrays: Sequence[Array | None], evaluate: Evaluator) -> tuple[Array, ...] | None:
    attributes = {name: guard_value(value) for name, value in operation.attributes.items()}
    kind = _FoldedKind(operation.type, _exact(attributes), attributes)
    if _SIZES.isdisjoint(operation.attributes):
        return derived(_computed, *arrays, evaluate=evaluate, kind=kind)
    results: tuple[Array, ...] | None = applied(_computed, *arrays, evaluate=evaluate, kind=kind)
    return results


@dataclass(frozen=True, slots=True)
class _FoldedKind:
    """An operation without its operands, as a part of a key."""

    type: str
    exact: str
    attributes: Attributes = field(compare=False)


def _exact(attributes: Attributes) -> str:
    """Attributes as text: 0.0 is not -0.0, and 1 is neither 1.0 nor True."""
    return repr(sorted(attributes.items()))


def _computed(*arrays: Array | None, evaluate: Evaluator, kind: _FoldedKind) -> tuple[Array, ...] | None:
    builder = ModelBuilder()
    operands = [
        ABSENT if array is None else builder.add_constant(f"constant {position}", array)
        for position, array in enumerate(arrays)
    ]
    results = evaluate(builder.finish(builder.add_operation(kind.type, operands, kind.attributes)), ())
    return None if results is None else tuple(results)
