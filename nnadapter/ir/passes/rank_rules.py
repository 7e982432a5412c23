"""How each operation is rewritten with fewer dimensions; `reduce_rank` says what for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, Protocol

from nnadapter.ir.model import ABSENT, Operation
from nnadapter.ir.passes.axis_groups import around, grouped, merged, positions, raised
from nnadapter.ir.passes.rank_steps import STEPWISE
from nnadapter.ir.passes.remapping import ELEMENTWISE
from nnadapter.ir.passes.view import Axes
from nnadapter.ir.schema import AttributeValue
from nnadapter.ir.tracing import told_apart


class RankShapes(Protocol):
    """What a rule works with; `reduce_rank.Ranks` is one."""

    largest: int
    """Most dimensions."""

    def dimensions(self, operand: int) -> Axes:
        """Those that the model has."""

    def is_floating(self, operand: int) -> bool:
        """Whether its elements are floating-point numbers."""

    def any_shape(self, operand: int) -> int:
        """The operand's elements in few dimensions, whichever."""

    def shaped(self, operand: int, shape: Axes) -> int:
        """The operand's elements in these dimensions."""

    def add(self, type_: str, inputs: Sequence[int], attributes: Mapping[str, AttributeValue]) -> tuple[int, ...]:
        """Add an operation."""


RankRule = Callable[[RankShapes, Operation], Sequence[int] | None]
"""Operands that hold the outputs' elements, in whatever dimensions; None to refuse, before anything is added."""


def _elementwise(shapes: RankShapes, operation: Operation) -> Sequence[int] | None:
    result = shapes.dimensions(operation.outputs[0])
    inputs = [raised(shapes.dimensions(operand), len(result)) for operand in operation.inputs]
    ones = [[size == 1 for size in shape] for shape in inputs]
    if all(
        all(flags) or not any(is_unit and size != 1 for is_unit, size in zip(flags, result, strict=True))
        for flags in ones
    ):
        return shapes.add(
            operation.type, _as_first(shapes, operation.inputs, list(map(all, ones))), operation.attributes
        )
    kinds = [None if size == 1 else tuple(flags[axis] for flags in ones) for axis, size in enumerate(result)]
    groups = grouped(kinds)
    if len(groups) > shapes.largest:
        return None
    read = [
        shapes.shaped(operand, merged(dimensions, groups))
        for operand, dimensions in zip(operation.inputs, inputs, strict=True)
    ]
    return shapes.add(operation.type, read, operation.attributes)


def _as_first(shapes: RankShapes, operands: Sequence[int], numbers: Sequence[bool]) -> Sequence[int]:
    """Nothing is broadcast but single numbers: the others take the dimensions that the first of them has anyway."""
    lead = next((operand for operand, number in zip(operands, numbers, strict=True) if not number), operands[0])
    shape = shapes.dimensions(shapes.any_shape(lead))
    shaped_operands = []
    for operand, number in zip(operands, numbers, strict=True):
        fits = number and len(shapes.dimensions(operand)) <= len(shape)
        shaped_operands.append(operand if fits else shapes.shaped(operand, (1,) * len(shape) if number else shape))
    return shaped_operands


def _transpose(shapes: RankShapes, operation: Operation) -> Sequence[int] | None:
    (operand,) = operation.inputs
    dimensions = shapes.dimensions(operand)
    perm: Axes = operation.attributes["perm"]  # type: ignore[assignment]
    runs = _runs(perm, [axis for axis, size in enumerate(dimensions) if size != 1])
    order = sorted(range(len(runs)), key=lambda run: runs[run][0])
    sizes = [prod(dimensions[axis] for axis in runs[run]) for run in order]
    target_order = [order.index(run) for run in range(len(runs))]
    if len(runs) <= shapes.largest:
        return shapes.add("TRANSPOSE", (shapes.shaped(operand, tuple(sizes)),), {"perm": tuple(target_order)})
    if shapes.largest < 4:
        return None
    return (_swapped(shapes, operand, sizes, target_order),)


