"""Rank reduction for devices that limit the number of dimensions."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from math import prod
from typing import Any

from nnadapter.errors import InvalidOptionError
from nnadapter.ir import ABSENT, Attributes, AttributeValue, Layout, Model, Operation
from nnadapter.ir.builder import ModelEditor
from nnadapter.ir.passes.layout import ELEMENTWISE, REDUCING, Axes
from nnadapter.ir.schema import ints
from nnadapter.ir.symbolic_numbers import identity_key
from nnadapter.records import dataclass

Groups = list[list[int]]
"""Groups of adjacent axes, each to be merged into one axis."""


def grouped(kinds: Sequence[Hashable | None]) -> Groups:
    """Group adjacent axes of equal kind. An axis of kind None has size 1 and joins any group."""
    groups: Groups = []
    loose: list[int] = []
    latest: Hashable | None = None
    for axis, kind in enumerate(kinds):
        if kind is None:
            (groups[-1] if groups else loose).append(axis)
        elif groups and kind == latest:
            groups[-1].append(axis)
        else:
            groups.append([*loose, axis])
            loose, latest = [], kind
    return [*groups, loose] if loose else groups


def merged(dimensions: Sequence[int], groups: Groups) -> Axes:
    """Return the dimensions after merging the axes of each group."""
    return tuple(prod(dimensions[axis] for axis in group) for group in groups)


def around(dimensions: Axes, axis: int) -> Axes:
    """Return the three dimensions after merging the axes before and after `axis`."""
    return prod(dimensions[:axis]), dimensions[axis], prod(dimensions[axis + 1 :])


def raised(dimensions: Axes, rank: int) -> Axes:
    """Prepend axes of size 1, up to this rank."""
    return (*[1] * (rank - len(dimensions)), *dimensions)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStep:
    """Rule for operations that affect some axes, so that others can be merged."""

    touched: Callable[[Sequence[int], Sequence[int], Attributes], frozenset[int]]
    """Input dimensions, output dimensions, attributes -> affected axes."""
    attributes: Callable[[Attributes, Mapping[int, int], Axes], Mapping[str, Any]]
    """Attributes, new positions of affected axes, new output dimensions -> new attributes."""
    joins: bool = False
    """Adjacent affected axes may be merged."""
    repeats_integers: bool = True
    """The operation may be applied to one axis after the other even for integers."""


def _is(value: object, number: int) -> bool:
    return type(value) is int and value == number


def _named(input_shape: Sequence[int], output_shape: Sequence[int], attributes: Attributes) -> frozenset[int]:
    return frozenset(map(int, ints(attributes, "axes")))


def _changed(input_shape: Sequence[int], output_shape: Sequence[int], attributes: Attributes) -> frozenset[int]:
    pairs = enumerate(zip(input_shape, output_shape, strict=True))
    return frozenset(axis for axis, (input_size, other) in pairs if identity_key(input_size) != identity_key(other))


def _padded(input_shape: Sequence[int], output_shape: Sequence[int], attributes: Attributes) -> frozenset[int]:
    pads, rank = ints(attributes, "pads"), len(input_shape)
    return frozenset(axis for axis in range(rank) if not (_is(pads[axis], 0) and _is(pads[axis + rank], 0)))


def _repeated(input_shape: Sequence[int], output_shape: Sequence[int], attributes: Attributes) -> frozenset[int]:
    return frozenset(axis for axis, times in enumerate(ints(attributes, "repeats")) if not _is(times, 1))


def _reduce(attributes: Attributes, place: Mapping[int, int], shape: Axes) -> Mapping[str, Any]:
    return {**attributes, "axes": tuple(sorted(set(place.values()))), "keepdims": True}


def _slice(attributes: Attributes, place: Mapping[int, int], shape: Axes) -> Mapping[str, Any]:
    names = ("axes", "starts", "ends", "steps")
    rows = [row for row in zip(*(ints(attributes, name) for name in names), strict=True) if row[0] in place]
    axes, *columns = zip(*rows, strict=True)
    return {"axes": tuple(place[axis] for axis in axes), **dict(zip(names[1:], columns, strict=True))}


def _pad(attributes: Attributes, place: Mapping[int, int], shape: Axes) -> Mapping[str, Any]:
    original_pads = ints(attributes, "pads")
    pads: list[int] = [0] * (2 * len(shape))
    for axis, where in place.items():
        pads[where], pads[where + len(shape)] = original_pads[axis], original_pads[axis + len(original_pads) // 2]
    return {**attributes, "pads": tuple(pads)}


def _tile(attributes: Attributes, place: Mapping[int, int], shape: Axes) -> Mapping[str, Any]:
    repeats = [1] * len(shape)
    for axis, where in place.items():
        repeats[where] = ints(attributes, "repeats")[axis]
    return {"repeats": tuple(repeats)}


STEPWISE: Mapping[str, RankStep] = {
    **{
        type_: RankStep(
            touched=_named,
            attributes=_reduce,
            joins=True,
            repeats_integers=type_ != "REDUCE_MEAN",
        )
        for type_ in REDUCING - {"ARG_MAX", "ARG_MIN"}
    },
    "EXPAND": RankStep(touched=_changed, attributes=lambda attributes, place, shape: {"shape": shape}, joins=True),
    "PAD": RankStep(touched=_padded, attributes=_pad),
    "SLICE": RankStep(touched=_named, attributes=_slice),
    "TILE": RankStep(touched=_repeated, attributes=_tile),
}


RankRule = Callable[["Ranks", Operation], Sequence[int] | None]
"""Rule that adds low-rank operations and returns the operands that replace the outputs; None if it adds none."""


def _elementwise(shapes: Ranks, operation: Operation) -> Sequence[int] | None:
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


def _as_first(shapes: Ranks, operands: Sequence[int], numbers: Sequence[bool]) -> Sequence[int]:
    lead = next((operand for operand, number in zip(operands, numbers, strict=True) if not number), operands[0])
    shape = shapes.dimensions(shapes.any_shape(lead))
    shaped_operands = []
    for operand, number in zip(operands, numbers, strict=True):
        fits = number and len(shapes.dimensions(operand)) <= len(shape)
        shaped_operands.append(operand if fits else shapes.shaped(operand, (1,) * len(shape) if number else shape))
    return shaped_operands


def _transpose(shapes: Ranks, operation: Operation) -> Sequence[int] | None:
    (operand,) = operation.inputs
    dimensions = shapes.dimensions(operand)
    perm = ints(operation.attributes, "perm")
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


def _swapped(shapes: Ranks, operand: int, sizes: Sequence[int], target_order: Sequence[int]) -> int:
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


def _along_one_axis(shapes: Ranks, operation: Operation) -> Sequence[int] | None:
    axis: Any = operation.attributes["axis"]
    read = [shapes.shaped(operand, around(shapes.dimensions(operand), axis)) for operand in operation.inputs]
    attributes = {**operation.attributes, "axis": 1}
    if "keepdims" in attributes:
        attributes["keepdims"] = True
    return shapes.add(operation.type, read, attributes)


def _gather(shapes: Ranks, operation: Operation) -> Sequence[int] | None:
    operand, indices = operation.inputs
    axis: Any = operation.attributes["axis"]
    read = (
        shapes.shaped(operand, around(shapes.dimensions(operand), axis)),
        shapes.shaped(indices, (prod(shapes.dimensions(indices)),)),
    )
    return shapes.add("GATHER", read, {"axis": 1})


def _gather_elements(shapes: Ranks, operation: Operation) -> Sequence[int] | None:
    axis: Any = operation.attributes["axis"]
    operand, indices = (shapes.dimensions(input_index) for input_index in operation.inputs)
    outer_shapes = [(*shape[:axis], *shape[axis + 1 :]) for shape in (operand, indices)]
    same = identity_key(outer_shapes[0]) == identity_key(outer_shapes[1])
    return _along_one_axis(shapes, operation) if same else None


def _fully_connected(shapes: Ranks, operation: Operation) -> Sequence[int] | None:
    operand, *parameters = operation.inputs
    dimensions = shapes.dimensions(operand)
    rows = shapes.shaped(operand, (prod(dimensions[:-1]), dimensions[-1]))
    return shapes.add("FULLY_CONNECTED", (rows, *parameters), operation.attributes)


def _mat_mul(shapes: Ranks, operation: Operation) -> Sequence[int] | None:
    x, y = operation.inputs
    x_shape, y_shape = shapes.dimensions(x), shapes.dimensions(y)
    if len(y_shape) <= 2 and not operation.attributes["transpose_x"]:
        rows = shapes.shaped(x, (prod(x_shape[:-1]), x_shape[-1]))
        return shapes.add("MAT_MUL", (rows, y), operation.attributes)
    if len(x_shape) < 2 or len(y_shape) < 2:
        return None
    rank = max(len(x_shape), len(y_shape)) - 2
    batches = [raised(shape[:-2], rank) for shape in (x_shape, y_shape)]
    kinds = [
        None if x_size == 1 and other == 1 else (x_size == 1, other == 1)
        for x_size, other in zip(*batches, strict=True)
    ]
    groups = grouped(kinds)
    if len(groups) + 2 > shapes.largest:
        return None
    read = [
        shapes.shaped(operand, (*merged(batch, groups), *dimensions[-2:]))
        for operand, batch, dimensions in zip((x, y), batches, (x_shape, y_shape), strict=True)
    ]
    return shapes.add("MAT_MUL", read, operation.attributes)


def _per_channel(shapes: Ranks, operation: Operation) -> Sequence[int] | None:
    operand, *parameters = operation.inputs
    image = shapes.shaped(operand, around(shapes.dimensions(operand), 1))
    return shapes.add(operation.type, (image, *parameters), operation.attributes)


def _layer_normalization(shapes: Ranks, operation: Operation) -> Sequence[int] | None:
    operand, *optional_inputs = operation.inputs
    dimensions = shapes.dimensions(operand)
    axis: Any = operation.attributes["axis"]
    parameters = [parameter for parameter in optional_inputs if parameter != ABSENT]
    if any(identity_key(shapes.dimensions(parameter)) != identity_key(dimensions[axis:]) for parameter in parameters):
        return None
    count = prod(dimensions[axis:])
    rows = shapes.shaped(operand, (prod(dimensions[:axis]), count))
    read = [parameter if parameter == ABSENT else shapes.shaped(parameter, (count,)) for parameter in optional_inputs]
    return shapes.add("LAYER_NORMALIZATION", (rows, *read), {**operation.attributes, "axis": 1})


def _stepwise(shapes: Ranks, operation: Operation) -> Sequence[int] | None:
    step = STEPWISE[operation.type]
    (operand,) = operation.inputs
    result = list(shapes.dimensions(operation.outputs[0]))
    if not operation.attributes.get("keepdims", True):
        for axis in ints(operation.attributes, "axes"):
            result.insert(axis, 1)
    current_shape = list(raised(shapes.dimensions(operand), len(result)))
    touched = step.touched(current_shape, result, operation.attributes)
    groups = grouped(_kinds(current_shape, touched, step.joins))
    if len(groups) <= shapes.largest:
        rounds = [touched]
    elif step.repeats_integers or shapes.is_floating(operand):
        rounds = [touched.intersection(group) for group in groups if not touched.isdisjoint(group)]
    else:
        return None
    operand = shapes.any_shape(operand)
    if not touched:
        return shapes.add("ASSIGN", (operand,), {})
    for axes in rounds:
        groups = grouped(_kinds(current_shape, axes, step.joins))
        next_shape = [result[axis] if axis in axes else size for axis, size in enumerate(current_shape)]
        place = {axis: where for where, group in enumerate(groups) for axis in group if axis in axes}
        attributes = step.attributes(operation.attributes, place, merged(next_shape, groups))
        source = shapes.shaped(operand, merged(current_shape, groups))
        (operand,) = shapes.add(operation.type, (source,), attributes)
        current_shape = next_shape
    return (operand,)


def _kinds(dimensions: Sequence[int], touched: Any, joins: bool) -> list[Any]:
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


LARGEST_RANK = 4
"""Default limit of `reduce_rank`: the rank of an image, and NNAPI's limit."""


