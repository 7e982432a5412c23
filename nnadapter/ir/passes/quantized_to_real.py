"""Quantized operations for devices that compute them with reals."""

from __future__ import annotations

from nnadapter.ir.editing import editing
from nnadapter.ir.editor import ModelEditor
from nnadapter.ir.model import ABSENT, Operation
from nnadapter.ir.operations.quantization import MOVERS, REALS, TABULATED


@editing
def quantized_to_real(editor: ModelEditor) -> None:
    """Spell out operations of reals on quantized operands: DEQUANTIZE, the operation in float32, QUANTIZE.

    1. An operation of `REALS` whose inputs and result are quantized is spelled out; results are the same bit by bit.
    2. Refused: functions of one variable, which a table does better; products, which are exact on integers; CONCAT of
       parts that are quantized as the result is, which only moves them.
    """
    for index in editor.sweep(_SPELLED_OUT):
        operation = editor.operation(index)
        if _computes_reals(editor, operation):
            _spell_out(editor, index, operation)


_SPELLED_OUT = REALS - TABULATED


def _computes_reals(editor: ModelEditor, operation: Operation) -> bool:
    inputs = [editor.type_of(operand).quantized for operand in operation.inputs if operand != ABSENT]
    result = editor.type_of(operation.outputs[0]).quantized
    moves = operation.type in MOVERS and all(input_type == result for input_type in inputs)
    return result is not None and None not in inputs and not moves


def _spell_out(editor: ModelEditor, index: int, operation: Operation) -> None:
    origins = (index,)
    reals = [
        operand if operand == ABSENT else editor.add_operation("DEQUANTIZE", (operand,), origins=origins)[0]
        for operand in operation.inputs
    ]
    (result,) = editor.add_operation(operation.type, reals, operation.attributes, origins=origins)
    quantized = (editor.type_of(operation.outputs[0]).quantized,)
    editor.replace((index,), editor.add_operation("QUANTIZE", (result,), origins=origins, quantized=quantized))
