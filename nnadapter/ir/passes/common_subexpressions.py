"""Operations that compute what was computed before."""

from __future__ import annotations

from collections.abc import Hashable

from nnadapter.ir.digests import digest_of
from nnadapter.ir.editor import ModelEditor
from nnadapter.ir.model import ABSENT, Model, Operation
from nnadapter.ir.operand import Array
from nnadapter.ir.pattern import COMMUTATIVE
from nnadapter.ir.traced_arrays import told_apart_by
from nnadapter.ir.tracing import told_apart


def common_subexpressions(model: Model) -> Model:
    """Compute once what several operations compute.

    1. Operations of one type with the same inputs and attributes are one, the first of them, which stands for the
       nodes of all. Operands of commutative operations may stand in either order. A chain that is written twice goes
       in one sweep.
    2. Constants of up to 64 KiB are the same if their types and contents are, larger ones if they are one array.
    3. Refused: an operation without inputs; two that both give a model output its name; results that differ in layout
       or quantisation. Sizes that vary are the same only if they came about alike. Applied again, it finds nothing
       more.
    """
    if not _may_repeat(model):
        return model
    editor = ModelEditor(model)
    first: dict[Hashable, int] = {}
    constants: dict[int, Hashable] = {}
    for index in editor.sweep():
        operation = editor.operation(index)
        if not operation.inputs:
            continue
        key = _key(editor, operation, constants)
        known = first.setdefault(key, index)
        if known != index:
            _merge(editor, known, index)
    return editor.finish()


_MOST_COMPARED_BYTES = 64 << 10


def _may_repeat(model: Model) -> bool:
    """Whether two operations are of one type and read the same computed operands, in whatever order."""
    operands, seen = model.operands, set()
    for operation in model.operations:
        computed = sorted(index for index in operation.inputs if index == ABSENT or operands[index].value is None)
        seen.add((operation.type, tuple(computed)))
    return len(seen) < len(model.operations)


def _merge(editor: ModelEditor, known: int, index: int) -> None:
    old, new = editor.operation(index).outputs, editor.operation(known).outputs
    if all(map(editor.can_stand_for, old, new)):
        editor.adopt(known, (index,))
        editor.replace((index,), new)


def _key(editor: ModelEditor, operation: Operation, constants: dict[int, Hashable]) -> Hashable:
    read = [_operand(editor, operand, constants) for operand in operation.inputs]
    if operation.type in COMMUTATIVE and len(read) == 2:
        read.sort(key=hash)
    types = [editor.type_of(operand) for operand in operation.outputs]
    made = tuple((type_.dtype, type_.layout, type_.quantisation) for type_ in types)
    attributes = tuple((name, told_apart(value)) for name, value in sorted(operation.attributes.items()))
    return operation.type, tuple(read), attributes, made


def _operand(editor: ModelEditor, operand: int, constants: dict[int, Hashable]) -> Hashable:
    value = editor.value_of(operand)
    if value is None or operand == ABSENT:
        return operand
    if operand not in constants:
        type_ = editor.type_of(operand)
        contents = told_apart_by(_contents, value)
        constants[operand] = (type_.dtype, value.shape, type_.layout, type_.quantisation, contents)
    return constants[operand]


def _contents(value: Array) -> Hashable:
    return digest_of(value) if value.nbytes <= _MOST_COMPARED_BYTES else id(value)
