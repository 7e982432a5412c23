"""Layout changes: removal of transposes that cancel each other, and images in NHWC."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from typing import Any

import numpy as np

from nnadapter.ir import ABSENT, Array, Attributes, Layout, Model, OperandType, Operation
from nnadapter.ir.builder import ModelEditor
from nnadapter.ir.derived import derived
from nnadapter.ir.operations import elementwise, quantization, reduction
from nnadapter.ir.operations.windows import IMAGES
from nnadapter.ir.schema import ints
from nnadapter.records import dataclass

Axes = tuple[int, ...]

FROM_NCHW: Axes = (0, 2, 3, 1)


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """Description of an operand: `source`, reshaped to `shape` and then transposed by `perm`."""

    source: int
    shape: Axes
    perm: Axes
    parent: View | None = None
    operation: int | None = None

    @property
    def dimensions(self) -> Axes:
        return tuple(self.shape[axis] for axis in self.perm)

    @property
    def is_identity(self) -> bool:
        """True if only axes of size 1 move."""
        moved = [axis for axis in self.perm if self.shape[axis] != 1]
        return moved == sorted(moved)

    @property
    def operations(self) -> tuple[int, ...]:
        """Operations that the view replaces, last first."""
        indices: list[int] = []
        view: View | None = self
        while view is not None:
            if view.operation is not None:
                indices.append(view.operation)
            view = view.parent
        return tuple(indices)

    def transposed(self, perm: Axes, operation: int | None = None) -> View:
        return View(self.source, self.shape, tuple(self.perm[axis] for axis in perm), self, operation)

    def reshaped(self, dimensions: Axes, operation: int | None = None) -> View | None:
        """Return the view after a RESHAPE; None if it needs more than a RESHAPE and TRANSPOSE of the source."""
        if self.is_identity:
            return View(self.source, dimensions, tuple(range(len(dimensions))), self, operation)
        groups = _groups(self.dimensions, dimensions)
        if groups is None:
            return None
        groups.sort(key=lambda group: self.perm[group[0][0]])
        order = [self.perm[axis] for source_axes, _ in groups for axis in source_axes]
        if order != sorted(order):
            return None
        placed = [axis for _, target_axes in groups for axis in target_axes]
        placed += [axis for axis, size in enumerate(dimensions) if size == 1]
        perm = [0] * len(dimensions)
        for position, axis in enumerate(placed):
            perm[axis] = position
        return View(self.source, tuple(dimensions[axis] for axis in placed), tuple(perm), self, operation)


def _groups(source_shape: Axes, target_shape: Axes) -> list[tuple[list[int], list[int]]] | None:
    if prod(source_shape) == 0 or prod(source_shape) != prod(target_shape):
        return None
    source_axes = [axis for axis, size in enumerate(source_shape) if size != 1]
    target_axes = [axis for axis, size in enumerate(target_shape) if size != 1]
    groups, second = [], 0
    first = 0
    while first < len(source_axes):
        source_run, target_run = [source_axes[first]], [target_axes[second]]
        first, second = first + 1, second + 1
        while (
            sizes := (prod(source_shape[axis] for axis in source_run), prod(target_shape[axis] for axis in target_run))
        )[0] != sizes[1]:
            if sizes[0] < sizes[1]:
                source_run.append(source_axes[first])
                first += 1
            else:
                target_run.append(target_axes[second])
                second += 1
        groups.append((source_run, target_run))
    return groups


Remap = Callable[[Attributes, Axes], Mapping[str, Any]]
"""Rule that adapts an operation's attributes to transposed operands. Axis i was axis `perm[i]` before."""


IMAGE = IMAGES | {"RESIZE_NEAREST", "RESIZE_LINEAR"}

ELEMENTWISE = frozenset(row.type for row in (*elementwise.ROWS, *quantization.ROWS))

REDUCING = frozenset(row.type for row in reduction.ROWS if row.attribute("keepdims"))


def _axis(attributes: Attributes, perm: Axes) -> Mapping[str, Any]:
    return {"axis": perm.index(attributes["axis"])}


def _permuted(*names: str) -> Remap:
    return lambda attributes, perm: {name: tuple(ints(attributes, name)[axis] for axis in perm) for name in names}


def _pads(attributes: Attributes, perm: Axes) -> Mapping[str, Any]:
    pads = ints(attributes, "pads")
    return {"pads": tuple(pads[end + axis] for end in (0, len(perm)) for axis in perm)}


def _slices(attributes: Attributes, perm: Axes) -> Mapping[str, Any]:
    names = ("axes", "starts", "ends", "steps")
    axes, *columns = (ints(attributes, name) for name in names)
    rows = sorted(zip(map(perm.index, axes), *columns, strict=True), key=lambda row: row[0])
    return {name: tuple(row[position] for row in rows) for position, name in enumerate(names)}