def reduce_rank(model: Model, *, largest: int = LARGEST_RANK) -> Model:
    """Rewrite operations on operands of more than `largest` dimensions as operations on fewer.

    1. In operations of `RULES`, adjacent axes that are treated equally are merged, and axes of size 1 dropped.
    2. Otherwise, TRANSPOSE, EXPAND, TILE, SLICE, PAD, REDUCE_SUM, _MAX, _MIN, _PROD and, for floats, _MEAN become
       several operations.
    3. RESHAPEs are added between operations with different dimensions. Run `simplify` afterwards.
    4. Unchanged: other operations; broadcasting with more than `largest` alternating groups of axes; NHWC or quantized
       operands.

    Raises:
        InvalidOptionError: `largest` is less than 3.
    """
    if largest < 3:
        raise InvalidOptionError(f"argument largest of reduce_rank, the maximum rank, is {largest}, expected 3 or more")
    if all(operand.type.rank <= largest for operand in model.operands):
        return model
    return Ranks(ModelEditor(model), largest).run()


class Ranks:
    """One sweep of `reduce_rank`."""

    def __init__(self, editor: ModelEditor, largest: int) -> None:
        self.editor = editor
        self.largest = largest
        self._low: dict[int, int] = {}
        """High-rank operand -> low-rank operand."""
        self._there: set[int] = set()
        """Operands in `_low` that are also available with their original rank."""
        self._shapers: dict[int, int] = {}
        """Output of a RESHAPE to high rank -> that RESHAPE."""
        self._shaped: dict[tuple[int, object], int] = {}
        self._origins: tuple[int, ...] = ()

    def run(self) -> Model:
        for index in self.editor.sweep():
            operation = self.editor.operation(index)
            touched = [operand for operand in (*operation.inputs, *operation.outputs) if operand != ABSENT]
            if any(map(self._is_high, touched)):
                shapers = [self._shapers[operand] for operand in operation.inputs if operand in self._shapers]
                self._origins = (index, *shapers)
                self._visit(index, operation, touched)
        for output in dict.fromkeys(self.editor.model.outputs):
            self._plain(output)
        unread = [
            index
            for operand, index in self._shapers.items()
            if not self.editor.consumers(operand) and not self.editor.is_output(operand)
        ]
        if unread:
            self.editor.remove(unread)
        return self.editor.finish()

    def dimensions(self, operand: int) -> Axes:
        return self.editor.type_of(operand).dimensions

    def is_floating(self, operand: int) -> bool:
        return self.editor.type_of(operand).dtype.is_floating

    def any_shape(self, operand: int) -> int:
        """Return an operand with the same elements and at most `largest` dimensions."""
        if not self._is_high(operand):
            return operand
        return self._low[operand] if operand in self._low else self.shaped(operand, self._usual(operand))

    def shaped(self, operand: int, shape: Axes) -> int:
        source = self._low.get(operand, operand)
        if identity_key(self.dimensions(source)) == identity_key(shape):
            return source
        key = source, identity_key(shape)
        if key not in self._shaped:
            self._shaped[key] = self._reshaped(source, shape)
        return self._shaped[key]

    def add(self, type_: str, inputs: Sequence[int], attributes: Mapping[str, AttributeValue]) -> tuple[int, ...]:
        return self.editor.add_operation(type_, inputs, attributes, origins=self._origins)

    def _is_high(self, operand: int) -> bool:
        return len(self.dimensions(operand)) > self.largest

    def _usual(self, operand: int) -> Axes:
        dimensions = self.dimensions(operand)
        trailing_rank = self.largest - 1
        return prod(dimensions[:-trailing_rank]), *dimensions[-trailing_rank:]

    def _reshaped(self, source: int, shape: Axes) -> int:
        value = self.editor.value_of(source)
        if value is not None:
            return self.editor.add_constant(f"{self.editor.operand(source).name}:reshaped", value.reshape(shape))
        return self.add("RESHAPE", (source,), {"shape": shape})[0]

    def _visit(self, index: int, operation: Operation, touched: Sequence[int]) -> None:
        types = [self.editor.type_of(operand) for operand in touched]
        is_plain = not any(type_.layout is Layout.NHWC or type_.quantization is not None for type_ in types)
        if is_plain and operation.type == "RESHAPE":
            self._reshape(index, *operation.inputs, *operation.outputs)
            return
        rule = RULES.get(operation.type) if is_plain else None
        results = None if rule is None else rule(self, operation)
        if results is None:
            for operand in operation.inputs:
                self._plain(operand)
        else:
            self._replace(index, operation.outputs, results)

    def _replace(self, index: int, outputs: Sequence[int], results: Sequence[int]) -> None:
        low = [
            result if self._is_high(output) else self.shaped(result, self.dimensions(output))
            for output, result in zip(outputs, results, strict=True)
        ]
        self.editor.remove((index,))
        for output, result in zip(outputs, low, strict=True):
            if self._is_high(output):
                self._low[output] = result
            else:
                self.editor.substitute(output, result)

    def _reshape(self, index: int, source: int, output: int) -> None:
        if not self._is_high(source):
            self._low[output] = source
            self._there.add(output)
            self._shapers[output] = index
        elif source in self._low or self._is_high(output):
            shape = self._usual(output) if self._is_high(output) else self.dimensions(output)
            self._replace(index, (output,), self.add("RESHAPE", (self._low.get(source, source),), {"shape": shape}))

    def _plain(self, operand: int) -> None:
        """Restore the operand's original dimensions by a RESHAPE, unless it has them."""
        if operand not in self._low or operand in self._there:
            return
        low, shape = self._low[operand], self.dimensions(operand)
        producer = self.editor.producer(low)
        origins = self._origins if producer is None else (producer,)
        (result,) = self.editor.add_operation("RESHAPE", (low,), {"shape": shape}, origins=origins)
        self.editor.substitute(operand, result)
        self._low[result] = low
        self._there.update((operand, result))
