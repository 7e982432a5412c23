"""Transposes of the engine's model that leave the shape as it is, though they move more than the last two dimensions.

Attention is where that happens, with as many heads as tokens. The engine takes the layout in front for the one behind,
and whatever stands between the Transpose and the products of matrices (scales, caches) is no matter. A step in front of
it and one behind keep the two apart; either alone does not. Seen with OpenVINO 2026.4, with known sizes.
"""

from __future__ import annotations

from typing import Any

from nnadapter.drivers.openvino.parting import part, parted

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
