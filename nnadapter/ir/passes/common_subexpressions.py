"""Operations that compute what was computed before."""

from __future__ import annotations

from collections.abc import Hashable

from nnadapter.ir.digests import digest_of
from nnadapter.ir.editing import editing
from nnadapter.ir.editor import ModelEditor
from nnadapter.ir.model import ABSENT, Operation
from nnadapter.ir.operand import Array
from nnadapter.ir.pattern import COMMUTATIVE
from nnadapter.ir.traced_arrays import group_key
from nnadapter.ir.tracing import told_apart


@editing
def common_subexpressions(editor: ModelEditor) -> None:
    """Compute once what several operations compute.

    1. Operations of one type with the same inputs and attributes are one, the first of them, which stands for the
       nodes of all. Operands of commutative operations may stand in either order. A chain that is written twice goes
       in one sweep.
    2. Constants of up to 64 KiB are the same if their types and contents are, larger ones if they are one array.
    3. Refused: an operation without inputs; two that both give a model output its name; results that differ in layout
       or quantization. Sizes that vary are the same only if they came about alike. Applied again, it finds nothing
       more.
    """
    coarse_matches: dict[Hashable, int] = {}
    first: dict[Hashable, int] = {}
    constants: dict[int, Hashable] = {}
    for index in editor.sweep():
        operation = editor.operation(index)
        alike = coarse_matches.setdefault(_at_a_glance(editor, operation), index)
        if alike == index or not operation.inputs:
            continue  # nearly always
        first.setdefault(_key(editor, editor.operation(alike), constants), alike)
        first_index = first.setdefault(_key(editor, operation, constants), index)
        if first_index != index:
            _merge_duplicate(editor, first_index, index)


_MOST_COMPARED_BYTES = 64 << 10


def _at_a_glance(editor: ModelEditor, operation: Operation) -> Hashable:
    """Type and computed operands, in whatever order: operations that differ in these compute different things."""
    computed = [operand for operand in operation.inputs if editor.value_of(operand) is None]
    computed.sort()
    return operation.type, *computed


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
    attributes = tuple((name, told_apart(value)) for name, value in sorted(operation.attributes.items()))
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
