"""Workarounds for graph forms that OpenVINO computes wrongly: arithmetic rewrites, and the table of all.

Conversions to boolean in the engine's model, as comparisons.

Of a part of a Split, the engine converts what the first part holds; and not-a-number, which ONNX's Cast makes true as
ONNX Runtime has it, becomes false. A comparison with zero has neither fault.

Comparisons of reals in the engine's model: what is greater is asked for as what is less, the other way round.

The engine calls NaN greater than everything. Less it computes as ONNX does. Seen with OpenVINO 2026.4.

Divisions in the engine's model of a model that rounds.

The engine multiplies by a reciprocal where a model divides, and is off by the last bit in a tenth of all cases. Halves
are rounded to the other neighbor then: DynamicQuantizeLinear, written out, would be off by a step. Operators that bear
the engine's own mark for it are divided as IEEE 754 says. Seen with OpenVINO 2026.4.

The largest and the least of numbers in the engine's model: infinite where all of them are.

The engine begins with the largest finite number, and ends with it where nothing is beyond. It is asked for the extreme
of halves, which finite numbers do not bring there, so that what it began with is told from what it was given. Where the
extreme is bounded by a number from the other side at once, it stays. Seen with OpenVINO 2026.4.

NonMaxSuppression in the engine's model: which boxes overlap too much.

ONNX suppresses a box that overlaps another one by more than the threshold, the engine one that overlaps it by the
threshold as well. The next larger float is the same question.

Operators of the engine's model that are computed in real numbers, among others that are computed in integers.

The engine computes what reads dequantized values in integers where it can, and is wrong in some of these. They get a
step in front that it does not look through: the maximum of a value and the smallest number, which is the value, or the
minimum of it and the largest one. A maximum and a minimum in a row would be one operator to the engine.

Sums with constants in the engine's model, behind other sums with large ones.

The engine adds up constants: of (x + a) + b it makes x + (a + b), of (x + a) * b it makes x * b + a * b. Where x takes
the large part of the sum away again, as a mask does, nothing is left of the small one: (1 - mask) * -3.4e38 + bias is 0
where it should be the bias, in every T5 whose length is known. So is what rounds by adding 1.5 * 2^23 and subtracting
it. And products of large constants are infinite. A step of its own between the two keeps them apart.
Seen with OpenVINO 2026.4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from nnadapter.drivers.openvino.engine import module
from nnadapter.drivers.openvino.forms import QUANTIZING
from nnadapter.drivers.openvino.guards import GUARDS, part
from nnadapter.drivers.openvino.layout_workarounds import (
    keep_permutations,
    leave_out_opposite_orders,
    part_scores,
    reduce_in_four_dimensions,
    separate_shape_preserving,
)
from nnadapter.drivers.openvino.quantized_workarounds import (
    join_steps,
    keep_bounds,
    keep_signs,
    keep_sums,
    part_from_orders,
    part_products,
    part_rectified,
)


def compare_booleans(model: Any) -> None:
    """Put a comparison with zero in the place of each conversion to boolean of an engine's model."""
    boolean = module().Type.boolean
    for operator in model.get_ordered_ops():
        if operator.get_type_name() == "Convert" and operator.get_output_element_type(0) == boolean:
            _compare(operator)


def _compare(convert: Any) -> None:
    source, convert_output = convert.input_value(0), convert.output(0)
    zero = module().op.Constant(source.get_element_type(), module().Shape([]), [0])
    compared = module().opset13.not_equal(source, zero)
    compared.set_friendly_name(convert.get_friendly_name())
    compared_output, names = compared.output(0), convert_output.get_names()
    for reader in convert_output.get_target_inputs():
        reader.replace_source_output(compared_output)
    compared_output.set_names(names)


_SWAPPED_COMPARISONS = {"Greater": "less", "GreaterEqual": "less_equal"}
"""The engine's operators, and what makes those that take their place."""


def compare_the_other_way(model: Any) -> None:
    """Let Less take the place of every Greater of reals, its inputs exchanged."""
    operators = module().opset13
    for operator in model.get_ordered_ops():
        make = _SWAPPED_COMPARISONS.get(operator.get_type_name())
        if make is None or not operator.get_input_element_type(0).is_real():
            continue
        left, right = operator.input_values()
        comparison = getattr(operators, make)(right, left)
        comparison.set_friendly_name(operator.get_friendly_name())
        for reader in operator.output(0).get_target_inputs():
            reader.replace_source_output(comparison.output(0))


_MARK = "nonconvertable_divide_0"
"""The engine's name for what keeps a division from becoming a product; it looks whether there is one."""


def divide_exactly(model: Any) -> None:
    """Mark all divisions."""
    for operator in model.get_ordered_ops():
        if operator.get_type_name() == "Divide":
            operator.get_rt_info()[_MARK] = True


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


_THRESHOLD = 3
_LEAST = np.finfo(np.float32).tiny
"""Smaller ones are zero to the engine."""