REMAP: Mapping[str, Remap] = {
    **dict.fromkeys(IMAGE | ELEMENTWISE, lambda attributes, perm: {}),
    **dict.fromkeys(("CONCAT", "SPLIT", "SOFTMAX", "LOG_SOFTMAX", "CUM_SUM", "TOP_K", "ARG_MAX", "ARG_MIN"), _axis),
    **dict.fromkeys(("CUM_PROD", "HARDMAX"), _axis),
    **dict.fromkeys(
        REDUCING - {"ARG_MAX", "ARG_MIN"},
        lambda attributes, perm: {"axes": tuple(sorted(map(perm.index, ints(attributes, "axes"))))},
    ),
    **dict.fromkeys(("RESIZE_NEAREST", "RESIZE_LINEAR"), _permuted("shape", "scales")),
    "TILE": _permuted("repeats"),
    "SLICE": _slices,
    "PAD": _pads,
}
"""Operation -> rule for its attributes on transposed operands. Other operations require NCHW."""


def remaining_axes(type_: str, attributes: Attributes, perm: Axes) -> tuple[int, ...]:
    """Return the input axes in the order of `perm`, without axes that a reduction removes."""
    if type_ not in REDUCING or attributes["keepdims"]:
        return perm
    removed_axes = (attributes["axis"],) if "axis" in attributes else ints(attributes, "axes")
    return tuple(axis for axis in perm if axis not in removed_axes)


