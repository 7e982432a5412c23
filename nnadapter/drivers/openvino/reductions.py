"""Reductions in the engine's model over the first or last of three dimensions, with a constant per channel after them.

The engine computes a reduction and the elementwise operators after it at once. There it takes the constants of the
first batch for those of all batches and reads beyond their end, or takes the first one for all channels. In four
dimensions it is right. Seen with OpenVINO 2026.4.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from nnadapter.drivers.openvino.engine import module

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
