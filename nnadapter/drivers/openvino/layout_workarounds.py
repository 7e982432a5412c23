"""Workarounds for transposes, permutations, reductions and attention that OpenVINO computes wrongly.

Transposes of the engine's model that leave the shape as it is, though they move more than the last two dimensions.

Attention is where that happens, with as many heads as tokens. The engine takes the layout in front for the one behind,
and whatever stands between the Transpose and the products of matrices (scales, caches) is no matter. A step in front of
it and one behind keep the two apart; either alone does not. Seen with OpenVINO 2026.4, with known sizes.

Attention in the engine's model over keys whose number is open.

The engine makes one step of a product, the Softmax of it and the product of that with values. Where there was one key
at the first run of a program, as there is for a decoder whose cache is empty, that step is wrong at 16 keys and more,
in every run from then on. It is right where something of two parts stands in front of the Softmax, as a mask that is
added does; where nothing does, a step is put there. Seen with OpenVINO 2026.4.

Transposes of the engine's model that undo each other around what is elementwise.

The engine moves one of them to the other, behind a convolution whose channels lie last in memory, and leaves both out
there; what lies in memory comes out in the order in which it lies. Seen with OpenVINO 2026.4 where an order is its own
inverse and moves the channels, with known sizes. They are left out before it sees them.

Operators of the engine's model that change the order of channels, kept apart from the filters behind them.

The engine moves such an order into the filters of the convolutions behind it, also through elementwise operators and
Transpose. It takes the order itself where the inverse is meant, and a part of a Split, or indices of several
dimensions, for single channels. What is its own inverse comes out right, and stays as it is.

Reductions in the engine's model over the first or last of three dimensions, with a constant per channel after them.

The engine computes a reduction and the elementwise operators after it at once. There it takes the constants of the
first batch for those of all batches and reads beyond their end, or takes the first one for all channels. In four
dimensions it is right. Seen with OpenVINO 2026.4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from nnadapter.drivers.openvino.engine import module
from nnadapter.drivers.openvino.guards import part, parted
from nnadapter.ir.operand import Array

_ORDER = 1


def separate_shape_preserving(model: Any) -> None:
    """Put a step in front of each such Transpose of reals, and one behind it."""
    for operator in model.get_ordered_ops():
        is_real = operator.get_type_name() == "Transpose" and operator.get_output_element_type(0).is_real()
        if is_real and _keeps_shape(operator):
            part(operator.input(0))
            _part_behind(operator.output(0))


def _keeps_shape(transpose: Any) -> bool:
    source, shape = transpose.input_value(_ORDER).get_node(), transpose.get_input_partial_shape(0)
    if source.get_type_name() != "Constant" or shape.is_dynamic:
        return False
    sizes, order = tuple(shape.to_shape()), source.data.reshape(-1).tolist() or list(range(len(shape)))[::-1]
    return preserves_shape(sizes, order)


def preserves_shape(sizes: tuple[int, ...], order: list[int]) -> bool:
    """Whether an order moves more than the last two dimensions, and leaves the sizes as they are."""
    is_moved = any(sizes[axis] > 1 for at, axis in enumerate(order[:-2]) if at != axis)
    return is_moved and tuple(sizes[axis] for axis in order) == sizes


def _part_behind(output: Any) -> None:
    readers, names = output.get_target_inputs(), output.get_names()
    step = parted(output)
    for reader in readers:
        reader.replace_source_output(step)
    output.set_names(set())
    step.set_names(names)


_REALS = frozenset(("f16", "f32"))
_NORMALIZING = frozenset(("Exp", "Softmax"))
"""The engine makes a Softmax of Exp that is divided by its sum."""


def part_scores(model: Any) -> None:
    """Put a step in front of each Softmax, or Exp, of open length, of a product or of what is computed of one alone."""
    for operator in model.get_ordered_ops():
        if operator.get_type_name() in _NORMALIZING and _grows(operator.get_output_partial_shape(0)):
            is_real = operator.get_output_element_type(0).get_type_name() in _REALS
            if is_real and _is_of_product(operator.input_value(0).get_node()):
                part(operator.input(0))


def _grows(shape: Any) -> bool:
    """Whether the last dimension is open, which may be one at first and more later."""
    return shape.rank.is_dynamic or (len(shape) > 0 and bool(shape[len(shape) - 1].is_dynamic))


def _is_of_product(node: Any) -> bool:
    """Whether a value is a product of matrices, or computed of one and of constants."""
    while node.get_type_name() != "MatMul":
        computed = [
            source.get_node() for source in node.input_values() if source.get_node().get_type_name() != "Constant"
        ]
        if len(computed) != 1:
            return False
        (node,) = computed
    return True


_ELEMENTWISE = frozenset((
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceiling", "Clamp", "Convert", "Cos", "Cosh", "Elu",
    "Erf", "Exp", "Floor", "Gelu", "HSigmoid", "HSwish", "HardSigmoid", "Log", "Mish", "Negative", "Relu", "Round",
    "Selu", "Sigmoid", "Sign", "Sin", "Sinh", "SoftPlus", "SoftSign", "Sqrt", "Swish", "Tan", "Tanh",
    "Add", "Divide", "FakeQuantize", "Maximum", "Minimum", "Multiply", "PRelu", "Power", "Subtract",
))  # fmt: skip


def leave_out_opposite_orders(model: Any) -> None:
    """Leave out each Transpose that undoes another one before elementwise operators of one input, with the other."""
    transposes = [operator for operator in model.get_ordered_ops() if operator.get_type_name() == "Transpose"]
    if any([_is_left_out(transpose) for transpose in transposes]):  # noqa: C419  all of them
        model.validate_nodes_and_infer_types()


def _is_left_out(last: Any) -> bool:
    """Leave out a Transpose that undoes another one, with that one, and say whether it does."""
    value, port = last.input_value(0), None
    while (input_port := _elementwise_input(value)) is not None:
        port, value = input_port, input_port.get_source_output()
    first = value.get_node()
    if port is None or first.get_type_name() != "Transpose":
        return False
    order, back = _order(first), _order(last)
    if order is None or back is None or not np.array_equal(order[back], np.arange(len(back))):
        return False
    last_input, last_output = last.input_value(0), last.output(0)
    port.replace_source_output(first.input_value(0))
    names = last_output.get_names()
    for reader in last_output.get_target_inputs():
        reader.replace_source_output(last_input)
    last_input.set_names(names)
    return True


def _elementwise_input(value: Any) -> Any:
    """The port from which an elementwise operator makes a value that nobody else reads; None of any other value."""
    node = value.get_node()
    if node.get_type_name() not in _ELEMENTWISE or len(value.get_target_inputs()) != 1:
        return None
    rank = value.get_partial_shape().rank
    computed = [port for port in node.inputs() if not _is_number(port.get_source_output())]
    is_alone = len(computed) == 1 and computed[0].get_partial_shape().rank == rank
    return computed[0] if is_alone else None


def _is_number(value: Any) -> bool:
    """Whether a value is a constant of one element."""
    node, shape = value.get_node(), value.get_partial_shape()
    if node.get_type_name() == "Convert":
        node = node.input_value(0).get_node()
    return node.get_type_name() == "Constant" and shape.is_static and int(np.prod(shape.to_shape())) == 1


def _order(transpose: Any) -> Array | None:
    source = transpose.input_value(_ORDER).get_node()
    order: Array | None = source.data.reshape(-1) if source.get_type_name() == "Constant" else None
    return order if order is not None and len(order) else None


_INDICES, _AXIS = 1, 2
_PARTS = 3
"""A Split and a Concat of this many parts are looked at by the engine; it knows red, green and blue."""


def keep_permutations(model: Any) -> None:
    """Rewrite the operators of an engine's model that it would move into filters wrongly."""
    for operator in model.get_ordered_ops():
        rewrite = _REWRITES.get(operator.get_type_name())
        if rewrite is not None:
            rewrite(operator)


