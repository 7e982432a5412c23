"""Transposes put off until they meet their inverse."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nnadapter.ir.derived import derived
from nnadapter.ir.editor import ModelEditor
from nnadapter.ir.model import Model, Operation
from nnadapter.ir.operand import Array, Layout
from nnadapter.ir.passes.remapping import ELEMENTWISE, IMAGE, REMAP, remaining_axes
from nnadapter.ir.passes.view import Axes


def cancel_transposes(model: Model) -> Model:
    """Let transposes wander towards the outputs, where they meet others and vanish.

    1. A TRANSPOSE is put off until somebody needs its result as it is, composed with those that follow; what comes
       out as the identity vanishes, and where only axes of size 1 move it becomes a RESHAPE.
    2. Elementwise operations compute with what was there before it, if all inputs were transposed alike; constants are
       permuted now, and single numbers stay as they are.
    3. CONCAT, SPLIT, SLICE, PAD, TILE, SOFTMAX, LOG_SOFTMAX, CUM_SUM, TOP_K, REDUCE_… and ARG_… follow with their axes
       renumbered.
    4. Where readers of one result disagree, it is transposed once for all, and those that could have followed read it.
    5. Refused: a model in which that would not leave fewer TRANSPOSEs; one with NHWC operands; operations on quantized
       operands. `channels_last` does the same for images, around the operations that want NHWC.
    """
    count = _count(model)
    if not count or any(operand.type.layout is Layout.NHWC for operand in model.operands):
        return model
    for generous in (True, False):
        candidate = _TransposeSweep(ModelEditor(model), generous).run()
        if _count(candidate) < count:
            return candidate
    return model


def _count(model: Model) -> int:
    return sum(operation.type == "TRANSPOSE" for operation in model.operations)


_FOLLOWERS = frozenset(REMAP) - IMAGE


@dataclass(frozen=True, slots=True)
class _TransposedOperand:
    """What an operand is: `source` transposed by `perm`."""

    source: int
    perm: Axes
    operation: int
    """The TRANSPOSE that was put off last; it has adopted those before."""


class _TransposeSweep:
    """One sweep; `generous` lets a result be put off that several operations read, if all could follow."""

    def __init__(self, editor: ModelEditor, generous: bool) -> None:
        self._editor = editor
        self._generous = generous
        self._put: dict[int, _TransposedOperand] = {}
        self._made: dict[int, _TransposedOperand] = {}
        """What was made of those, for readers that transpose it further."""
        self._constants: dict[tuple[int, Axes], int] = {}
        self._agreed: dict[int, bool] = {}
        """Whether all readers could follow, asked once for each operand."""
        self._current = 0

    def run(self) -> Model:
        """Go through the model and return what comes out."""
        for index in self._editor.sweep():
            self._current = index
            self._visit(index, self._editor.operation(index))
        for output in dict.fromkeys(self._editor.model.outputs):
            self._plain(output)
        return self._editor.finish()

    def _visit(self, index: int, operation: Operation) -> None:
        if self._is_quantized(operation):
            self._all_plain(operation)
        elif operation.type == "TRANSPOSE":
            self._put_off(index, operation)
        elif not self._follow(index, operation):
            self._all_plain(operation)

    def _all_plain(self, operation: Operation) -> None:
        for operand in operation.inputs:
            self._plain(operand)

    def _is_quantized(self, operation: Operation) -> bool:
        touched = (operand for operand in (*operation.inputs, *operation.outputs) if operand >= 0)
        return any(self._editor.type_of(operand).quantization is not None for operand in touched)

    def _put_off(self, index: int, operation: Operation) -> None:
        (operand,) = operation.inputs
        perm: Axes = operation.attributes["perm"]  # type: ignore[assignment]
        inner_transpose = self._put.get(operand)
        if inner_transpose is not None:
            self._editor.adopt(index, (inner_transpose.operation,))
        inner_transpose = inner_transpose or self._made.get(operand)
        if inner_transpose is not None:
            operand, perm = inner_transpose.source, tuple(inner_transpose.perm[axis] for axis in perm)
        self._put[operation.outputs[0]] = _TransposedOperand(operand, perm, index)
        self._editor.remove((index,))

    def _follow(self, index: int, operation: Operation) -> bool:
        """Compute on what was there before the transposes, if it can be done."""
        editor = self._editor
        transposes = [self._put[operand] for operand in operation.inputs if operand in self._put]
        if (
            operation.type not in _FOLLOWERS
            or not transposes
            or any(transpose.perm != transposes[0].perm for transpose in transposes)
        ):
            return False
        perm = transposes[0].perm
        if any(not self._may_wander(operand, perm, operation) for operand in operation.inputs):
            return False
        back = tuple(int(axis) for axis in np.argsort(perm))
        for other in transposes[1:]:
            editor.adopt(transposes[0].operation, (other.operation,))
        inputs = [self._before(operand, back) for operand in operation.inputs]
        attributes = {**operation.attributes, **REMAP[operation.type](operation.attributes, back)}
        results = editor.add_operation(operation.type, inputs, attributes, origins=(index,))
        result_axes = remaining_axes(operation.type, operation.attributes, back)
        editor.remove((index,))
        for output, result in zip(operation.outputs, results, strict=True):
            self._put[output] = _TransposedOperand(
                result, tuple(map(result_axes.index, sorted(result_axes))), transposes[0].operation
            )
        return True

    def _may_wander(self, operand: int, perm: Axes, operation: Operation) -> bool:
        editor = self._editor
        if operand in self._put:
            if operand not in self._agreed:
                self._agreed[operand] = self._do_readers_agree(operand)
            return self._agreed[operand]
        if operation.type not in ELEMENTWISE or editor.type_of(operand).rank > len(perm):
            return False
        return editor.value_of(operand) is not None or _is_number(editor.type_of(operand).dimensions)

    def _do_readers_agree(self, operand: int) -> bool:
        readers = [self._editor.operation(reader).type for reader in self._editor.consumers(operand)]
        readers_agree = len(readers) == 1 or (self._generous and all(type_ in _MAY_READ for type_ in readers))
        return readers_agree and not self._editor.is_output(operand)

    def _before(self, operand: int, back: Axes) -> int:
        """What stands for an operand where everything is transposed back."""
        if operand in self._put:
            return self._put[operand].source
        value = self._editor.value_of(operand)
        if value is None or value.size == 1:
            return operand
        key = operand, back
        if key not in self._constants:
            name = f"{self._editor.operand(operand).name}:transposed"
            self._constants[key] = self._editor.add_constant(name, derived(_permuted, value, perm=back))
        return self._constants[key]

    def _plain(self, operand: int) -> None:
        """Make what was put off, for all readers."""
        put = self._put.pop(operand, None)
        if put is None:
            return
        editor = self._editor
        dimensions = editor.type_of(put.source).dimensions
        if put.perm == tuple(range(len(put.perm))) and editor.can_stand_for(operand, put.source):
            producer = editor.producer(put.source)
            editor.adopt(self._current if producer is None else producer, (put.operation,))
            editor.substitute(operand, put.source)
            return
        moved = [axis for axis in put.perm if dimensions[axis] != 1]
        if moved == sorted(moved):
            shape = tuple(dimensions[axis] for axis in put.perm)
            results = editor.add_operation("RESHAPE", (put.source,), {"shape": shape}, origins=(put.operation,))
        else:
            results = editor.add_operation("TRANSPOSE", (put.source,), {"perm": put.perm}, origins=(put.operation,))
        editor.substitute(operand, results[0])
        self._made[results[0]] = put


_MAY_READ = _FOLLOWERS | {"TRANSPOSE"}


def _is_number(dimensions: Axes) -> bool:
    """One element, whatever the order of the axes."""
    return all(size == 1 for size in dimensions)


def _permuted(value: Array, *, perm: Axes) -> Array:
    raised = value.reshape((*[1] * (len(perm) - value.ndim), *value.shape))
    return np.ascontiguousarray(raised.transpose(perm))
