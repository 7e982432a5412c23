"""What a model computes, and how far a device may be from it.

The oracle runs operation by operation, each by its definition. How far results may be off follows from the
model itself: it is run again with every value off by a few units in the last place of its data type. Where such a run
gives something else (a comparison that flips, a cancellation), a device may too. This is stochastic arithmetic as in
J. Vignes, A stochastic arithmetic for reliable scientific computation, 1993.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nnadapter.accuracy.tolerances import BANDS, band_of
from nnadapter.ir.definition import by_definition
from nnadapter.ir.model import ABSENT, Model, Operation
from nnadapter.ir.operand import Array, DataType, Lifetime, Operand
from nnadapter.ir.schema import Attributes

Perturb = Callable[[Array, Array | None], Array]
"""A value that is a little off: by a share of itself, and of what it is given as the size of what it was made of."""

_RUNS, _MORE_RUNS = 2, 64
_ROOM = 4.0
"""How much further than the runs with noise a device may be off."""
_SMALLEST = 1.0
"""Results nearer to 0 may be off as one of this size: they come from sums that cancel."""
_MADE_TOGETHER: Mapping[str, Callable[[Attributes], tuple[Any, ...]]] = {
    "DFT": lambda attributes: (attributes["axis"], -1),
    "STFT": lambda attributes: (-2, -1),
}
"""Results that are off by a share of the largest along some axes, however small they are: each step of a fast Fourier
transform makes all of them. The largest of them is no smaller than what was transformed is long (Parseval), of which
the error is a share (N. Higham, Accuracy and stability of numerical algorithms, 2002, theorem 24.2)."""


def compute_operation(model: Model, position: int, input_arrays: Sequence[Array | None]) -> list[Array]:
    """What one operation of a model makes of the values of its inputs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # the mean of nothing is NaN, with a warning
        return by_definition(
            _single_operation_model(model, position), _distinct(model.operations[position].inputs, input_arrays)
        )


def _distinct(operands: Sequence[int], input_arrays: Sequence[Array | None]) -> list[Array]:
    return list(
        {operand: value for operand, value in zip(operands, input_arrays, strict=True) if value is not None}.values()
    )


def _single_operation_model(model: Model, position: int) -> Model:
    """The operation as a model whose inputs, constants among them, are all fed."""
    operation = model.operations[position]
    distinct_inputs = list(dict.fromkeys(operand for operand in operation.inputs if operand != ABSENT))
    indices = [*distinct_inputs, *operation.outputs]
    place = {operand: index for index, operand in enumerate(indices)} | {ABSENT: ABSENT}
    operands = tuple(
        Operand(
            f"o{operand}", model.operands[operand].type, Lifetime.MODEL_INPUT if operand in distinct_inputs else _OUTPUT
        )
        for operand in indices
    )
    inputs, outputs = (
        tuple(place[operand] for operand in operand_list) for operand_list in (operation.inputs, operation.outputs)
    )
    moved = replace(operation, inputs=inputs, outputs=outputs)
    return Model(operands, (moved,), tuple(range(len(distinct_inputs))), outputs)


_OUTPUT = Lifetime.MODEL_OUTPUT


def evaluate(model: Model, feeds: Sequence[Array], perturb: Perturb = lambda value, size: value) -> dict[int, Array]:
    """Every operand's value."""
    values = {index: operand.value for index, operand in enumerate(model.operands) if operand.value is not None}
    values.update(zip(model.inputs, feeds, strict=True))
    for position, operation in enumerate(model.operations):
        input_arrays = [None if operand == ABSENT else perturb(values[operand], None) for operand in operation.inputs]
        results = compute_operation(model, position, input_arrays)
        off = [perturb(result, _size(operation, result)) for result in results]
        values.update(zip(operation.outputs, off, strict=True))
    return values


def _size(operation: Operation, result: Array) -> Array | None:
    """The size of what a result was made of, where that says more than the result itself."""
    axes = _MADE_TOGETHER.get(operation.type)
    if axes is None or not result.size:
        return None
    return np.asarray(np.abs(result.astype(np.float64)).max(axes(operation.attributes), keepdims=True))


def outputs_of(model: Model, feeds: Sequence[Array]) -> list[Array]:
    """The values of the model's outputs."""
    values = evaluate(model, feeds)
    return [values[operand] for operand in model.outputs]


