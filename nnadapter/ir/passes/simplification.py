"""Simplification: folding, and removal of dead, duplicate and identity operations."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from nnadapter.ir import ABSENT, Array, Attributes, Layout, Model, ModelBuilder, Operation
from nnadapter.ir.builder import ModelEditor
from nnadapter.ir.derived import applied, decided, derived, group_key
from nnadapter.ir.operand import digest_of
from nnadapter.ir.rewrite import COMMUTATIVE, editing
from nnadapter.ir.schema import ints
from nnadapter.ir.symbolic_numbers import guard_value, identity_key
from nnadapter.records import dataclass, field

Evaluator = Callable[[Model, Sequence[Array]], Sequence[Array] | None]
"""Function that runs a model once: model, inputs -> outputs, or None if it cannot."""


def move(model: Model, inputs: Sequence[Array]) -> Sequence[Array] | None:
    """Run a model of one operation that only moves elements; return None for other operations."""
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
"""Operation -> function of attributes and inputs that returns one result, or a list."""


MOST_BYTES = 64 << 20
"""Limit for the bytes of all results in one call of `fold_constants`."""

_SIZES = frozenset({"shape", "scales", "repeats", "starts", "ends", "split", "pads", "k", "count"})
"""Attributes that may depend on the model's input shapes."""


@editing
def fold_constants(
    editor: ModelEditor, *, evaluate: Evaluator = move, most_bytes: int = MOST_BYTES, sizes: bool = True
) -> None:
    """Compute operations on constants at compile time.

    1. `evaluate` runs operations with constant inputs only. By default it only moves elements (see `MOVES`). A driver
       passes its own, which rounds like the device.
    2. Results are memoized (see `ir.derived`), unless attributes may depend on input shapes.
    3. Unchanged: model outputs; operations without inputs, which may be random; quantized or NHWC operands; results
       that exceed `most_bytes` in total.
    4. `sizes=False`, for drivers that lower once for many shapes, also excludes operations with attributes that may
       depend on input shapes.
    """
    for index in editor.sweep():
        operation = editor.operation(index)
        if any(operand != ABSENT and editor.value_of(operand) is None for operand in operation.inputs[:1]):
            continue  # the common case
        if sizes or _SIZES.isdisjoint(operation.attributes):
            most_bytes -= _fold(editor, index, evaluate, most_bytes)


def _fold(editor: ModelEditor, index: int, evaluate: Evaluator, room: int) -> int:
    operation = editor.operation(index)
    arrays = [editor.value_of(operand) for operand in operation.inputs]
    present_inputs = [operand for operand in operation.inputs if operand != ABSENT]
    if not present_inputs or any(editor.value_of(operand) is None for operand in present_inputs):
        return 0
    needed = sum(editor.type_of(operand).nbytes for operand in operation.outputs)
    can_fold = needed <= room and _is_plain(editor, operation)
    results = _results(operation, arrays, evaluate) if can_fold else None
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
    # `repr` distinguishes 0.0 from -0.0, and 1 from 1.0 and True
    kind = _FoldedKind(operation.type, repr(sorted(attributes.items())), attributes)
    if _SIZES.isdisjoint(operation.attributes):
        return derived(_computed, *arrays, evaluate=evaluate, kind=kind)
    results: tuple[Array, ...] | None = applied(_computed, *arrays, evaluate=evaluate, kind=kind)
    return results


@dataclass(frozen=True, slots=True)
class _FoldedKind:
    type: str
    exact: str
    attributes: Attributes = field(compare=False)


def _computed(*arrays: Array | None, evaluate: Evaluator, kind: _FoldedKind) -> tuple[Array, ...] | None:
    builder = ModelBuilder()
    operands = [
        ABSENT if array is None else builder.add_constant(f"constant {position}", array)
        for position, array in enumerate(arrays)
    ]
    results = evaluate(builder.finish(builder.add_operation(kind.type, operands, kind.attributes)), ())
    return None if results is None else tuple(results)


def bypass(editor: ModelEditor, operations: Sequence[int], source: int) -> bool:
    """Replace the result of `operations[0]` by `source` and remove all `operations`; return False if impossible."""
    (output,) = editor.operation(operations[0]).outputs
    if editor.type_of(output) != editor.type_of(source) or not editor.can_stand_for(output, source):
        return False
    producer = editor.producer(source)
    heir = editor.first_reader(output) if producer is None else producer
    if heir is None:
        return False
    editor.adopt(heir, operations)
    editor.replace(operations, (source,))
    return True


