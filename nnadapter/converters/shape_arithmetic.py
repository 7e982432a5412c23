"""Symbolic evaluation of nodes that compute with shapes.

Preparation evaluates such nodes for one set of input shapes. Symbolic evaluation generalizes the results.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from itertools import repeat
from types import MappingProxyType
from typing import Any, cast

import numpy as np

from nnadapter.ir import symbolic_numbers as numbers
from nnadapter.ir.operand import Array
from nnadapter.ir.structure import SymbolicArray
from nnadapter.onnx.domains import plain_domain
from nnadapter.onnx.model import OnnxNode

MOST_ELEMENTS = 1024
"""Largest symbolic arrays, in elements; operations compute larger ones at run time."""
_INTEGERS = ("int64", "int32")
_SMALL_POWERS = range(1, 5)
_ZERO, _FALSE = np.array(0, object), np.array(False, object)

Inputs = Sequence[SymbolicArray | None]
Rule = Callable[[OnnxNode, Inputs, Array], Array | None]
"""(node, inputs, expected) -> elements, or None."""


def shape_of(node: OnnxNode, dimensions: Sequence[int]) -> SymbolicArray:
    """Return the symbolic result of Shape (1 to 25) or Size (1 to 25)."""
    if node.op_type == "Size":
        return SymbolicArray(_objects([math.prod(dimensions)]).reshape(()), np.dtype(np.int64))
    start, end = node.attributes.get("start", 0), node.attributes.get("end")
    selected = dimensions[cast("int", start) : cast("int | None", end)]
    return SymbolicArray(_objects(selected), np.dtype(np.int64))


def evaluate(node: OnnxNode, inputs: Inputs, expected: Array) -> SymbolicArray | None:
    """Evaluate a node on arrays of sizes.

    Returns None without symbolic inputs or a rule, or if the rule contradicts `expected`, ONNX Runtime's result at the
    current shapes. Guards fix inputs such as indices, axes and exponents.
    """
    rule = _RULES.get(node.op_type) if not plain_domain(node.domain) else None
    if (
        rule is None
        or expected.size > MOST_ELEMENTS
        or not any(array is not None and array.is_traced for array in inputs)
    ):
        return None
    try:
        with np.errstate(all="ignore"):
            items = rule(node, inputs, expected)
            result = None if items is None else SymbolicArray(_form(items, expected), expected.dtype)
            return result if result is not None and np.array_equal(result.current_contents(), expected) else None
    except (ArithmeticError, ValueError):  # Python raises where numpy wraps or yields infinity
        return None


def _form(items: Array, expected: Array) -> Array:
    return np.asarray(items, object).reshape(expected.shape)


def _objects(items: Sequence[Any]) -> Array:
    array = np.empty(len(items), object)
    array[:] = items
    return array


def _present(inputs: Inputs, position: int) -> SymbolicArray:
    size_array = inputs[position]
    assert size_array is not None, "an input that the op requires"
    return size_array


def _moved(node: OnnxNode, inputs: Inputs, expected: Array) -> Array | None:
    if _is_table(inputs):
        return None
    _settle(inputs[1:])
    return _present(inputs, 0).items


def _is_table(inputs: Inputs) -> bool:
    sized = any(array is not None and array.is_traced for array in inputs[1:])
    return sized and not _present(inputs, 0).is_traced


def _settle(inputs: Inputs) -> None:
    for array in inputs:
        if array is not None:
            array.plain()


def _gathered(node: OnnxNode, inputs: Inputs, expected: Array) -> Array | None:
    if _is_table(inputs):
        return None
    return np.take(_present(inputs, 0).items, _present(inputs, 1).plain(), axis=node.integer("axis", 0))


def _sliced(node: OnnxNode, inputs: Inputs, expected: Array) -> Array | None:
    if _is_table(inputs):
        return None
    slice_inputs = [None if array is None else array.plain().reshape(-1).tolist() for array in inputs[1:]]
    if (
        len(slice_inputs) < 2
        or slice_inputs[0] is None
        or slice_inputs[1] is None
        or _present(inputs, 0).items.ndim != 1
    ):
        return None
    step = slice_inputs[3][0] if len(slice_inputs) > 3 and slice_inputs[3] else 1
    (start,), (end,) = slice_inputs[0], slice_inputs[1]
    return _present(inputs, 0).items[start:end:step]


def _joined(node: OnnxNode, inputs: Inputs, expected: Array) -> Array:
    parts = [array.items for array in inputs if array is not None]
    return np.concatenate(parts, axis=node.integer("axis", 0))


def _cast(node: OnnxNode, inputs: Inputs, expected: Array) -> Array | None:
    source = _present(inputs, 0)
    if source.dtype.kind in "iu" and expected.dtype.name in _INTEGERS:
        return source.items  # guards on the result apply to the size itself
    function = _CASTS.get((source.dtype.kind, expected.dtype.name))
    return None if function is None else _elementwise(function, source.items, source.items)


def _by_element(count: int, functions: Mapping[str, Callable[[Any, Any], Any]]) -> Rule:
    def rule(node: OnnxNode, inputs: Inputs, expected: Array) -> Array | None:
        function = functions.get(_present(inputs, 0).dtype.name)
        if function is None or len(inputs) != count:
            return None
        return _elementwise(function, _present(inputs, 0).items, _present(inputs, count - 1).items)

    return rule


def _chosen(node: OnnxNode, inputs: Inputs, expected: Array) -> Array:
    return np.where(_present(inputs, 0).plain(), _present(inputs, 1).items, _present(inputs, 2).items)


def _pairwise(function: Callable[[Any, Any], bool]) -> Rule:
    """Return a rule that compares elements; guards arise only when its result is read."""

    def rule(node: OnnxNode, inputs: Inputs, expected: Array) -> Array:
        return _elementwise(function, _present(inputs, 0).items, _present(inputs, 1).items)

    return rule


def _contrary(node: OnnxNode, inputs: Inputs, expected: Array) -> Array:
    return _elementwise(operator.eq, _present(inputs, 0).items, _FALSE)


def _negated(node: OnnxNode, inputs: Inputs, expected: Array) -> Array | None:
    return _elementwise(operator.sub, _ZERO, _present(inputs, 0).items) if expected.dtype.name in _INTEGERS else None


def _magnitude(node: OnnxNode, inputs: Inputs, expected: Array) -> Array | None:
    negated = _negated(node, inputs, expected)
    return None if negated is None else _elementwise(max, _present(inputs, 0).items, negated)


def _remainder(node: OnnxNode, inputs: Inputs, expected: Array) -> Array | None:
    """Return the remainder with the divisor's sign. Source: ONNX Mod-13."""
    if expected.dtype.name not in _INTEGERS or node.integer("fmod", 0):
        return None
    return _elementwise(operator.mod, _present(inputs, 0).items, _present(inputs, 1).items)


