"""Operations that do nothing, or nothing that the one before them could not do."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from nnadapter.ir.editing import editing
from nnadapter.ir.editor import ModelEditor
from nnadapter.ir.passes.bypassing import bypass


@editing
def simplify(editor: ModelEditor) -> None:
    """Bypass and merge operations that only copy, reshape, transpose or cast.

    1. ASSIGN, CAST to the type that is there, RESHAPE to the dimensions that are there and TRANSPOSE by the identity
       are bypassed. The operation that makes their input, or else the first that reads their output, stands for them
       too.
    2. A RESHAPE of a RESHAPE, and a TRANSPOSE of a TRANSPOSE, read from before it; inverse ones are bypassed together.
    3. What was read by nothing else goes.
    4. A SUM of two is an ADD, to which an activation can be fused; a SUM or a CONCAT of one is bypassed.
    5. Refused: an operation that gives a model output its name, where the operand before it is a model input, a
       constant or another output; one that changes the layout; one whose nodes nothing else could stand for.
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
    producer = _before(editor, index)
    source = operation.inputs[0] if producer is None else editor.operation(producer).inputs[0]
    if not _bypass(editor, index, source) and producer is not None:
        _merge_with_producer(editor, index, producer, {"shape": operation.attributes["shape"]})


def _transpose(editor: ModelEditor, index: int) -> None:
    operation = editor.operation(index)
    producer = _before(editor, index)
    perm = _perm(editor, index)
    if producer is not None:
        inner = _perm(editor, producer)
        perm = tuple(inner[axis] for axis in perm)
    source = operation.inputs[0] if producer is None else editor.operation(producer).inputs[0]
    bypassed = perm == tuple(range(len(perm))) and _bypass(editor, index, source)
    if not bypassed and producer is not None:
        _merge_with_producer(editor, index, producer, {**operation.attributes, "perm": perm})


def _perm(editor: ModelEditor, index: int) -> tuple[int, ...]:
    perm = editor.operation(index).attributes["perm"]
    assert isinstance(perm, tuple)
    return tuple(map(int, perm))


def _before(editor: ModelEditor, index: int) -> int | None:
    """The operation of the same type that makes the input, if there is one."""
    operation = editor.operation(index)
    producer = editor.producer(operation.inputs[0])
    return producer if producer is not None and editor.operation(producer).type == operation.type else None


def _is_read_by_one(editor: ModelEditor, index: int) -> bool:
    (output,) = editor.operation(index).outputs
    return len(editor.consumers(output)) == 1 and not editor.is_output(output)


def _merge_with_producer(editor: ModelEditor, index: int, producer: int, attributes: Mapping[str, object]) -> None:
    operation = editor.operation(index)
    operations = (index, producer) if _is_read_by_one(editor, producer) else (index,)
    results = editor.add_operation(
        operation.type,
        editor.operation(producer).inputs,
        attributes,  # type: ignore[arg-type]
        origins=operations,
    )
    editor.replace(operations, results)


def _bypass(editor: ModelEditor, index: int, source: int) -> bool:
    producer = _before(editor, index)
    between = producer is not None and editor.operation(index).inputs[0] != source and _is_read_by_one(editor, producer)
    return bypass(editor, (index, producer) if between and producer is not None else (index,), source)


_SIMPLIFIERS: Mapping[str, Callable[[ModelEditor, int], None]] = {
    "ASSIGN": _copy,
    "CAST": _copy,
    "CONCAT": _concat,
    "RESHAPE": _reshape,
    "SUM": _sum,
    "TRANSPOSE": _transpose,
}
