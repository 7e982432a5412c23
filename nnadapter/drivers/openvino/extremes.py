"""The largest and the least of numbers in the engine's model: infinite where all of them are.

The engine begins with the largest finite number, and ends with it where nothing is beyond. It is asked for the extreme
of halves, which finite numbers do not bring there, so that what it began with is told from what it was given. Where the
extreme is bounded by a number from the other side at once, it stays. Seen with OpenVINO 2026.4.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from nnadapter.drivers.openvino.engine import module

_EXTREMES = {"ReduceMax": ("reduce_max", -1, "Maximum"), "ReduceMin": ("reduce_min", 1, "Minimum")}
"""The engine's operators, what makes them, on which side what they begin with lies, and what bounds them there."""
_DTYPES = {"f16": np.float16, "f32": np.float32}


def reach_infinities(model: Any) -> None:
    """Give infinity where an extreme of reals is what the engine began with."""
    for operator in model.get_ordered_ops():
        dtype = _DTYPES.get(operator.get_output_element_type(0).get_type_name()) if operator.get_output_size() else None
        if operator.get_type_name() in _EXTREMES and dtype is not None and not _is_bounded(operator):
            _reach(operator, np.dtype(dtype))


def _is_bounded(operator: Any) -> bool:
    *_, bound = _EXTREMES[operator.get_type_name()]
    readers = [reader.get_node() for reader in operator.output(0).get_target_inputs()]
    return all(reader.get_type_name() == bound and any(map(_is_finite, reader.input_values())) for reader in readers)


def _is_finite(source: Any) -> bool:
    node = source.get_node()
    return node.get_type_name() == "Constant" and bool(np.isfinite(node.data).all())


def _reach(operator: Any, dtype: np.dtype[Any]) -> None:
    operators = module().opset13
    name, side, _ = _EXTREMES[operator.get_type_name()]
    half, two, beyond, infinite = (
        operators.constant(np.array(number, dtype))
        for number in (0.5, 2, side * 0.75 * float(np.finfo(dtype).max), side * np.inf)
    )
    source, axes = operator.input_values()
    halves = operators.multiply(source, half)
    extreme = getattr(operators, name)(halves, axes, operator.get_keep_dims())
    is_beyond = operators.less(extreme, beyond) if side < 0 else operators.less(beyond, extreme)
    replacement = operators.select(is_beyond, infinite, operators.multiply(extreme, two))
    replacement.set_friendly_name(operator.get_friendly_name())
    for reader in operator.output(0).get_target_inputs():
        reader.replace_source_output(replacement.output(0))