def _power(node: OnnxNode, inputs: Inputs, expected: Array) -> Array | None:
    """Multiply integers for small integer powers. Other powers are inexact, so return None."""
    base, exponents = _present(inputs, 0), _present(inputs, 1).plain()
    if base.dtype.kind != "i" or exponents.size != 1 or float(exponents.reshape(-1)[0]) not in _SMALL_POWERS:
        return None
    powers = repeat(base.items, int(exponents.reshape(-1)[0]))
    return np.broadcast_to(reduce(partial(_elementwise, operator.mul), powers), expected.shape)


def _clipped(node: OnnxNode, inputs: Inputs, expected: Array) -> Array | None:
    """Clip; the upper bound wins a conflict. Source: ONNX Clip-11."""
    if len(node.inputs) < 2 or expected.dtype.name not in _INTEGERS:  # attributes before version 11
        return None
    bounds = zip((max, min), inputs[1:], strict=False)
    present_bounds = [(function, bound.items) for function, bound in bounds if bound is not None]
    return reduce(lambda value, step: _elementwise(step[0], value, step[1]), present_bounds, _present(inputs, 0).items)


def _reduced(function: Callable[[Any, Any], Any]) -> Rule:
    """Return a rule that reduces integers to one; None for reals, whose result depends on the order."""

    def rule(node: OnnxNode, inputs: Inputs, expected: Array) -> Array | None:
        _settle(inputs[1:])
        if expected.size != 1 or expected.dtype.name not in _INTEGERS or not _present(inputs, 0).items.size:
            return None
        return _objects([reduce(partial(numbers.apply_function, function), _present(inputs, 0).items.flat)])

    return rule


