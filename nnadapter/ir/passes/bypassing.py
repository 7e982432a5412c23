"""How an operation is taken out whose input can be read in the place of its output."""

from __future__ import annotations

from collections.abc import Sequence

from nnadapter.ir.editor import ModelEditor


def bypass(editor: ModelEditor, operations: Sequence[int], source: int) -> bool:
    """Let readers of the first of `operations` read `source`; false where that cannot be.

    The operation that makes `source`, or else the first that reads the output, stands for what has gone.

    Args:
        editor: what the operations are in.
        operations: operations to take out; nothing but themselves reads the others.
        source: what they would have given.
    """
    (output,) = editor.operation(operations[0]).outputs
    if editor.type_of(output) != editor.type_of(source) or not editor.can_stand_for(output, source):
        return False
    heir = editor.producer(source)
    if heir is None:
        heir = editor.first_reader(output)
    if heir is None:
        return False
    editor.adopt(heir, operations)
    editor.replace(operations, (source,))
    return True
