"""Known deviations of other engines from the definition: the forms, the reason, and a bound if there is one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from nnadapter.ir import Array
from nnadapter.testing.random_models import RandomCase, evaluate


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Deviation for exactly the cases that satisfy `where`."""

    where: Callable[[RandomCase], bool]
    why: str
    within: Callable[[RandomCase], Array] | None = None
    """Largest error of each element; None if results are incomparable."""

    def explains(self, case: RandomCase, got: list[Array]) -> bool:
        """Return whether this reason covers the results."""
        if not self.where(case) or self.within is None:
            return self.where(case)
        wanted = evaluate(case.model, case.feeds)[case.model.outputs[0]]
        return bool(np.all(np.abs(got[0].astype(np.float64) - wanted) <= self.within(case)))


def _input(case: RandomCase, role: int) -> Array:
    """Return an input of the operation, in float64 unless it is an integer; empty if absent."""
    [operation] = case.model.operations
    operand = operation.inputs[role] if role < len(operation.inputs) else -1
    if operand < 0:
        return np.empty(0)
    value = evaluate(case.model, case.feeds)[operand]
    return value if value.dtype.kind in "iu" else value.astype(np.float64)


def _attribute(case: RandomCase, name: str) -> object:
    return case.model.operations[0].attributes[name]


def _sequences_without_steps(case: RandomCase) -> bool:
    return bool((_input(case, 4) == 0).any())


def _beyond_float64(case: RandomCase) -> bool:
    x = _input(case, 0)
    sizes = np.abs(np.where(x == 0, 1, x).astype(np.float64))
    with np.errstate(over="ignore"):
        return x.dtype.kind in "iu" and bool((sizes.prod(_attribute(case, "axes")) > 2.0**53).any())


def _without_spread(case: RandomCase) -> bool:
    """Return whether epsilon changes a result by more than eight units in the last place of float32."""
    variance = _input(case, 0).var(_attribute(case, "axes"))
    return bool((variance < _attribute(case, "epsilon") * 2.0**19).any())


def _one_position(case: RandomCase) -> bool:
    return _input(case, 0)[0, 0].size == 1


def _of_a_difference(case: RandomCase) -> Array:
    """Return eight units in the last place of `input * scale / sqrt(epsilon)`, the terms that are subtracted."""
    x, scale = _input(case, 0), _input(case, 1)
    factor = scale.reshape(1, -1, *[1] * (x.ndim - 2)) / np.sqrt(_attribute(case, "epsilon"))
    return np.asarray(2.0**-20 * (np.abs(x * factor) + np.abs(_input(case, 2)).max()))


def _of_size_one(case: RandomCase) -> bool:
    sizes, shape = _input(case, 0).shape, _attribute(case, "shape")
    mode = _attribute(case, "coordinate_transformation_mode")
    return mode == "pytorch_half_pixel" and any(new == 1 < old for old, new in zip(sizes, shape, strict=True))


OTHERWISE: Mapping[str, Difference] = {
    "ATTENTION": Difference(
        where=lambda case: bool((_input(case, 4) < 0).any()),
        why="lengths below 0, which mean nothing, hide all keys in ONNX Runtime",
    ),
    "DFT": Difference(
        where=lambda case: bool(_attribute(case, "inverse") and _attribute(case, "onesided")),
        why="backwards and one-sided, ONNX Runtime gives the real part of other sums",
    ),
    "GRU": Difference(where=_sequences_without_steps, why="sequences without steps lose their state in ONNX Runtime"),
    "INSTANCE_NORMALIZATION": Difference(
        where=_one_position,
        why="of one position, the mean is what is there; ONNX Runtime scales both and takes one from the other",
        within=_of_a_difference,
    ),
    "LOCAL_RESPONSE_NORMALIZATION": Difference(
        where=lambda case: _attribute(case, "size") % 2 == 0,
        why="ONNX Runtime takes odd sizes, and onnx's reference is wrong with even ones",
    ),
    "LSTM": Difference(where=_sequences_without_steps, why="sequences without steps lose their state in ONNX Runtime"),
    "MEAN_VARIANCE_NORMALIZATION": Difference(where=_without_spread, why="ONNX Runtime adds no epsilon"),
    "REDUCE_PROD": Difference(
        where=_beyond_float64, why="ONNX Runtime multiplies int64 as float64, which wraps around nowhere"
    ),
    "RESIZE_LINEAR": Difference(
        where=_of_size_one,
        why="ONNX Runtime resizes two or three axes; onnx's reference takes 3 * (1/3) in float32 for more than 1",
    ),
    "RNN": Difference(where=_sequences_without_steps, why="sequences without steps lose their state in ONNX Runtime"),
}
"""Deviations by operation; each operation also has forms without deviation."""
LOST: Mapping[str, Difference] = {
    "GATHER_ND": Difference(
        where=lambda case: any(case.model.operands[output].type.dimensions == () for output in case.model.outputs),
        why="onnx infers no rank where the result has no axes, so the node is refused on its way back",
    ),
}
"""Forms that export but cannot be imported again."""