def _keep_gather(gather: Any) -> None:
    """Count the axis from the end: the engine looks at axes that are counted from the start alone."""
    axis, shape = _axis_of(gather, _AXIS), gather.get_input_partial_shape(0)
    indices = gather.get_input_partial_shape(_INDICES)
    if axis is None or axis < 0 or shape.rank.is_dynamic or indices.is_dynamic:
        return
    count = int(np.prod(indices.to_shape()))
    if count > 1 and shape[axis].is_static and count == shape[axis].get_length() and not _gathers_back(gather):
        counted = module().opset13.constant(np.int64(axis - shape.rank.get_length()))
        gather.input(_AXIS).replace_source_output(counted.output(0))


def _gathers_back(gather: Any) -> bool:
    source = gather.input_value(_INDICES).get_node()
    return source.get_type_name() == "Constant" and source.data.ndim == 1 and _is_own_inverse(source.data)


def _keep_parts(concat: Any) -> None:
    """Name the sizes of the parts: the engine looks at parts whose sizes are not named alone."""
    sources = concat.input_values()
    splits = {source.get_node().get_friendly_name(): source.get_node() for source in sources}
    if len(sources) != _PARTS or len(splits) > 1:
        return
    (split,) = splits.values()
    if split.get_type_name() != "Split" or _joins_back(split, concat, [source.get_index() for source in sources]):
        return
    named = _with_sizes(split)
    for output, named_output in zip(split.outputs(), named.outputs(), strict=True):
        for reader in output.get_target_inputs():
            reader.replace_source_output(named_output)


