"""Sums with constants in the engine's model, behind other sums with large ones.

The engine adds up constants: of (x + a) + b it makes x + (a + b), of (x + a) * b it makes x * b + a * b. Where x takes
the large part of the sum away again, as a mask does, nothing is left of the small one: (1 - mask) * -3.4e38 + bias is 0
where it should be the bias, in every T5 whose length is known. So is what rounds by adding 1.5 * 2^23 and subtracting
it. And products of large constants are infinite. A step of its own between the two keeps them apart.
Seen with OpenVINO 2026.4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from nnadapter.drivers.openvino.parting import part

_LARGE = 1024.0
"""A sum in float32, in which the engine computes, with less than this loses 2^-14 of a small one beside it at most."""
_REAL_DTYPES: Mapping[str, Any] = {"f16": np.float16, "f32": np.float32, "f64": np.float64}
"""The data types that are looked at, by the engine's names."""
_ADDING = ("Add", "Subtract")
_MOVING = frozenset((
    "Broadcast", "Convert", "Identity", "Negative", "Reshape", "Slice", "Squeeze", "StridedSlice", "Transpose",
    "Unsqueeze",
))  # fmt: skip
"""What the engine takes constants through, or leaves out."""


class _Size(NamedTuple):
    """How large constants are in a value: what was added to what a run computes, and what that was multiplied by."""

    term: float = 0.0
    factor: float = 1.0


_NONE = _Size()


def keep_small_terms(model: Any) -> None:
    """Put a step between sums, or products, with constants where those of the first are large."""
    constant_names, sizes = set[str](), dict[str, _Size]()
    for operator in model.get_ordered_ops():
        kind, read = operator.get_type_name(), [source.get_node() for source in operator.input_values()]
        computed = [place for place, node in enumerate(read) if node.get_name() not in constant_names]
        if kind == "Constant" or (read and not computed):
            constant_names.add(operator.get_name())
        elif kind in _MOVING and computed[0] == 0:
            sizes[operator.get_name()] = sizes.get(read[0].get_name(), _NONE)
        elif kind in _SIZES and len(computed) == 1 and (dtype := _dtype_of(operator)):
            (place,) = computed
            size, constant = sizes.get(read[place].get_name(), _NONE), operator.input_value(1 - place)
            if size != _NONE and _are_too_large(kind, size, constant, dtype):
                size = _NONE
                part(operator.input(place))
            if not (kind == "Divide" and place):  # by what a run computes, nothing is put together
                sizes[operator.get_name()] = _SIZES[kind](size, constant)


def _dtype_of(operator: Any) -> Any:
    return _REAL_DTYPES.get(operator.get_output_element_type(0).get_type_name())


def _are_too_large(kind: str, size: _Size, constant: Any, dtype: Any) -> bool:
    """Whether constants in a value are too large to be put together with another one that it is taken with."""
    if size.term >= _LARGE:
        return True
    return kind not in _ADDING and max(_SIZES[kind](size, constant)) > float(np.finfo(dtype).max)


def _added(size: _Size, constant: Any) -> _Size:
    return _Size(max(size.term, _largest(constant)), size.factor)


def _multiplied(size: _Size, constant: Any) -> _Size:
    scale = _largest(constant)
    return _Size(size.term * scale, size.factor * scale)


def _divided(size: _Size, constant: Any) -> _Size:
    scale = _largest(constant, is_divisor=True)
    return _Size(size.term * scale, size.factor * scale)


_SIZES: Mapping[str, Callable[[_Size, Any], _Size]] = {
    **dict.fromkeys(_ADDING, _added),
    "Multiply": _multiplied,
    "Divide": _divided,
}
"""What the constants in a value become where it is taken with another one."""


def _largest(value: Any, *, is_divisor: bool = False) -> float:
    """The largest number of a constant without its sign, or the largest by which one is multiplied that is divided."""
    node = value.get_node()
    while node.get_type_name() in _MOVING:
        node = node.input_value(0).get_node()
    if node.get_type_name() != "Constant" or not node.data.size:
        return 0.0
    numbers = node.data
    if is_divisor:
        with np.errstate(divide="ignore"):
            numbers = 1 / numbers.astype(np.float64)
    largest = max(float(numbers.max()), -float(numbers.min()))
    return largest if math.isfinite(largest) else float(np.abs(numbers[np.isfinite(numbers)]).max(initial=0.0))