def exclude_thresholds(model: Any) -> None:
    """Raise the thresholds of overlaps in an engine's model, where they are constants."""
    for operator in model.get_ordered_ops():
        if operator.get_type_name() != "NonMaxSuppression":
            continue
        port = operator.input(_THRESHOLD)
        threshold = port.get_source_output().get_node()
        if threshold.get_type_name() == "Constant":
            raised = np.maximum(np.nextafter(np.float32(threshold.data), np.float32(np.inf)), _LEAST)
            port.replace_source_output(module().opset13.constant(raised, dtype=np.float32).output(0))


_FLOAT32 = np.finfo(np.float32)
_SEQUENCES = 3
"""Dimensions of several sequences of vectors."""


def _pads_with_zeros(operator: Any) -> bool:
    attributes = operator.get_attributes()
    pads = (*attributes["pads_begin"], *attributes["pads_end"])
    return not attributes["exclude-pad"] and (any(pads) or attributes["auto_pad"] != "explicit")


def _has_open_channels(operator: Any) -> bool:
    return bool(operator.get_input_partial_shape(0)[1].is_dynamic)


def _has_three_dimensions(operator: Any) -> bool:
    rank = operator.get_input_partial_shape(0).rank
    return bool(rank.is_static and rank.get_length() == _SEQUENCES)


def _always(operator: Any) -> bool:
    return True


_REAL: Mapping[str, Callable[[Any], bool]] = {
    "AvgPool": _pads_with_zeros,
    "BatchNormInference": _has_open_channels,
    "Clamp": _always,
    "ConvolutionBackpropData": _always,
    "GroupConvolutionBackpropData": _always,
    "Maximum": _always,
    "Minimum": _always,
    "ReduceL1": _has_three_dimensions,
    "ReduceL2": _has_three_dimensions,
    "ReduceMax": _has_three_dimensions,
    "ReduceMean": _has_three_dimensions,
    "ReduceMin": _has_three_dimensions,
    "ReduceSum": _has_three_dimensions,
}
"""Which of the operators: the engine pads quantized values with the integer 0, cuts bounds to whole numbers, where
channels are open takes a normalization's zero for another, and behind a reduction of three dimensions reads the zero
points of the first batch for all of them, beyond their end."""


def keep_real(model: Any) -> None:
    """Put the step in front of every operator of an engine's model that has to be computed in real numbers."""
    operators = module().opset13
    for operator in model.get_ordered_ops():
        is_real = _REAL.get(operator.get_type_name())
        if is_real is None or not is_real(operator):
            continue
        for port in operator.inputs():
            source = port.get_source_output()
            is_constant = source.get_node().get_type_name() == "Constant"
            if source.get_element_type().get_type_name() == "f32" and not is_constant:
                port.replace_source_output(_same(operators, operator.get_type_name(), source).output(0))
                break


def _same(operators: Any, kind: str, source: Any) -> Any:
    """A value, by a step that neither is looked through nor becomes one with the operator behind it."""
    if kind == "Minimum":
        return operators.minimum(source, operators.constant(_FLOAT32.max))
    return operators.maximum(source, operators.constant(_FLOAT32.min))


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


_REDUCTIONS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
_REDUCING = (*(f"Reduce{name}" for name in _REDUCTIONS), "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool")
"""Ops of which the engine makes reductions."""
_WORKAROUNDS: Sequence[tuple[Collection[str], Sequence[Callable[[Any], None]]]] = (
    (QUANTIZING, (join_steps, keep_bounds, keep_real, part_products, keep_signs, part_rectified, keep_sums)),
    (("NonMaxSuppression",), (exclude_thresholds,)),
    (("Add", "Sub", "Mul", "Div"), (keep_small_terms,)),
    (("Gather", "Split"), (keep_permutations,)),
    (("Greater", "GreaterOrEqual"), (compare_the_other_way,)),
    (("Cast",), (compare_booleans,)),
    (("Round",), (divide_exactly,)),
    (("Exp", "Softmax"), (part_scores,)),
    (("Transpose",), (leave_out_opposite_orders, part_from_orders, separate_shape_preserving)),
    (("ReduceMax", "ReduceMin"), (reach_infinities,)),
    (_REDUCING, (reduce_in_four_dimensions,)),
)
"""ONNX's ops, and what is done where a model has one of them, in this order."""


NOTES = ("nnadapter", "notes")
"""Where an engine's model has notes of what was changed, a line for each."""


def apply_workarounds(model: Any, ops: Collection[str]) -> None:
    """Change an engine's model, and write notes for the report into it.

    Args:
        model: as the engine read it.
        ops: names of ONNX's ops that it was written in.
    """
    for concerned, steps in _WORKAROUNDS:
        if not set(concerned).isdisjoint(ops):
            for step in steps:
                step(model)
    operators = [(operator.get_type_name(), operator) for operator in model.get_ordered_ops()]
    notes = list(filter(None, [guard(operators) for guard in GUARDS.values()]))
    if notes:
        model.set_rt_info("\n".join(notes), list(NOTES))
