"""Workarounds for arithmetic; `workarounds.py` describes each defect."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from nnadapter.drivers.openvino.engine import module
from nnadapter.drivers.openvino.graph import (
    Operators,
    data_of,
    element_type,
    is_finite,
    kind_of,
    part,
    readers_of,
    replace_operator,
)
from nnadapter.drivers.openvino.operators import name_set


def compare_booleans(convert: Any) -> None:
    """Replace a conversion to boolean by a comparison with zero."""
    if convert.get_output_element_type(0) == module().Type.boolean:
        source = convert.input_value(0)
        zero = module().op.Constant(source.get_element_type(), module().Shape([]), [0])
        replace_operator(convert, module().opset13.not_equal(source, zero))


def compare_the_other_way(operator: Any) -> None:
    """Replace Greater of floating-point numbers by Less with exchanged inputs."""
    if operator.get_input_element_type(0).is_real():
        left, right = operator.input_values()
        name = {"Greater": "less", "GreaterEqual": "less_equal"}[operator.get_type_name()]
        replace_operator(operator, getattr(module().opset13, name)(right, left))


def divide_exactly(division: Any) -> None:
    """Make the engine divide, instead of multiplying by the reciprocal of the divisor."""
    division.get_rt_info()["nonconvertable_divide_0"] = True


_EXTREMES = {"ReduceMax": ("reduce_max", -1, "Maximum"), "ReduceMin": ("reduce_min", 1, "Minimum")}
"""Reduction -> (factory, sign of the engine's initial value, operator that bounds the result)."""
_DTYPES: Mapping[str, Any] = {"f16": np.float16, "f32": np.float32}


def reach_infinities(operator: Any) -> None:
    """Correct the maximum and minimum of infinities; the engine returns finite numbers.

    Elements are halved before the reduction. Then a result beyond all halved finite numbers means infinity. A reduction
    is unchanged if each of its readers limits the result to a finite bound.
    """
    name, side, bound = _EXTREMES[operator.get_type_name()]
    dtype = _DTYPES.get(element_type(operator.output(0)))
    is_bounded = all(
        reader.get_type_name() == bound and any(map(is_finite, reader.input_values()))
        for reader in readers_of(operator.output(0))
    )
    if dtype is None or is_bounded:
        return
    operators = module().opset13
    half, two, beyond, infinite = (
        operators.constant(np.array(number, dtype))
        for number in (0.5, 2, side * 0.75 * float(np.finfo(dtype).max), side * np.inf)
    )
    source, axes = operator.input_values()
    extreme = getattr(operators, name)(operators.multiply(source, half), axes, operator.get_keep_dims())
    is_beyond = operators.less(extreme, beyond) if side < 0 else operators.less(beyond, extreme)
    replace_operator(operator, operators.select(is_beyond, infinite, operators.multiply(extreme, two)))


_THRESHOLD = 3
_LEAST = np.finfo(np.float32).tiny
"""Smallest threshold that the engine does not flush to zero."""


def exclude_threshold(suppression: Any) -> None:
    """Raise a constant overlap threshold to the next float, so that only larger overlaps are suppressed."""
    port = suppression.input(_THRESHOLD)
    threshold = data_of(port.get_source_output())
    if threshold is not None:
        raised = np.maximum(np.nextafter(np.float32(threshold), np.float32(np.inf)), _LEAST)
        port.replace_source_output(module().opset13.constant(raised, dtype=np.float32).output(0))


_LARGE = 1024.0
"""Smallest constant that must stay separate. Combining smaller constants changes small terms by at most 2^-14."""
_REAL_DTYPES: Mapping[str, Any] = {**_DTYPES, "f64": np.float64}
_ADDING = name_set("Add Subtract")
_COMBINED = _ADDING | name_set("Multiply Divide")
_MOVING = name_set("Broadcast Convert Identity Negative Reshape Slice Squeeze StridedSlice Transpose Unsqueeze")


class _Size(NamedTuple):
    """Magnitudes in a chain of operations with constants: the largest term, and the product of the factors."""

    term: float = 0.0
    factor: float = 1.0


_NONE = _Size()


def keep_small_terms(operators: Operators) -> None:
    """Prevent the engine from combining constants of consecutive sums or products if the first constant is large."""
    constant_names, sizes = set[str](), dict[str, _Size]()
    for kind, operator in operators:
        read = [source.get_node() for source in operator.input_values()]
        computed = [place for place, node in enumerate(read) if node.get_name() not in constant_names]
        if kind == "Constant" or (read and not computed):
            constant_names.add(operator.get_name())
        elif kind in _MOVING and computed[0] == 0:
            sizes[operator.get_name()] = sizes.get(read[0].get_name(), _NONE)
        elif kind in _COMBINED and len(computed) == 1 and (dtype := _REAL_DTYPES.get(element_type(operator.output(0)))):
            (place,) = computed
            size, constant = sizes.get(read[place].get_name(), _NONE), operator.input_value(1 - place)
            if size != _NONE and _are_too_large(kind, size, constant, dtype):
                size = _NONE
                part(operator.input(place))
            if not (kind == "Divide" and place):  # constants do not combine with a computed divisor
                sizes[operator.get_name()] = _combined(kind, size, constant)


def _are_too_large(kind: str, size: _Size, constant: Any, dtype: Any) -> bool:
    if size.term >= _LARGE:
        return True
    return kind not in _ADDING and max(_combined(kind, size, constant)) > float(np.finfo(dtype).max)


def _combined(kind: str, size: _Size, constant: Any) -> _Size:
    largest = _largest(constant, is_divisor=kind == "Divide")
    if kind in _ADDING:
        return _Size(max(size.term, largest), size.factor)
    return _Size(size.term * largest, size.factor * largest)


def _largest(value: Any, *, is_divisor: bool) -> float:
    while kind_of(value) in _MOVING:
        value = value.get_node().input_value(0)
    numbers = data_of(value)
    if numbers is None or not numbers.size:
        return 0.0
    if is_divisor:
        with np.errstate(divide="ignore"):
            numbers = 1 / numbers.astype(np.float64)
    largest = max(float(numbers.max()), -float(numbers.min()))
    return largest if math.isfinite(largest) else float(np.abs(numbers[np.isfinite(numbers)]).max(initial=0.0))
