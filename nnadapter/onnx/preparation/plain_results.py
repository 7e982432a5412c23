"""Results that are there already, that move elements of what is, or compute with integers: numpy gives them exactly.

ONNX Runtime would be imported, and run a model, for what most exporters write beside the weights: constants as nodes,
and shapes put together. What is said here of a node holds for every version of its op; where it might not, or where
nothing comes of it, there is no result: others say what is wrong with the node, or what it means.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import helper

from nnadapter.ir.operand import Array
from nnadapter.onnx.node import OnnxNode

_Made = Callable[[OnnxNode, Sequence[Array]], Any]


def plain_result(node: OnnxNode, constants: Mapping[str, Array]) -> Array | None:
    """Return the result of a node that `may_fold` allows and its schema does; None where it is not among these."""
    make = _MAKES.get(node.op_type)
    if make is None or len(node.outputs) != 1 or not all(name in constants for name in node.inputs):
        return None
    arrays = [constants[name] for name in node.inputs]
    if not all(map(_is_plain, arrays)):
        return None
    try:
        result = np.asarray(make(node, arrays))
    except Exception:  # noqa: BLE001  whatever numpy raises
        return None
    return result if _is_plain(result) else None


def _is_plain(array: Array) -> bool:
    """Whether these are numbers that numpy knows by itself."""
    return array.dtype.kind in "biuf" and array.dtype.isbuiltin == 1


def _constant(node: OnnxNode, _: Sequence[Array]) -> Any:
    ((name, value),) = node.attributes.items()
    return value if name == "value" else np.array(value, _STATED[name])


def _reshape(node: OnnxNode, arrays: Sequence[Array]) -> Array:
    array, sizes = arrays
    is_literal = node.integer("allowzero", 0)
    return array.reshape([array.shape[at] if not (size or is_literal) else size for at, size in enumerate(sizes)])


def _squeeze(node: OnnxNode, arrays: Sequence[Array]) -> Array:
    has_axes = len(arrays) > 1 or node.attributes
    return np.squeeze(arrays[0], _axes(node, arrays) if has_axes else None)


def _unsqueeze(node: OnnxNode, arrays: Sequence[Array]) -> Array:
    return np.expand_dims(arrays[0], _axes(node, arrays))


def _axes(node: OnnxNode, arrays: Sequence[Array]) -> tuple[int, ...]:
    """An attribute until opset 12, an input from then on."""
    axes = tuple(arrays[1].tolist()) if len(arrays) > 1 else node.integers("axes")
    if not axes:
        raise ValueError("none may stand for all")
    return axes


def _concat(node: OnnxNode, arrays: Sequence[Array]) -> Array:
    if len({array.dtype for array in arrays}) > 1:
        raise ValueError("numpy would find one type for all")
    return np.concatenate(arrays, node.integer("axis"))


def _slice(_: OnnxNode, arrays: Sequence[Array]) -> Array:
    array, *bounds = arrays
    starts, ends, *axes_and_steps = (bound.tolist() for bound in bounds)
    axes = axes_and_steps[0] if axes_and_steps else range(len(starts))
    steps = axes_and_steps[1] if len(axes_and_steps) > 1 else [1] * len(starts)
    places = [range(array.ndim)[axis] for axis in axes]
    if len(set(places)) < len(places) or min(steps) < 1:
        raise ValueError("backwards, bounds outside mean something else than in Python")
    slices = [slice(None)] * array.ndim
    for place, *bounds_of_axis in zip(places, starts, ends, steps, strict=True):
        slices[place] = slice(*bounds_of_axis)
    return array[tuple(slices)]


def _gather(node: OnnxNode, arrays: Sequence[Array]) -> Any:
    array, indices = arrays
    return array.take(indices, node.integer("axis", 0))


def _transpose(node: OnnxNode, arrays: Sequence[Array]) -> Array:
    return np.transpose(arrays[0], node.integers("perm"))


def _cast(node: OnnxNode, arrays: Sequence[Array]) -> Array:
    (array,), to = arrays, np.dtype(helper.tensor_dtype_to_np_dtype(node.integer("to")))
    if array.dtype.kind not in "biu" or to not in _OF_INTEGERS:
        raise ValueError("reals that do not fit become what the machine makes of them")
    return array.astype(to)


def _expand(_: OnnxNode, arrays: Sequence[Array]) -> Array:
    array, sizes = arrays
    return np.broadcast_to(array, np.broadcast_shapes(array.shape, tuple(sizes.tolist())))


def _tile(_: OnnxNode, arrays: Sequence[Array]) -> Array:
    array, repeats = arrays
    if repeats.shape != (array.ndim,):
        raise ValueError("numpy would add dimensions")
    return np.tile(array, repeats.tolist())


def _range(_: OnnxNode, arrays: Sequence[Array]) -> Array:
    _check_integers(arrays)
    return np.arange(*(array.item() for array in arrays), dtype=arrays[0].dtype)


def _where(_: OnnxNode, arrays: Sequence[Array]) -> Array:
    chosen, *alternatives = arrays
    if alternatives[0].dtype != alternatives[1].dtype:
        raise ValueError("numpy would find one type for both")
    return np.where(chosen, *alternatives)


def _of_integers(compute: Callable[..., Any]) -> _Made:
    def make(node: OnnxNode, arrays: Sequence[Array]) -> Any:
        _check_integers(arrays)
        if node.since_version < _BROADCASTING:
            raise ValueError("attributes say which dimensions belong together")
        with np.errstate(over="ignore"):  # what does not fit begins anew, in both
            return compute(*arrays)

    return make


def _quotient(dividend: Array, divisor: Array) -> Any:
    if (dividend < 0).any() or (divisor < 1).any():
        raise ValueError("numpy rounds down, not to zero, and divides by zero")
    return dividend // divisor


def _check_integers(arrays: Sequence[Array]) -> None:
    """Raise ValueError where there are others, or of several types."""
    if len({array.dtype for array in arrays}) > 1 or arrays[0].dtype.kind not in "iu":
        raise ValueError("they are not integers of one type")


_BROADCASTING = 7
"""The version since which arithmetic and comparisons align dimensions from the last one."""
_STATED = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}
_OF_INTEGERS = frozenset(map(np.dtype, ("bool", "int32", "int64", "float32", "float64")))
_MAKES: Mapping[str, _Made] = {
    "Add": _of_integers(np.add),
    "Cast": _cast,
    "Concat": _concat,
    "Constant": _constant,
    "Div": _of_integers(_quotient),
    "Equal": _of_integers(np.equal),
    "Expand": _expand,
    "Gather": _gather,
    "Greater": _of_integers(np.greater),
    "GreaterOrEqual": _of_integers(np.greater_equal),
    "Identity": lambda _, arrays: arrays[0],
    "Less": _of_integers(np.less),
    "LessOrEqual": _of_integers(np.less_equal),
    "Mul": _of_integers(np.multiply),
    "Range": _range,
    "Reshape": _reshape,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Sub": _of_integers(np.subtract),
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
    "Where": _where,
}
