"""Legalization: replacement of operations and types that a device lacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

import numpy as np

from nnadapter.ir import ABSENT, Array, DataType, Model, Operation, QuantizedType
from nnadapter.ir.builder import ModelEditor
from nnadapter.ir.deferred_arrays import transposed
from nnadapter.ir.derived import derived
from nnadapter.ir.operations import MOVERS, PRODUCTS, REALS, TABULATED
from nnadapter.ir.rewrite import Match, RewriteRule, apply_rules, constant, editing, is_floating, operand, operation
from nnadapter.records import replace


@editing
def matmul_to_fully_connected(editor: ModelEditor) -> None:
    """Replace MAT_MUL with a constant matrix on the right by FULLY_CONNECTED.

    The constant [K, N] is transposed to the weight [N, K]. Unchanged: integers; a left-hand side of rank 0 or 1 or with
    `transpose_x`.
    """
    apply_rules(editor, _RULES)


def _replace(editor: ModelEditor, match: Match) -> Sequence[int] | None:
    matmul = editor.operation(match.anchor)
    weight = match.operands["y"]
    if editor.type_of(weight).rank != 2:
        return None
    if not matmul.attributes["transpose_y"]:
        weight = editor.derived(weight, f"{editor.operand(weight).name}.transposed", transposed)
    fused = {name: matmul.attributes[name] for name in ("fuse_code", "fuse_parameters")}
    return editor.add_operation("FULLY_CONNECTED", (match.operands["x"], weight), fused, origins=match.operations)


_RULES = (
    RewriteRule(
        operation(
            "MAT_MUL",
            operand("x", when=lambda matched: is_floating(matched) and matched.type.rank >= 2),
            constant("y"),
            transpose_x=False,
            fuse_code=lambda _: True,
        ),
        _replace,
    ),
)


@editing
def quantized_to_real(editor: ModelEditor) -> None:
    """Decompose operations on quantized operands: DEQUANTIZE, the operation in float32, QUANTIZE.

    Bit-exact. Unchanged: unary functions, since a lookup table is better; products, which are exact on integers;
    CONCAT that only moves elements.
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


_SHIFT = 128


def symmetric_to_asymmetric(model: Model) -> Model:
    """Replace quantized int8 operands by uint8 ones with the same real values.

    Source: NNAdapter's pass `convert_quantization_symm_to_asymm`; NNAPI TENSOR_QUANT8_ASYMM.

    1. Integers and zero points increase by 128.
    2. Model inputs and outputs, STORAGE_CAST and comparisons keep int8, converted without loss by DEQUANTIZE and
       QUANTIZE.
    3. Unchanged: PAD with a constant, as its value is an integer.
    """
    if not any(_is_signed(operand.type.quantized) for operand in model.operands):
        return model
    editor = ModelEditor(model)
    state = _Shifting(editor)
    for index in editor.sweep():
        state.visit(index)
    for output in dict.fromkeys(model.outputs):
        state.signed(output)
    return editor.finish()


def _is_signed(type_: QuantizedType | None) -> TypeGuard[QuantizedType]:
    return type_ is not None and type_.dtype is DataType.INT8


def _shifted(type_: QuantizedType) -> QuantizedType:
    points = tuple(point + _SHIFT for point in type_.quantization.zero_point)
    return QuantizedType(DataType.UINT8, replace(type_.quantization, zero_point=points))


def _shift(value: Array) -> Array:
    return np.asarray(value.view(np.uint8) ^ np.uint8(_SHIFT))


class _Shifting:
    def __init__(self, editor: ModelEditor) -> None:
        self._editor = editor
        self._unsigned: dict[int, int] = {}
        self._signed: dict[int, int] = {}
        """int8 operand in `_unsigned` -> int8 operand that later operations read: itself, or one of equal value."""
        self._current: Sequence[int] = ()

    def visit(self, index: int) -> None:
        self._current = (index,)
        operation = self._editor.operation(index)
        types = [
            self._editor.type_of(operand).quantized
            for operand in (*operation.inputs, *operation.outputs)
            if operand != ABSENT
        ]
        if _follows(operation, types) and any(map(_is_signed, types)):
            self._convert(index, operation)
            return
        for input_index in operation.inputs:
            if input_index != ABSENT:
                self.signed(input_index)

    def signed(self, operand: int) -> None:
        if operand not in self._unsigned or operand in self._signed:
            return
        signed_operand = self._converted(self._unsigned[operand], self._editor.type_of(operand).quantized)
        # Later readers see `signed_operand` instead of `operand`.
        self._signed[operand] = self._signed[signed_operand] = signed_operand
        self._unsigned[signed_operand] = self._unsigned[operand]
        self._editor.substitute(operand, signed_operand)

    def _convert(self, index: int, operation: Operation) -> None:
        editor = self._editor
        inputs = [operand if operand == ABSENT else self._as_unsigned(operand) for operand in operation.inputs]
        olds = [editor.type_of(output).quantized for output in operation.outputs]
        quantized = [_shifted(original) if _is_signed(original) else original for original in olds]
        signed = _is_signed(olds[0])
        names = [f"{editor.operand(output).name}:uint8" for output in operation.outputs] if signed else ()
        results = editor.add_operation(
            operation.type, inputs, operation.attributes, origins=(index,), names=names, quantized=quantized
        )
        editor.remove((index,))
        for original, replacement in zip(operation.outputs, results, strict=True):
            if signed:
                self._unsigned[original] = replacement
            else:
                editor.substitute(original, replacement)

    def _as_unsigned(self, operand: int) -> int:
        editor = self._editor
        type_ = editor.type_of(operand).quantized
        if not _is_signed(type_):
            return operand
        if operand not in self._unsigned:
            value, target = editor.value_of(operand), _shifted(type_)
            if value is None:
                self._unsigned[operand] = self._converted(operand, target)
            else:
                name = f"{editor.operand(operand).name}:uint8"
                self._unsigned[operand] = editor.add_constant(name, derived(_shift, value), target.quantization)
            self._signed[operand] = operand  # int8 remains available to other readers
        return self._unsigned[operand]

    def _converted(self, operand: int, type_: QuantizedType | None) -> int:
        (reals,) = self._editor.add_operation("DEQUANTIZE", (operand,), origins=self._current)
        return self._editor.add_operation("QUANTIZE", (reals,), origins=self._current, quantized=(type_,))[0]


def _follows(operation: Operation, types: Sequence[QuantizedType | None]) -> bool:
    """Return whether the operation depends only on the real values of its operands, not on their integers."""
    if operation.type in PRODUCTS or operation.type in ("QUANTIZE", "DEQUANTIZE"):
        return True
    if operation.type == "PAD" and operation.attributes["mode"] == "constant":
        return False
    moves = operation.type in MOVERS and types[-1] is not None and types[0] == types[-1]
    return moves or (operation.type in REALS and None not in types)
