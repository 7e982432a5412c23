"""Operations whose results nobody reads."""

from __future__ import annotations

from nnadapter.ir.editor import ModelEditor
from nnadapter.ir.model import Model


def remove_dead(model: Model) -> Model:
    """Remove what does not reach a model output.

    1. An operation goes if none of its outputs is a model output or read by an operation that stays.
    2. Operands that are left without a reader go with it. Model inputs stay, read or not.
    """
    live = set(model.outputs)
    dead = []
    for index in range(len(model.operations) - 1, -1, -1):
        operation = model.operations[index]
        if live.isdisjoint(operation.outputs):
            dead.append(index)
        else:
            live.update(operation.inputs)
    if not dead:
        return model
    editor = ModelEditor(model)
    editor.remove(dead)
    return editor.finish()
