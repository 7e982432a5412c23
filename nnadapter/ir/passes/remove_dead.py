"""Operations whose results nobody reads."""

from __future__ import annotations

from nnadapter.ir.editing import editing
from nnadapter.ir.editor import ModelEditor


@editing
def remove_dead(editor: ModelEditor) -> None:
    """Remove what does not reach a model output.

    1. An operation goes if none of its outputs is a model output or read by an operation that stays.
    2. Operands that are left without a reader go with it. Model inputs stay, read or not.
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