@editing
def remove_dead(editor: ModelEditor) -> None:
    """Remove operations that do not contribute to a model output.

    Model inputs stay.
    """
    live = set(editor.outputs)
    dead = []
    for index in reversed(editor.order()):
        operation = editor.operation(index)
        if live.isdisjoint(operation.outputs):
            dead.append(index)
        else:
            live.update(operation.inputs)
    if dead:
        editor.remove(dead)


@editing
def remove_identities(editor: ModelEditor) -> None:
    """Bypass operations that change nothing, except copies, casts, reshapes and transposes; see `simplify`.

    1. MUL and DIV by 1, ADD and SUB of 0 (although -0 + 0 is 0), POW by 1.
    2. CLIP without limits; PAD by nothing; SLICE of everything; EXPAND to the same dimensions; TILE by 1; SPLIT into
       one; RESIZE_… to the same size.
    3. Unchanged: a fused activation; model outputs that the input cannot replace; quantized constants.
    """
    for index in editor.sweep(_IDENTITY_CHECKS.keys()):
        operation = editor.operation(index)
        if operation.attributes.get("fuse_code", "none") != "none":
            continue
        position = _IDENTITY_CHECKS[operation.type](editor, operation)
        if position is not None:
            bypass(editor, (index,), operation.inputs[position])


_Handler = Callable[[ModelEditor, Operation], int | None]
"""Function that returns the position of an input that equals the result, or None."""


def _with(number: float, *positions: int) -> _Handler:
    def unchanged_input(editor: ModelEditor, operation: Operation) -> int | None:
        for position in positions:
            value = editor.value_of(operation.inputs[position])
            if editor.type_of(operation.inputs[position]).quantization is not None:
                return None  # its integers represent other numbers
            if value is not None and value.size and decided(_is_all, value, number=number):
                return 1 - position
        return None

    return unchanged_input


def _is_all(value: Array, *, number: float) -> bool:
    return bool(value.flat[0] == number and (value == number).all())


def _where(test: Callable[[Mapping[str, Any]], bool]) -> _Handler:
    def unchanged_input(editor: ModelEditor, operation: Operation) -> int | None:
        return 0 if test(operation.attributes) else None

    return unchanged_input


def _all(name: str, number: float) -> _Handler:
    return _where(lambda attributes: all(value == number for value in attributes[name]))


_UNLIMITED = (float("-inf"), float("inf"))
_IDENTITY_CHECKS: Mapping[str, _Handler] = {
    "MUL": _with(1, 0, 1),
    "DIV": _with(1, 1),
    "ADD": _with(0, 0, 1),
    "SUB": _with(0, 1),
    "POW": _with(1, 1),
    "CLIP": _where(lambda attributes: (attributes["min"], attributes["max"]) == _UNLIMITED),
    "PAD": _all("pads", 0),
    "SLICE": _all("steps", 1),
    "EXPAND": _where(lambda attributes: True),
    "TILE": _all("repeats", 1),
    "SPLIT": _where(lambda attributes: len(attributes["split"]) == 1),
    "RESIZE_NEAREST": _all("scales", 1),
    "RESIZE_LINEAR": _all("scales", 1),
}


@editing
def simplify(editor: ModelEditor) -> None:
    """Bypass and merge operations that only copy, reshape, transpose or cast.

    1. Bypassed: ASSIGN, CAST to the same type, RESHAPE to the same dimensions, TRANSPOSE by the identity.
    2. Merged: a RESHAPE of a RESHAPE, a TRANSPOSE of a TRANSPOSE.
    3. A SUM of two becomes an ADD, to which an activation can be fused; a SUM or CONCAT of one is bypassed.
    4. Unchanged: model outputs that the input cannot replace; layout changes.
    """
    for index in editor.sweep(_SIMPLIFIERS.keys()):
        _SIMPLIFIERS[editor.operation(index).type](editor, index)


def _copy(editor: ModelEditor, index: int) -> None:
    _bypass(editor, index, editor.operation(index).inputs[0])


def _concat(editor: ModelEditor, index: int) -> None:
    if len(editor.operation(index).inputs) == 1:
        _copy(editor, index)


def _sum(editor: ModelEditor, index: int) -> None:
    inputs = editor.operation(index).inputs
    if len(inputs) == 2:
        editor.replace((index,), editor.add_operation("ADD", inputs, origins=(index,)))
    else:
        _concat(editor, index)


def _reshape(editor: ModelEditor, index: int) -> None:
    operation = editor.operation(index)
    producer = _producer_of_same_type(editor, index)
    source = operation.inputs[0] if producer is None else editor.operation(producer).inputs[0]
    if not _bypass(editor, index, source) and producer is not None:
        _merge_with_producer(editor, index, producer, {"shape": operation.attributes["shape"]})