def noise(generator: np.random.Generator, precision: DataType) -> Perturb:
    """A function that puts every floating-point value off by a little; in a coarse precision, by as much as that is.

    Args:
        generator: of the noise.
        precision: see `check`.
    """

    def perturb(value: Array, size: Array | None) -> Array:
        dtype = DataType(value.dtype.name)
        if not dtype.is_floating:
            return value
        share = _share(dtype, precision) * generator.uniform(-1, 1, value.shape)
        moved = np.asarray(value.astype(np.float64) * (1 + share))
        if size is not None:
            moved += share * size
        # On a coarse grid, reals that differ may become equal.
        return (moved.astype(precision.array_type) if _is_coarse(precision) else moved).astype(value.dtype)

    return perturb


def _is_coarse(precision: DataType) -> bool:
    return precision is not DataType.FLOAT32


def _share(dtype: DataType, precision: DataType) -> float:
    return (band_of(dtype, precision) if _is_coarse(precision) else BANDS[dtype]).noise


def check(
    model: Model, feeds: Sequence[Array], got: Sequence[Array], *, precision: DataType = DataType.FLOAT32
) -> None:
    """Raise AssertionError unless `got` is what the model makes of `feeds`, as exactly as can be asked.

    Args:
        model: the model.
        feeds: its inputs.
        got: its outputs, as a device computed them.
        precision: in what that computes float32.
    """
    right = evaluate(model, feeds)
    expected = [right[operand] for operand in model.outputs]
    for output, expected_output, operand in zip(got, expected, model.outputs, strict=True):
        name = model.operands[operand].name
        assert (output.dtype, output.shape) == (expected_output.dtype, expected_output.shape), (
            f"{name}: {output.dtype}{output.shape}"
        )
    generator = np.random.default_rng(0)
    spread: list[Array] = [np.zeros(expected_output.shape) for expected_output in expected]
    for runs in (_RUNS, _MORE_RUNS):
        for _ in range(runs):
            if not _widen(model, feeds, expected, spread, noise(generator, precision)):
                return
        off = _furthest(model, got, expected, spread, precision)
        if off is None:
            return
    raise AssertionError(off)


def _widen(
    model: Model, feeds: Sequence[Array], expected: Sequence[Array], spread: list[Array], perturb: Perturb
) -> bool:
    """Take one more run with noise into account; False where that run leaves what the model is defined for."""
    try:
        values = evaluate(model, feeds, perturb)
    except (IndexError, ValueError):
        return False
    for position, operand in enumerate(model.outputs):
        off = _distance(values[operand], expected[position])
        if not DataType(expected[position].dtype.name).is_floating:
            off = np.where(off > 0, np.inf, 0)
        spread[position] = np.maximum(spread[position], np.where(np.isnan(off), np.inf, off))
    return True


def _furthest(
    model: Model, got: Sequence[Array], expected: Sequence[Array], spread: Sequence[Array], precision: DataType
) -> str | None:
    for output, expected_output, room, operand in zip(got, expected, spread, model.outputs, strict=True):
        dtype = DataType(expected_output.dtype.name)
        share = _share(dtype, precision) if dtype.is_floating else 0.0
        limit = _ROOM * room + share * (np.abs(expected_output.astype(np.float64)) + _SMALLEST)
        off = _distance(output, expected_output)
        wrong = ~(off <= limit) & np.isfinite(limit)  # where anything may come out, NaN may too
        if wrong.any():
            where = tuple(int(axis[0]) for axis in np.nonzero(wrong)) if wrong.ndim else ()
            return (
                f"{model.operands[operand].name}{list(where)}: got {output[where]}, expected {expected_output[where]} "
                f"within {limit[where]}; {int(wrong.sum())} of {wrong.size} elements are off"
            )
    return None


def _distance(output: Array, expected: Array) -> Any:
    if output.dtype == np.bool_:
        return (output != expected).astype(np.float64)
    if output.dtype.kind in "iu":  # without leaving the integers: float64 does not hold all of int64
        return np.where(output == expected, 0.0, np.maximum(1.0, np.abs(output.astype(np.float64) - expected)))
    return np.asarray(np.abs(output.astype(np.float64) - expected.astype(np.float64)))
