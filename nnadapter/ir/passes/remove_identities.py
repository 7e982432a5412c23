"""Arithmetic and movement that gives back what it was given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nnadapter.ir.editing import editing
from nnadapter.ir.editor import ModelEditor
from nnadapter.ir.model import Operation
from nnadapter.ir.operand import Array
from nnadapter.ir.passes.bypassing import bypass
from nnadapter.ir.traced_arrays import decided


@editing
def remove_identities(editor: ModelEditor) -> None:
    """Bypass operations that change nothing; copies, casts, reshapes and transposes are left to `simplify`.

    1. MUL and DIV by 1, ADD and SUB of 0, POW by 1: the number is a constant of any shape that adds no axis and
       spreads nothing. (x + 0 is 0 where x is -0, and otherwise x.)
    2. CLIP without limits; PAD by nothing; SLICE of everything; EXPAND to the dimensions that are there; TILE by 1;
       SPLIT into one; RESIZE_… to the size that is there by scales of 1.
    3. The operation that makes the input, or else the first that reads the output, stands for what has gone.
    4. Refused: an operation that applies an activation; one that gives a model output its name, where the operand
       before it is a model input, a constant or another output; a quantized number. Applied again, it finds nothing
       more.
    """
    for index in editor.sweep(_IDENTITY_CHECKS.keys()):
        operation = editor.operation(index)
        if operation.attributes.get("fuse_code", "none") != "none":
            continue
        position = _IDENTITY_CHECKS[operation.type](editor, operation)
        if position is not None and _is_same_size(editor, operation, operation.inputs[position]):
            bypass(editor, (index,), operation.inputs[position])


def _is_same_size(editor: ModelEditor, operation: Operation, source: int) -> bool:
    return editor.type_of(source).dimensions == editor.type_of(operation.outputs[0]).dimensions


_Handler = Callable[[ModelEditor, Operation], int | None]
"""The position of the input that the operation gives back, or None."""


def _with(number: float, *positions: int) -> _Handler:
    """The constant may stand at one of `positions`."""

    def found(editor: ModelEditor, operation: Operation) -> int | None:
        for position in positions:
            value = editor.value_of(operation.inputs[position])
            if editor.type_of(operation.inputs[position]).quantization is not None:
                return None  # its integers stand for other numbers
            if value is not None and value.size and decided(_is_all, value, number=number):
                return 1 - position
        return None

    return found


def _is_all(value: Array, *, number: float) -> bool:
    return bool(value.flat[0] == number and (value == number).all())


def _where(test: Callable[[Mapping[str, Any]], bool]) -> _Handler:
    def found(editor: ModelEditor, operation: Operation) -> int | None:
        return 0 if test(operation.attributes) else None

    return found


def _all(name: str, number: float) -> _Handler:
    """All values of the attribute are that number."""
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