def _joins_back(split: Any, concat: Any, order: Sequence[int]) -> bool:
    """Whether a Concat of single channels can be undone by doing it again."""
    axis, shape = _axis_of(split, 1), split.get_input_partial_shape(0)
    if axis is None or shape.rank.is_dynamic or shape[axis].is_dynamic:
        return False
    rank, joined = shape.rank.get_length(), concat.get_attributes()["axis"]
    is_single = shape[axis].get_length() == _PARTS == split.get_output_size()
    return is_single and axis % rank == joined % rank and _is_own_inverse(np.array(order))


def _with_sizes(split: Any) -> Any:
    """The Split with sizes that are computed; the engine folds them where they are known."""
    operators, (values, axis) = module().opset13, split.input_values()
    count = split.get_output_size()
    extent = operators.gather(operators.shape_of(values), axis, operators.constant(np.int64(0)))
    size = operators.divide(extent, operators.constant(np.int64(count)))
    return operators.variadic_split(values, axis, operators.broadcast(size, operators.constant(np.array([count]))))


def _axis_of(operator: Any, position: int) -> int | None:
    source = operator.input_value(position).get_node()
    return int(source.data.item()) if source.get_type_name() == "Constant" else None


def _is_own_inverse(order: Any) -> bool:
    places = np.arange(len(order))
    positive = np.where(order < 0, order + len(order), order)
    return bool((positive < len(order)).all() and (positive[positive] == places).all())


_REWRITES = {"Gather": _keep_gather, "Concat": _keep_parts}


_MAKERS = {
    "ReduceL1": "reduce_l1",
    "ReduceL2": "reduce_l2",
    "ReduceMax": "reduce_max",
    "ReduceMean": "reduce_mean",
    "ReduceMin": "reduce_min",
    "ReduceProd": "reduce_prod",
    "ReduceSum": "reduce_sum",
}
"""The engine's reductions of numbers, and what makes them."""
_RANK = 3
_LAST = _RANK - 1


def reduce_in_four_dimensions(model: Any) -> None:
    """Give the input of such a reduction a fourth dimension of size 1, which is reduced as well.

    Others stay as they are: the engine recognizes norms, for instance, by how they are written.
    """
    for operator in model.get_ordered_ops():
        if operator.get_type_name() in _MAKERS:
            axis = _reduced_axis(operator)
            if axis in (0, _LAST) and _meets_constants(operator):
                _give_dimension(operator, axis)


def _give_dimension(reduction: Any, axis: int) -> None:
    operators = module().opset13
    make, reduced_axis = getattr(operators, _MAKERS[reduction.get_type_name()]), operators.constant(np.array([axis]))
    widened = operators.unsqueeze(reduction.input_value(0), operators.constant(np.array([_RANK])))
    # With the last one kept the engine does without the fourth dimension, where all sizes are known.
    reduced = make(widened, operators.constant(np.array([axis, _RANK])), False)
    reduced.set_friendly_name(reduction.get_friendly_name())
    replacement = operators.unsqueeze(reduced, reduced_axis) if reduction.get_keep_dims() else reduced
    for reader in reduction.output(0).get_target_inputs():
        reader.replace_source_output(replacement.output(0))


def _reduced_axis(reduction: Any) -> int | None:
    """Return the only axis that is reduced, of three; None if there are others."""
    rank, source = reduction.get_input_partial_shape(0).rank, reduction.input_value(1).get_node()
    if rank.is_dynamic or rank.get_length() != _RANK:
        return None
    if source.get_type_name() == "Range":  # of global pooling: from here on
        first = source.input_value(0).get_node()
        return _LAST if first.get_type_name() == "Constant" and int(first.data.item()) == _LAST else None
    axes = {int(axis) % _RANK for axis in source.data.reshape(-1)} if source.get_type_name() == "Constant" else set()
    return axes.pop() if len(axes) == 1 else None


def _meets_constants(operator: Any) -> bool:
    """Check whether a chain of single readers has a constant of several elements."""
    readers = operator.output(0).get_target_inputs()
    while len(readers) == 1:
        reader = next(iter(readers))
        node, position = reader.get_node(), reader.get_index()
        sibling_sources = [source for index, source in enumerate(node.input_values()) if index != position]
        if node.get_output_size() != 1 or not all(_is_constant(source.get_node()) for source in sibling_sources):
            return False
        if any(math.prod(source.get_shape()) > 1 for source in sibling_sources if source.get_partial_shape().is_static):
            return True
        readers = node.output(0).get_target_inputs()
    return False


def _is_constant(node: Any) -> bool:
    sources = node.input_values()
    is_made = bool(sources) and all(_is_constant(source.get_node()) for source in sources)
    return node.get_type_name() == "Constant" or is_made