def _runs(perm: Axes, axes: Sequence[int]) -> list[list[int]]:
    """Axes that stay neighbors, in the order of the result; those of size 1 are left out."""
    place = {axis: position for position, axis in enumerate(axes)}
    runs: list[list[int]] = []
    for axis in perm:
        if axis not in place:
            continue
        if runs and place[axis] == place[runs[-1][-1]] + 1:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    return runs


def _swapped(shapes: RankShapes, operand: int, sizes: Sequence[int], target_order: Sequence[int]) -> int:
    """Bring axes into order by swapping neighboring runs: [before, a, b, behind] becomes [before, b, a, behind]."""
    order = list(range(len(sizes)))
    for position in range(len(order)):
        start = order.index(target_order[position])
        if start == position:
            continue
        end = start + 1
        while end < len(order) and order[end] == target_order[position + end - start]:
            end += 1
        parts = [order[:position], order[position:start], order[start:end], order[end:]]
        shape = tuple(prod(sizes[axis] for axis in part) for part in parts)
        (operand,) = shapes.add("TRANSPOSE", (shapes.shaped(operand, shape),), {"perm": (0, 2, 1, 3)})
        order = [axis for part in (parts[0], parts[2], parts[1], parts[3]) for axis in part]
    return operand


def _along_one_axis(shapes: RankShapes, operation: Operation) -> Sequence[int] | None:
    axis = int(operation.attributes["axis"])  # type: ignore[arg-type]
    read = [shapes.shaped(operand, around(shapes.dimensions(operand), axis)) for operand in operation.inputs]
    attributes = {**operation.attributes, "axis": 1}
    if "keepdims" in attributes:
        attributes["keepdims"] = True
    return shapes.add(operation.type, read, attributes)


def _gather(shapes: RankShapes, operation: Operation) -> Sequence[int] | None:
    operand, indices = operation.inputs
    axis = int(operation.attributes["axis"])  # type: ignore[arg-type]
    read = (
        shapes.shaped(operand, around(shapes.dimensions(operand), axis)),
        shapes.shaped(indices, (prod(shapes.dimensions(indices)),)),
    )
    return shapes.add("GATHER", read, {"axis": 1})


def _gather_elements(shapes: RankShapes, operation: Operation) -> Sequence[int] | None:
    axis = int(operation.attributes["axis"])  # type: ignore[arg-type]
    operand, indices = (shapes.dimensions(input_index) for input_index in operation.inputs)
    outer_shapes = [(*shape[:axis], *shape[axis + 1 :]) for shape in (operand, indices)]
    same = told_apart(outer_shapes[0]) == told_apart(outer_shapes[1])
    return _along_one_axis(shapes, operation) if same else None


def _fully_connected(shapes: RankShapes, operation: Operation) -> Sequence[int] | None:
    operand, *parameters = operation.inputs
    dimensions = shapes.dimensions(operand)
    rows = shapes.shaped(operand, (prod(dimensions[:-1]), dimensions[-1]))
    return shapes.add("FULLY_CONNECTED", (rows, *parameters), operation.attributes)


def _mat_mul(shapes: RankShapes, operation: Operation) -> Sequence[int] | None:
    x, y = operation.inputs
    left, right = shapes.dimensions(x), shapes.dimensions(y)
    if len(right) <= 2 and not operation.attributes["transpose_x"]:
        rows = shapes.shaped(x, (prod(left[:-1]), left[-1]))
        return shapes.add("MAT_MUL", (rows, y), operation.attributes)
    if len(left) < 2 or len(right) < 2:
        return None
    rank = max(len(left), len(right)) - 2
    batches = [raised(shape[:-2], rank) for shape in (left, right)]
    kinds = [
        None if x_size == 1 and other == 1 else (x_size == 1, other == 1)
        for x_size, other in zip(*batches, strict=True)
    ]
    groups = grouped(kinds)
    if len(groups) + 2 > shapes.largest:
        return None
    read = [
        shapes.shaped(operand, (*merged(batch, groups), *dimensions[-2:]))
        for operand, batch, dimensions in zip((x, y), batches, (left, right), strict=True)
    ]
    return shapes.add("MAT_MUL", read, operation.attributes)


