"""Operators of the engine's model that change the order of channels, kept apart from the filters behind them.

The engine moves such an order into the filters of the convolutions behind it, also through elementwise operators and
Transpose. It takes the order itself where the inverse is meant, and a part of a Split, or indices of several
dimensions, for single channels. What is its own inverse comes out right, and stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnadapter.drivers.openvino.engine import module

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