def _transpose(editor: ModelEditor, index: int) -> None:
    operation = editor.operation(index)
    producer = _producer_of_same_type(editor, index)
    perm, source = ints(operation.attributes, "perm"), operation.inputs[0]
    if producer is not None:
        inner = editor.operation(producer)
        perm, source = tuple(ints(inner.attributes, "perm")[axis] for axis in perm), inner.inputs[0]
    bypassed = perm == tuple(range(len(perm))) and _bypass(editor, index, source)
    if not bypassed and producer is not None:
        _merge_with_producer(editor, index, producer, {**operation.attributes, "perm": perm})


def _producer_of_same_type(editor: ModelEditor, index: int) -> int | None:
    operation = editor.operation(index)
    producer = editor.producer(operation.inputs[0])
    return producer if producer is not None and editor.operation(producer).type == operation.type else None


def _is_read_by_one(editor: ModelEditor, index: int) -> bool:
    (output,) = editor.operation(index).outputs
    return editor.reader_count(output) == 1 and not editor.is_output(output)


def _merge_with_producer(editor: ModelEditor, index: int, producer: int, attributes: Attributes) -> None:
    inner = editor.operation(producer)
    operations = (index, producer) if _is_read_by_one(editor, producer) else (index,)
    editor.replace(operations, editor.add_operation(inner.type, inner.inputs, attributes, origins=operations))


def _bypass(editor: ModelEditor, index: int, source: int) -> bool:
    producer = _producer_of_same_type(editor, index)
    if producer is not None and editor.operation(index).inputs[0] != source and _is_read_by_one(editor, producer):
        return bypass(editor, (index, producer), source)
    return bypass(editor, (index,), source)


_SIMPLIFIERS: Mapping[str, Callable[[ModelEditor, int], None]] = {
    "ASSIGN": _copy,
    "CAST": _copy,
    "CONCAT": _concat,
    "RESHAPE": _reshape,
    "SUM": _sum,
    "TRANSPOSE": _transpose,
}


@editing
def common_subexpressions(editor: ModelEditor) -> None:
    """Merge operations that compute the same values.

    1. Constants of up to 64 KiB are compared by contents, larger ones by identity. Symbolic sizes are equal if they are
       computed in the same way.
    2. Not merged: operations without inputs; operations of two model outputs; results with different layout or
       quantization.
    """
    coarse_matches: dict[Hashable, int] = {}
    first: dict[Hashable, int] = {}
    constants: dict[int, Hashable] = {}
    for index in editor.sweep():
        operation = editor.operation(index)
        alike = coarse_matches.setdefault(_at_a_glance(editor, operation), index)
        if alike == index or not operation.inputs:
            continue  # the common case
        first.setdefault(_key(editor, editor.operation(alike), constants), alike)
        first_index = first.setdefault(_key(editor, operation, constants), index)
        if first_index != index:
            _merge_duplicate(editor, first_index, index)


_MOST_COMPARED_BYTES = 64 << 10


def _at_a_glance(editor: ModelEditor, operation: Operation) -> Hashable:
    return operation.type, *sorted(operand for operand in operation.inputs if editor.value_of(operand) is None)


def _merge_duplicate(editor: ModelEditor, first_index: int, index: int) -> None:
    outputs, replacements = editor.operation(index).outputs, editor.operation(first_index).outputs
    if all(map(editor.can_stand_for, outputs, replacements)):
        editor.adopt(first_index, (index,))
        editor.replace((index,), replacements)


def _key(editor: ModelEditor, operation: Operation, constants: dict[int, Hashable]) -> Hashable:
    read = [_operand(editor, operand, constants) for operand in operation.inputs]
    if operation.type in COMMUTATIVE and len(read) == 2:
        read.sort(key=hash)
    types = [editor.type_of(operand) for operand in operation.outputs]
    result_keys = tuple((type_.dtype, type_.layout, type_.quantization) for type_ in types)
    attributes = tuple((name, identity_key(value)) for name, value in sorted(operation.attributes.items()))
    return operation.type, tuple(read), attributes, result_keys


def _operand(editor: ModelEditor, operand: int, constants: dict[int, Hashable]) -> Hashable:
    value = editor.value_of(operand)
    if value is None or operand == ABSENT:
        return operand
    if operand not in constants:
        type_ = editor.type_of(operand)
        contents = group_key(_contents, value)
        constants[operand] = (type_.dtype, value.shape, type_.layout, type_.quantization, contents)
    return constants[operand]


def _contents(value: Array) -> Hashable:
    return digest_of(value) if value.nbytes <= _MOST_COMPARED_BYTES else id(value)