def _per_channel(shapes: RankShapes, operation: Operation) -> Sequence[int] | None:
    operand, *parameters = operation.inputs
    image = shapes.shaped(operand, around(shapes.dimensions(operand), 1))
    return shapes.add(operation.type, (image, *parameters), operation.attributes)


def _layer_normalization(shapes: RankShapes, operation: Operation) -> Sequence[int] | None:
    operand, *optional_inputs = operation.inputs
    dimensions = shapes.dimensions(operand)
    axis = int(operation.attributes["axis"])  # type: ignore[arg-type]
    parameters = [parameter for parameter in optional_inputs if parameter != ABSENT]
    if any(told_apart(shapes.dimensions(parameter)) != told_apart(dimensions[axis:]) for parameter in parameters):
        return None
    count = prod(dimensions[axis:])
    rows = shapes.shaped(operand, (prod(dimensions[:axis]), count))
    read = [parameter if parameter == ABSENT else shapes.shaped(parameter, (count,)) for parameter in optional_inputs]
    return shapes.add("LAYER_NORMALIZATION", (rows, *read), {**operation.attributes, "axis": 1})


def _stepwise(shapes: RankShapes, operation: Operation) -> Sequence[int] | None:
    step = STEPWISE[operation.type]
    (operand,) = operation.inputs
    result = step.result(shapes.dimensions(operation.outputs[0]), operation)
    current_shape = list(raised(shapes.dimensions(operand), len(result)))
    touched = step.touched(current_shape, result, operation)
    groups = grouped(_kinds(current_shape, touched, step.joins))
    if len(groups) <= shapes.largest:
        rounds = [touched]
    elif step.may_repeat(shapes.is_floating(operand)):
        rounds = [touched.intersection(group) for group in groups if not touched.isdisjoint(group)]
    else:
        return None
    operand = shapes.any_shape(operand)
    if not touched:
        return shapes.add("ASSIGN", (operand,), {})
    for axes in rounds:
        groups = grouped(_kinds(current_shape, axes, step.joins))
        next_shape = [result[axis] if axis in axes else size for axis, size in enumerate(current_shape)]
        place = {axis: where for axis, where in positions(groups).items() if axis in axes}
        attributes = step.attributes(operation, place, merged(tuple(next_shape), groups))
        source = shapes.shaped(operand, merged(tuple(current_shape), groups))
        (operand,) = shapes.add(operation.type, (source,), attributes)
        current_shape = next_shape
    return (operand,)


def _kinds(dimensions: Sequence[int], touched: Any, joins: bool) -> list[Any]:
    """Touched axes are of one kind if they can be joined, else each of its own."""
    return [
        (("touched", 0 if joins else axis) if axis in touched else None if size == 1 else "kept")
        for axis, size in enumerate(dimensions)
    ]


RULES: Mapping[str, RankRule] = {
    **dict.fromkeys(ELEMENTWISE, _elementwise),
    **dict.fromkeys(STEPWISE, _stepwise),
    **dict.fromkeys(("SOFTMAX", "LOG_SOFTMAX", "CUM_SUM", "TOP_K", "ARG_MAX", "ARG_MIN"), _along_one_axis),
    **dict.fromkeys(("CONCAT", "SPLIT"), _along_one_axis),
    **dict.fromkeys(("BATCH_NORMALIZATION", "INSTANCE_NORMALIZATION"), _per_channel),
    "TRANSPOSE": _transpose,
    "GATHER": _gather,
    "GATHER_ELEMENTS": _gather_elements,
    "FULLY_CONNECTED": _fully_connected,
    "MAT_MUL": _mat_mul,
    "LAYER_NORMALIZATION": _layer_normalization,
}
"""By operation type; an operation that is not here keeps its dimensions."""
