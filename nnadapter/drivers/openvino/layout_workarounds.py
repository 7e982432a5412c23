"""Workarounds for transposes, permutations, reductions and attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from nnadapter.drivers.openvino.engine import module
from nnadapter.drivers.openvino.graph import (
    data_of,
    element_type,
    insert,
    is_constant,
    kind_of,
    part,
    parted,
    replace,
    replace_operator,
)
from nnadapter.drivers.openvino.operators import name_set
from nnadapter.ir.operand import Array

_ORDER = 1


def separate_shape_preserving(transpose: Any) -> None:
    """Prevent the engine from dropping a Transpose of reals that keeps the shape."""
    if transpose.get_output_element_type(0).is_real() and _keeps_shape(transpose):
        part(transpose.input(0))
        insert(transpose.output(0), parted)


def _keeps_shape(transpose: Any) -> bool:
    order, shape = data_of(transpose.input_value(_ORDER)), transpose.get_input_partial_shape(0)
    if order is None or shape.is_dynamic:
        return False
    return preserves_shape(tuple(shape.to_shape()), order.reshape(-1).tolist() or list(range(len(shape)))[::-1])


def preserves_shape(sizes: tuple[int, ...], order: list[int]) -> bool:
    """Check whether a permutation keeps the shape and moves a dimension other than the last two."""
    is_moved = any(sizes[axis] > 1 for at, axis in enumerate(order[:-2]) if at != axis)
    return is_moved and tuple(sizes[axis] for axis in order) == sizes


_REALS = name_set("f16 f32")


def part_scores(softmax: Any) -> None:
    """Prevent the fusion of a matrix product with a Softmax or Exp along a dynamic dimension."""
    is_real = element_type(softmax.output(0)) in _REALS
    if is_real and _grows(softmax.get_output_partial_shape(0)) and _is_of_product(softmax.input_value(0).get_node()):
        part(softmax.input(0))


def _grows(shape: Any) -> bool:
    return shape.rank.is_dynamic or (len(shape) > 0 and bool(shape[len(shape) - 1].is_dynamic))


def _is_of_product(node: Any) -> bool:
    while node.get_type_name() != "MatMul":
        computed = [source.get_node() for source in node.input_values() if not is_constant(source)]
        if len(computed) != 1:
            return False
        (node,) = computed
    return True


_ELEMENTWISE = name_set(
    "Abs Acos Acosh Asin Asinh Atan Atanh Ceiling Clamp Convert Cos Cosh Elu Erf Exp Floor Gelu HSigmoid HSwish "
    "HardSigmoid Log Mish Negative Relu Round Selu Sigmoid Sign Sin Sinh SoftPlus SoftSign Sqrt Swish Tan Tanh "
    "Add Divide FakeQuantize Maximum Minimum Multiply PRelu Power Subtract"
)


def leave_out_opposite_order(last: Any) -> None:
    """Remove two Transposes that cancel out, with only elementwise operators between them."""
    value, port = last.input_value(0), None
    while (input_port := _elementwise_input(value)) is not None:
        port, value = input_port, input_port.get_source_output()
    first = value.get_node()
    if port is None or first.get_type_name() != "Transpose":
        return
    order, back = _order(first), _order(last)
    if order is None or back is None or not np.array_equal(order[back], np.arange(len(back))):
        return
    port.replace_source_output(first.input_value(0))
    replace(last.output(0), last.input_value(0))


def _elementwise_input(value: Any) -> Any:
    node = value.get_node()
    if node.get_type_name() not in _ELEMENTWISE or len(value.get_target_inputs()) != 1:
        return None
    rank = value.get_partial_shape().rank
    computed = [port for port in node.inputs() if not _is_number(port.get_source_output())]
    is_alone = len(computed) == 1 and computed[0].get_partial_shape().rank == rank
    return computed[0] if is_alone else None


def _is_number(value: Any) -> bool:
    shape = value.get_partial_shape()
    source = value.get_node().input_value(0) if kind_of(value) == "Convert" else value
    return is_constant(source) and shape.is_static and math.prod(shape.to_shape()) == 1


def _order(transpose: Any) -> Array | None:
    order = data_of(transpose.input_value(_ORDER))
    return order.reshape(-1) if order is not None and order.size else None


_INDICES, _AXIS = 1, 2
_PARTS = 3


def keep_gather(gather: Any) -> None:
    """Make the axis of a Gather negative, so that the engine does not match it as a permutation."""
    axis, shape = _axis_of(gather, _AXIS), gather.get_input_partial_shape(0)
    indices = gather.get_input_partial_shape(_INDICES)
    if axis is None or axis < 0 or shape.rank.is_dynamic or indices.is_dynamic:
        return
    count = math.prod(indices.to_shape())
    if count > 1 and shape[axis].is_static and count == shape[axis].get_length() and not _gathers_back(gather):
        counted = module().opset13.constant(np.int64(axis - shape.rank.get_length()))
        gather.input(_AXIS).replace_source_output(counted.output(0))


def _gathers_back(gather: Any) -> bool:
    indices = data_of(gather.input_value(_INDICES))
    return indices is not None and indices.ndim == 1 and _is_own_inverse(indices)


def keep_parts(concat: Any) -> None:
    """Replace a Split into three parts before a Concat by one with explicit sizes, which the engine does not match."""
    sources = concat.input_values()
    splits = {source.get_node().get_friendly_name(): source.get_node() for source in sources}
    if len(sources) != _PARTS or len(splits) > 1:
        return
    (split,) = splits.values()
    if split.get_type_name() != "Split" or _joins_back(split, concat, [source.get_index() for source in sources]):
        return
    named = _with_sizes(split)
    for output, named_output in zip(split.outputs(), named.outputs(), strict=True):
        replace(output, named_output)


def _joins_back(split: Any, concat: Any, order: Sequence[int]) -> bool:
    axis, shape = _axis_of(split, 1), split.get_input_partial_shape(0)
    if axis is None or shape.rank.is_dynamic or shape[axis].is_dynamic:
        return False
    rank, joined = shape.rank.get_length(), concat.get_attributes()["axis"]
    is_single = shape[axis].get_length() == _PARTS == split.get_output_size()
    return is_single and axis % rank == joined % rank and _is_own_inverse(np.array(order))


def _with_sizes(split: Any) -> Any:
    operators, (values, axis) = module().opset13, split.input_values()
    count = split.get_output_size()
    extent = operators.gather(operators.shape_of(values), axis, operators.constant(np.int64(0)))
    size = operators.divide(extent, operators.constant(np.int64(count)))
    return operators.variadic_split(values, axis, operators.broadcast(size, operators.constant(np.array([count]))))


def _axis_of(operator: Any, position: int) -> int | None:
    axis = data_of(operator.input_value(position))
    return None if axis is None else int(axis.item())


def _is_own_inverse(order: Any) -> bool:
    places = np.arange(len(order))
    positive = np.where(order < 0, order + len(order), order)
    return bool((positive < len(order)).all() and (positive[positive] == places).all())


_MAKERS = {f"Reduce{name}": f"reduce_{name.lower()}" for name in ("L1", "L2", "Max", "Mean", "Min", "Prod", "Sum")}
_RANK = 3
_LAST = _RANK - 1


def reduce_in_four_dimensions(reduction: Any) -> None:
    """Append a dimension of size 1 to the input of a reduction, and reduce over it as well.

    The reduction is unchanged unless a later operator reads a constant.
    """
    axis = _reduced_axis(reduction)
    if axis not in (0, _LAST) or not _meets_constants(reduction):
        return
    operators = module().opset13
    make, reduced_axis = getattr(operators, _MAKERS[reduction.get_type_name()]), operators.constant(np.array([axis]))
    widened = operators.unsqueeze(reduction.input_value(0), operators.constant(np.array([_RANK])))
    # if it kept the last dimension, the engine would drop the fourth
    reduced = make(widened, operators.constant(np.array([axis, _RANK])), False)
    replace_operator(reduction, operators.unsqueeze(reduced, reduced_axis) if reduction.get_keep_dims() else reduced)


def _reduced_axis(reduction: Any) -> int | None:
    rank, source = reduction.get_input_partial_shape(0).rank, reduction.input_value(1)
    if rank.is_dynamic or rank.get_length() != _RANK:
        return None
    if kind_of(source) == "Range":  # global pooling: from this axis on
        return _LAST if _axis_of(source.get_node(), 0) == _LAST else None
    constant = data_of(source)
    axes = set() if constant is None else {int(axis) % _RANK for axis in constant.reshape(-1)}
    return axes.pop() if len(axes) == 1 else None


def _meets_constants(operator: Any) -> bool:
    readers = operator.output(0).get_target_inputs()
    while len(readers) == 1:
        reader = next(iter(readers))
        node, position = reader.get_node(), reader.get_index()
        sibling_sources = [source for index, source in enumerate(node.input_values()) if index != position]
        if node.get_output_size() != 1 or not all(map(_is_known, sibling_sources)):
            return False
        if any(math.prod(source.get_shape()) > 1 for source in sibling_sources if source.get_partial_shape().is_static):
            return True
        readers = node.output(0).get_target_inputs()
    return False


def _is_known(value: Any) -> bool:
    sources = value.get_node().input_values()
    return is_constant(value) or (bool(sources) and all(map(_is_known, sources)))


def keep_input_apart(result: Any) -> None:
    """Insert an identity Transpose if an output is also an input."""
    source = result.input_value(0)
    if kind_of(source) == "Parameter":
        order = np.arange(source.get_partial_shape().rank.get_length())
        result.input(0).replace_source_output(module().opset13.transpose(source, order).output(0))