def cancel_transposes(model: Model) -> Model:
    """Move transposes towards the outputs, where they cancel each other.

    1. A TRANSPOSE is deferred and composed with later ones. If only axes of size 1 move, it becomes a RESHAPE.
    2. Elementwise operations compute before a deferred TRANSPOSE if all inputs have the same permutation.
    3. CONCAT, SPLIT, SLICE, PAD, TILE, SOFTMAX, LOG_SOFTMAX, CUM_SUM, TOP_K, REDUCE_… and ARG_… follow rule 2, with
       renumbered axes.
    4. Unchanged: models that would not have fewer TRANSPOSEs; NHWC or quantized operands. For images, use
       `channels_last`.
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
    source: int
    perm: Axes
    operation: int


class _TransposeSweep:
    """One sweep of `cancel_transposes`. `generous` also moves a TRANSPOSE with several readers if all permit it."""

    def __init__(self, editor: ModelEditor, generous: bool) -> None:
        self._editor = editor
        self._generous = generous
        self._put: dict[int, _TransposedOperand] = {}
        self._made: dict[int, _TransposedOperand] = {}
        self._constants: dict[tuple[int, Axes], int] = {}
        self._agreed: dict[int, bool] = {}
        self._current = 0

    def run(self) -> Model:
        for index in self._editor.sweep():
            self._current = index
            self._visit(index, self._editor.operation(index))
        for output in dict.fromkeys(self._editor.model.outputs):
            self._plain(output)
        return self._editor.finish()

    def _visit(self, index: int, operation: Operation) -> None:
        types = (self._editor.type_of(operand) for operand in (*operation.inputs, *operation.outputs) if operand >= 0)
        is_quantized = any(type_.quantization is not None for type_ in types)
        if operation.type == "TRANSPOSE" and not is_quantized:
            self._defer(index, operation)
        elif is_quantized or not self._follow(index, operation):
            for operand in operation.inputs:
                self._plain(operand)

    def _defer(self, index: int, operation: Operation) -> None:
        (operand,) = operation.inputs
        perm = ints(operation.attributes, "perm")
        inner_transpose = self._put.get(operand)
        if inner_transpose is not None:
            self._editor.adopt(index, (inner_transpose.operation,))
        inner_transpose = inner_transpose or self._made.get(operand)
        if inner_transpose is not None:
            operand, perm = inner_transpose.source, tuple(inner_transpose.perm[axis] for axis in perm)
        self._put[operation.outputs[0]] = _TransposedOperand(operand, perm, index)
        self._editor.remove((index,))

    def _follow(self, index: int, operation: Operation) -> bool:
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
        inputs = [self._transposed_back(operand, back) for operand in operation.inputs]
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
        return editor.value_of(operand) is not None or all(size == 1 for size in editor.type_of(operand).dimensions)

    def _do_readers_agree(self, operand: int) -> bool:
        readers = [self._editor.operation(reader).type for reader in self._editor.consumers(operand)]
        readers_agree = len(readers) == 1 or (self._generous and all(type_ in _MAY_READ for type_ in readers))
        return readers_agree and not self._editor.is_output(operand)

    def _transposed_back(self, operand: int, back: Axes) -> int:
        if operand in self._put:
            return self._put[operand].source
        value = self._editor.value_of(operand)
        if value is None or value.size == 1:
            return operand
        key = operand, back
        if key not in self._constants:
            name = f"{self._editor.operand(operand).name}:transposed"
            self._constants[key] = self._editor.add_constant(name, derived(_transposed, value, perm=back))
        return self._constants[key]

    def _plain(self, operand: int) -> None:
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


def _transposed(value: Array, *, perm: Axes) -> Array:
    raised = value.reshape((*[1] * (len(perm) - value.ndim), *value.shape))
    return np.ascontiguousarray(raised.transpose(perm))


def channels_last(model: Model) -> Model:
    """Convert images to [N, H, W, C] between the operations that support it.

    1. Convolutions, pools, BATCH_, INSTANCE_ and LOCAL_RESPONSE_NORMALIZATION, RESIZE_…, DEPTH_TO_SPACE and
       SPACE_TO_DEPTH of rank 4 take and return NHWC operands. Filters stay as they are.
    2. Elementwise operations compute in NHWC if an input is available only in NHWC.
    3. So do operations of rule 3 of `cancel_transposes`.
    4. TRANSPOSE and RESHAPE are deferred and composed. If only axes of size 1 move, a RESHAPE suffices.
    5. All other operations get NCHW operands, as do model outputs, and operands quantized along an axis.
    6. Unchanged: models with NHWC operands, or without an operation of rule 1.
    """
    has_images = any(
        operation.type in IMAGE and model.operands[operation.inputs[0]].type.rank == 4 for operation in model.operations
    )
    if not has_images or any(operand.type.layout is Layout.NHWC for operand in model.operands):
        return model
    editor = ModelEditor(model)
    state = _Images(editor)
    for index in editor.sweep():
        state.visit(index)
    for output in dict.fromkeys(model.outputs):
        state.plain(output)
    return editor.finish()


class _Images:
    def __init__(self, editor: ModelEditor) -> None:
        self._editor = editor
        self._views: dict[int, View] = {}
        self._made: dict[tuple[int, Layout], int] = {}
        self._current = 0

    def visit(self, index: int) -> None:
        self._current = index
        operation = self._editor.operation(index)
        if operation.type in ("TRANSPOSE", "RESHAPE") and self._defer(index, operation):
            return
        if self._follows(operation):
            self._convert(index, operation)
            return
        for operand in operation.inputs:
            if operand != ABSENT:
                self.plain(operand)

    def plain(self, operand: int) -> int:
        if operand not in self._views:
            return operand
        nchw_operand = self._made.get((operand, Layout.NCHW))
        if nchw_operand is None:
            nchw_operand = self._emit(self._views[operand], operand, Layout.NCHW)
            self._editor.substitute(operand, nchw_operand)
            self._made[operand, Layout.NCHW] = nchw_operand
            nhwc_operand = self._made.get((operand, Layout.NHWC))
            if nchw_operand not in self._views and nhwc_operand is not None:
                # Later readers see `nchw_operand` instead of `operand`, and may also use the NHWC version.
                self._views[nchw_operand] = self._views[operand]
                self._made[nchw_operand, Layout.NCHW] = nchw_operand
                self._made[nchw_operand, Layout.NHWC] = nhwc_operand
        return nchw_operand

    def _channels_last(self, operand: int) -> int:
        nhwc_operand = self._made.get((operand, Layout.NHWC))
        if nhwc_operand is None:
            view = self._view(operand)
            dimensions = self._editor.type_of(operand).dimensions
            shape = (*[1] * (4 - len(dimensions)), *dimensions)
            raised = view.reshaped(shape) or self._view_of(self.plain(operand)).reshaped(shape)
            assert raised is not None, "an operand that is not transposed can be reshaped"
            nhwc_operand = self._emit(raised.transposed(FROM_NCHW), operand, Layout.NHWC)
            self._made[operand, Layout.NHWC] = nhwc_operand
            if operand not in self._views:
                self._views[operand] = self._view_of(operand)
                self._made[operand, Layout.NCHW] = operand
        return nhwc_operand

    def _view(self, operand: int) -> View:
        return self._views.get(operand) or self._view_of(operand)

    def _view_of(self, operand: int) -> View:
        dimensions = self._editor.type_of(operand).dimensions
        return View(operand, dimensions, tuple(range(len(dimensions))))

    def _defer(self, index: int, operation: Operation) -> bool:
        (operand,), (output,) = operation.inputs, operation.outputs
        if _has_axis(self._editor.type_of(operand)) or _has_axis(self._editor.type_of(output)):
            return False
        view: View | None
        if operation.type == "TRANSPOSE":
            view = self._view(operand).transposed(ints(operation.attributes, "perm"), index)
        else:
            shape = ints(operation.attributes, "shape")
            view = self._view(operand).reshaped(shape, index)
            nchw_operand = self._made.get((operand, Layout.NCHW))
            if nchw_operand is not None and (view is None or not view.is_identity):
                view = self._view_of(nchw_operand).reshaped(shape, index)
        if view is None:
            return False
        self._views[output] = view
        self._editor.remove((index,))
        return True

    def _follows(self, operation: Operation) -> bool:
        if operation.type not in REMAP:
            return False
        types = [self._editor.type_of(operand) for operand in operation.inputs if operand != ABSENT]
        if operation.type in IMAGE:
            return types[0].rank == 4
        if any(map(_has_axis, (*types, *map(self._editor.type_of, operation.outputs)))):
            return False
        if operation.type in ELEMENTWISE:
            fits = self._editor.type_of(operation.outputs[0]).rank == 4
        else:
            fits = all(type_.rank == 4 for type_ in types)
        return fits and any(map(self._is_channels_last, operation.inputs))

    def _is_channels_last(self, operand: int) -> bool:
        view = self._views.get(operand)
        if view is None or len(view.perm) != 4 or (operand, Layout.NCHW) in self._made:
            return False
        return (operand, Layout.NHWC) in self._made or view.transposed(FROM_NCHW).is_identity

    def _convert(self, index: int, operation: Operation) -> None:
        editor = self._editor
        attributes = {**operation.attributes, **REMAP[operation.type](operation.attributes, FROM_NCHW)}
        result_axes = remaining_axes(operation.type, operation.attributes, FROM_NCHW)
        is_nhwc = result_axes == FROM_NCHW
        names = [f"{editor.operand(output).name}:NHWC" for output in operation.outputs] if is_nhwc else ()
        inputs = self._inputs(operation)
        quantized = [editor.type_of(output).quantized for output in operation.outputs]
        results = editor.add_operation(
            operation.type, inputs, attributes, origins=(index,), names=names, quantized=quantized
        )
        editor.remove((index,))
        perm = tuple(map(result_axes.index, sorted(result_axes)))
        for original, replacement in zip(operation.outputs, results, strict=True):
            if result_axes == tuple(sorted(result_axes)):
                editor.substitute(original, replacement)
                continue
            type_ = editor.type_of(replacement)
            self._views[original] = View(replacement, type_.dimensions, perm)
            if type_.layout is Layout.NHWC:
                self._made[original, Layout.NHWC] = replacement

    def _inputs(self, operation: Operation) -> list[int]:
        first, *parameters = operation.inputs
        if operation.type in IMAGE:
            plain = [operand if operand == ABSENT else self.plain(operand) for operand in parameters]
            return [self._channels_last(first), *plain]
        if operation.type in ELEMENTWISE:
            return [self._broadcast(operand) for operand in operation.inputs]
        return [self._channels_last(operand) for operand in operation.inputs]

    def _broadcast(self, operand: int) -> int:
        broadcast_operand = self._editor.operand(operand)
        if broadcast_operand.type.size == 1 and broadcast_operand.type.rank < 4:
            return self.plain(operand)
        if broadcast_operand.value is not None:
            return self._editor.derived(operand, f"{broadcast_operand.name}:NHWC", _TO_CHANNELS_LAST)
        return self._channels_last(operand)

    def _emit(self, view: View, operand: int, layout: Layout) -> int:
        editor, source = self._editor, view.source
        type_, dimensions = editor.type_of(source), view.dimensions
        operations = view.operations
        producer = editor.producer(source)
        heir = self._current if producer is None else producer
        is_there = view.is_identity and type_.dimensions == dimensions and type_.layout is layout
        if is_there and (layout is Layout.NHWC or editor.can_stand_for(operand, source)):
            if operations:
                editor.adopt(heir, operations)
            return source
        origins = operations or (heir,)
        if view.is_identity and layout is Layout.NCHW:
            return editor.add_operation("RESHAPE", (source,), {"shape": dimensions}, origins=origins)[0]
        if type_.dimensions != view.shape:
            (source,) = editor.add_operation("RESHAPE", (source,), {"shape": view.shape}, origins=origins)
        names = (f"{editor.operand(operand).name}:NHWC",) if layout is Layout.NHWC else ()
        attributes = {"perm": view.perm, "output_layout": layout.value}
        return editor.add_operation("TRANSPOSE", (source,), attributes, origins=origins, names=names)[0]


def _has_axis(type_: OperandType) -> bool:
    return type_.quantization is not None and type_.quantization.axis is not None


_TO_CHANNELS_LAST = partial(_transposed, perm=FROM_NCHW)  # one object, by which results are memoized
