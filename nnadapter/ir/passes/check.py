"""Whether a pass keeps what a model computes: both models are run, and their outputs compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from nnadapter.errors import InvalidModelError, PassError
from nnadapter.ir.model import Model
from nnadapter.ir.operand import Array, DataType
from nnadapter.ir.passes.evaluation import Evaluator
from nnadapter.ir.passes.run import Observer
from nnadapter.ir.passes.sampling import sample_inputs
from nnadapter.ir.verifying import verify

TOLERANCES: Mapping[DataType, float] = {
    DataType.FLOAT64: 1e-9,
    DataType.FLOAT32: 1e-4,
    DataType.FLOAT16: 2e-2,
    DataType.BFLOAT16: 1e-1,
    DataType.FLOAT8E4M3FN: 3e-1,
    DataType.FLOAT8E5M2: 6e-1,
}
"""Allowed difference over the largest number of an output, by its data type; every other type must be equal."""

_SMALLEST_SCALE = 1e-3
"""Outputs whose numbers are all smaller are compared as if their largest were this: what is left may be rounding."""

Feeds = Callable[[Model], Sequence[Array]]
"""Arrays to run a model with, one per model input."""


def check_numbers(
    evaluate: Evaluator, *, feeds: Feeds = sample_inputs, tolerances: Mapping[DataType, float] = TOLERANCES
) -> Observer:
    """Return an observer for `run_passes` that runs the models before and after each pass and compares.

    1. After each pass the new model is verified, and has the inputs and outputs of the old one: names, data types and
       dimensions.
    2. Both are run with the same inputs. NaN agrees with NaN, and an infinity with itself; else numbers may differ by
       the tolerance times the largest finite number of the output. A pass that changed nothing is not run.
    3. What was run is each model by itself, so a mistake that the evaluator makes in both is not seen. Where an index
       depends on which of two nearly equal numbers is larger, give `feeds` with which it does not.

    Args:
        evaluate: runs a model, without the passes under test.
        feeds: what to run with; seeded random numbers by default.
        tolerances: by data type; those that are left out must be equal.

    Raises:
        PassError: from the observer, with the pass, the output, the largest difference and where it is.
    """
    last_run: dict[str, tuple[Model, Sequence[Array], Sequence[Array]]] = {}

    def observe(name: str, original: Model, result: Model) -> None:
        if result is original:
            return
        _check_form(name, original, result)
        model, inputs, expected = last_run.get("latest", (None, (), ()))
        if model is not original:
            inputs = feeds(original)
            expected = _run(name, "before", evaluate, original, inputs)
        got = _run(name, "after", evaluate, result, inputs)
        for output, actual, other in zip(result.outputs, got, expected, strict=True):
            operand = result.operands[output]
            _compare(name, operand.name, actual, other, tolerances.get(operand.type.dtype, 0.0))
        last_run["latest"] = result, inputs, got

    return observe


def _check_form(name: str, original: Model, result: Model) -> None:
    try:
        verify(result)
    except InvalidModelError as error:
        raise PassError(f"pass {name!r} made a model that is not sound: {error}", name=name) from error
    for side, original_indices, result_indices in (
        ("inputs", original.inputs, result.inputs),
        ("outputs", original.outputs, result.outputs),
    ):
        border, new_border = (
            [_border(model, index) for index in indices]
            for model, indices in ((original, original_indices), (result, result_indices))
        )
        if border != new_border:
            raise PassError(
                f"pass {name!r} made a model with the {side} {'; '.join(new_border)}, expected {'; '.join(border)}",
                name=name,
            )


def _border(model: Model, index: int) -> str:
    operand = model.operands[index]
    return f"{operand.name!r} {operand.type}"


def _run(name: str, when: str, evaluate: Evaluator, model: Model, inputs: Sequence[Array]) -> Sequence[Array]:
    results = evaluate(model, inputs)
    if results is None:
        raise PassError(f"pass {name!r} cannot be checked: the evaluator does not take the model {when} it", name=name)
    return results


def _compare(name: str, output: str, got: Array, expected: Array, tolerance: float) -> None:
    if got.shape != expected.shape or got.dtype != expected.dtype:
        raise PassError(
            f"pass {name!r} changed output {output!r} to {got.dtype}{list(got.shape)}, "
            f"expected {expected.dtype}{list(expected.shape)}",
            name=name,
            output=output,
        )
    difference = _difference(got, expected)
    scale = np.abs(_wide(expected)[np.isfinite(_wide(expected))]).max(initial=_SMALLEST_SCALE)
    if difference.max(initial=0.0) <= tolerance * scale:
        return
    where = tuple(int(axis) for axis in np.unravel_index(int(difference.argmax()), difference.shape))
    raise PassError(
        f"pass {name!r} changed output {output!r}: the largest difference is {difference[where]:.3g} at "
        f"{list(where)}, got {got[where]}, expected {expected[where]} within {tolerance * scale:.3g}",
        name=name,
        output=output,
    )


def _difference(got: Array, expected: Array) -> Array:
    """The distance of each element, infinite where one is NaN or infinite and the other is not the same."""
    actual, other = _wide(got), _wide(expected)
    same = (got == expected) | (np.isnan(actual) & np.isnan(other))
    with np.errstate(invalid="ignore"):
        distance = np.where(same, 0.0, np.abs(actual - other))
    # integers that float64 cannot tell apart differ all the same
    distance = np.where(~same & (distance == 0), 1.0, distance)
    return np.where(np.isnan(distance), np.inf, distance)


def _wide(array: Array) -> Array:
    return array.astype(np.float64)