def _root(node: OnnxNode, inputs: Inputs, expected: Array) -> Array | None:
    """Return square roots; a float64 root rounded to float32 is correctly rounded."""
    source = _present(inputs, 0).items
    roots = _elementwise(numbers.root_of, source, source)
    return _elementwise(numbers.to_float32, roots, roots) if expected.dtype == np.float32 else roots


def _spread(node: OnnxNode, inputs: Inputs, expected: Array) -> Array | None:
    if _is_table(inputs):
        return None
    _settle(inputs[1:])
    return np.broadcast_to(_present(inputs, 0).items, expected.shape)


def _elementwise(function: Callable[[Any, Any], Any], first: Array, second: Array) -> Array:
    first, second = np.broadcast_arrays(first, second)
    results = [
        numbers.apply_function(function, first_item, second_item)
        for first_item, second_item in zip(first.flat, second.flat, strict=True)
    ]
    return _objects(results).reshape(first.shape)


def _arithmetic(function: Callable[[Any, Any], Any], of_integers: Callable[[Any, Any], Any] | None = None) -> Rule:
    on_integers = of_integers or function
    return _by_element(
        2, {"int64": on_integers, "int32": on_integers, "float32": numbers.IN_FLOAT32[function], "float64": function}
    )


def _on_floats(function: Callable[[Any, Any], Any]) -> Rule:
    return _by_element(1, {"float32": function, "float64": function})


_CASTS: Mapping[tuple[str, str], Callable[[Any, Any], Any]] = MappingProxyType(
    {
        **{(kind, integer_dtype): numbers.to_integer for kind in "bf" for integer_dtype in _INTEGERS},
        **{(kind, "float32"): numbers.to_float32 for kind in "biuf"},
        **{(kind, "float64"): numbers.to_float64 for kind in "biuf"},
    }
)

_RULES: Mapping[str, Rule] = MappingProxyType(
    {
        **dict.fromkeys(("Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze"), _moved),
        "Gather": _gathered,
        "Slice": _sliced,
        "Concat": _joined,
        "Cast": _cast,
        "Where": _chosen,
        "Expand": _spread,
        "Equal": _pairwise(operator.eq),
        "Less": _pairwise(operator.lt),
        "LessOrEqual": _pairwise(operator.le),
        "Greater": _pairwise(operator.gt),
        "GreaterOrEqual": _pairwise(operator.ge),
        "And": _pairwise(min),
        "Or": _pairwise(max),
        "Not": _contrary,
        "ReduceProd": _reduced(operator.mul),
        "ReduceSum": _reduced(operator.add),
        "ReduceMax": _reduced(max),
        "ReduceMin": _reduced(min),
        "Add": _arithmetic(operator.add),
        "Sub": _arithmetic(operator.sub),
        "Mul": _arithmetic(operator.mul),
        "Div": _arithmetic(operator.truediv, numbers.quotient_of_integers),
        "Max": _arithmetic(max),
        "Min": _arithmetic(min),
        "Mod": _remainder,
        "Neg": _negated,
        "Abs": _magnitude,
        "Pow": _power,
        "Clip": _clipped,
        "Sqrt": _root,
        "Floor": _on_floats(numbers.floor_of),
        "Ceil": _on_floats(numbers.ceil_of),
        "Round": _on_floats(numbers.rounded_of),
    }
)
