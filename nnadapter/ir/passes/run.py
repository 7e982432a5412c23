"""Pass registry and runner, with numerical checks and dumps."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from types import MappingProxyType
from typing import TypeVar

import numpy as np

from nnadapter.errors import InvalidModelError, InvalidOptionError, PassError, close_names
from nnadapter.ir import Array, DataType, Model, OperandType, verify
from nnadapter.ir.builder import ModelEditor
from nnadapter.ir.operand_checks import integer_range
from nnadapter.ir.passes.composite_fusion import (
    fuse_attention,
    fuse_gelu,
    fuse_hard_swish,
    fuse_layer_normalization,
    fuse_swish,
)
from nnadapter.ir.passes.layout import cancel_transposes, channels_last
from nnadapter.ir.passes.legalization import matmul_to_fully_connected, quantized_to_real, symmetric_to_asymmetric
from nnadapter.ir.passes.producer_fusion import fuse_activation, fuse_batch_normalization, fuse_pad, fuse_scale_and_bias
from nnadapter.ir.passes.reduce_rank import reduce_rank
from nnadapter.ir.passes.simplification import (
    Evaluator,
    common_subexpressions,
    fold_constants,
    remove_dead,
    remove_identities,
    simplify,
)
from nnadapter.ir.rewrite import edit_of

_Input = TypeVar("_Input")
_Output = TypeVar("_Output")
Pass = Callable[[Model], Model]
"""Function that returns a model, the same object if nothing changed. Passes made by `ir.rewrite.editing` can share one
editor.
"""

Observer = Callable[[str, Model, Model], None]
"""Function that is called after each pass with its name, and the models before and after."""

PASSES: Mapping[str, Pass] = MappingProxyType(
    {
        each.__name__: each
        for each in (
            remove_dead,
            fold_constants,
            simplify,
            remove_identities,
            common_subexpressions,
            fuse_layer_normalization,
            fuse_gelu,
            fuse_hard_swish,
            fuse_swish,
            fuse_attention,
            matmul_to_fully_connected,
            fuse_scale_and_bias,
            fuse_batch_normalization,
            fuse_activation,
            fuse_pad,
            reduce_rank,
            cancel_transposes,
            channels_last,
            symmetric_to_asymmetric,
            quantized_to_real,
        )
    }
)
"""Every pass, in an order for drivers that use all: composite fusion, constant folding, layouts.

The last two passes are for devices with limited integer support.
"""


def run_passes(
    model: Model,
    passes: Sequence[str | Pass],
    check: Observer | None = None,
    *,
    driver_passes: Mapping[str, Pass] = MappingProxyType({}),
) -> Model:
    """Apply passes in order. Editing passes share an editor, unless `check` observes each step.

    `check` is an observer, such as `dump_to` or `check_numbers`, that raises to stop. `driver_passes`, such as
    `{"reduce_rank": partial(reduce_rank, largest=5)}`, take precedence over `PASSES`.

    Raises:
        InvalidOptionError: unknown pass name.
        PassError: a pass returned an invalid model, or no model.
    """
    editor = None
    for name, function in [_named(pass_or_name, driver_passes) for pass_or_name in passes]:
        edit = edit_of(function) if check is None else None
        if edit is not None:
            editor = editor or ModelEditor(model)
            _call_pass(name, edit, editor)
            continue
        if editor is not None:
            model, editor = editor.finish(), None
        result = _applied(name, function, model)
        if check is not None:
            check(name, model, result)
        model = result
    return model if editor is None else editor.finish()


def _applied(name: str, function: Pass, model: Model) -> Model:
    result = _call_pass(name, function, model)
    if not isinstance(result, Model):
        raise PassError(
            f"pass {name!r} returned {type(result).__name__}, expected a Model, the same one if nothing changed",
            name=name,
        )
    return result


def _call_pass(name: str, function: Callable[[_Input], _Output], argument: _Input) -> _Output:
    try:
        return function(argument)
    except InvalidModelError as error:
        raise PassError(f"pass {name!r} failed: {error}", name=name) from error


def all_of(*observers: Observer) -> Observer:
    """Return an observer that calls these observers in order."""

    def observe(name: str, original: Model, result: Model) -> None:
        for observer in observers:
            observer(name, original, result)

    return observe


def _named(pass_or_name: str | Pass, driver_passes: Mapping[str, Pass]) -> tuple[str, Pass]:
    if not isinstance(pass_or_name, str):
        return getattr(pass_or_name, "__name__", repr(pass_or_name)), pass_or_name
    function = driver_passes.get(pass_or_name) or PASSES.get(pass_or_name)
    if function is None:
        raise InvalidOptionError(
            f"there is no pass {pass_or_name!r}; {close_names(pass_or_name, {**PASSES, **driver_passes})}"
        )
    return pass_or_name, function


_LARGEST_INDEX = 4


def sample_inputs(model: Model, seed: int = 0) -> list[Array]:
    """Return an array per model input, deterministic for a seed.

    Floats are normally distributed. Integers of up to 8 bits take any value; wider ones are below 4, and valid as
    indices.
    """
    generator = np.random.default_rng(seed)
    return [_sample(generator, model.operands[index].type, _limit(model, index)) for index in model.inputs]


def _sample(generator: np.random.Generator, type_: OperandType, limit: int) -> Array:
    dtype, dimensions = np.dtype(type_.dtype.value), type_.dimensions
    if type_.dtype.is_floating:
        return np.asarray(generator.standard_normal(dimensions)).astype(dtype)
    if type_.dtype.itemsize > 1:
        return np.asarray(generator.integers(0, limit, dimensions)).astype(dtype)
    lowest, largest = (0, 1) if type_.dtype is DataType.BOOL else integer_range(type_.dtype)
    return np.asarray(generator.integers(lowest, largest + 1, dimensions)).astype(dtype)


def _limit(model: Model, index: int) -> int:
    limit = _LARGEST_INDEX
    for reader in model.consumers.get(index, ()):
        operation = model.operations[reader]
        if "axis" in operation.attributes and index in operation.inputs[1:]:
            dimensions = model.operands[operation.inputs[0]].type.dimensions
            limit = min(limit, dimensions[int(operation.attributes["axis"])])  # type: ignore[arg-type]
    return max(limit, 1)


TOLERANCES: Mapping[DataType, float] = {
    DataType.FLOAT64: 1e-9,
    DataType.FLOAT32: 1e-4,
    DataType.FLOAT16: 2e-2,
    DataType.BFLOAT16: 1e-1,
    DataType.FLOAT8E4M3FN: 3e-1,
    DataType.FLOAT8E5M2: 6e-1,
}
"""Allowed difference, relative to the largest number of an output; other types must be equal."""

_SMALLEST_SCALE = 1e-3
"""Smallest number to which a tolerance is relative, since smaller outputs may be rounding errors."""

Feeds = Callable[[Model], Sequence[Array]]


def check_numbers(
    evaluate: Evaluator, *, feeds: Feeds = sample_inputs, tolerances: Mapping[DataType, float] = TOLERANCES
) -> Observer:
    """Return an observer that runs the models before and after each pass by `evaluate`, and compares outputs.

    NaNs are equal, and so are infinities of the same sign. Other numbers may differ by the tolerance of their data type
    (0 if omitted) times the output's largest finite number. If results depend on which of two nearly equal numbers is
    larger, pass `feeds` without such inputs instead of the seeded random default.

    Raises:
        PassError: from the observer, with pass, output and largest difference.
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
        raise PassError(f"pass {name!r} built an invalid model: {error}", name=name) from error
    for side in ("inputs", "outputs"):
        expected, got = (
            "; ".join(
                f"{operand.name!r} {operand.type}" for operand in map(model.operands.__getitem__, getattr(model, side))
            )
            for model in (original, result)
        )
        if got != expected:
            raise PassError(f"pass {name!r} changed the {side} of the model to {got}, expected {expected}", name=name)


def _signature(model: Model, indices: Sequence[int]) -> str:
    return "; ".join(f"{model.operands[index].name!r} {model.operands[index].type}" for index in indices)


def _run(name: str, when: str, evaluate: Evaluator, model: Model, inputs: Sequence[Array]) -> Sequence[Array]:
    results = evaluate(model, inputs)
    if results is None:
        raise PassError(
            f"pass {name!r} cannot be checked: the check's evaluator refuses the model {when} the pass", name=name
        )
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
    actual, other = _wide(got), _wide(expected)
    same = (got == expected) | (np.isnan(actual) & np.isnan(other))
    with np.errstate(invalid="ignore"):
        distance = np.where(same, 0.0, np.abs(actual - other))
    # integers that are equal only in float64
    distance = np.where(~same & (distance == 0), 1.0, distance)
    return np.where(np.isnan(distance), np.inf, distance)


def _wide(array: Array) -> Array:
    return array.astype(np.float64)


def dump_to(folder: str | os.PathLike[str]) -> Observer:
    """Return an observer for one call of `run_passes` that writes every model as text into `folder`.

    Dumping adds guards on symbolic numbers, so use it only with static shapes.
    """
    place = Path(folder)
    numbers = count()
    initial_models: list[Model] = []

    def write(name: str, model: Model) -> None:
        from nnadapter.ir.text import to_named_text

        place.mkdir(parents=True, exist_ok=True)
        safe = re.sub(r"[^\w.-]", "_", name)
        (place / f"{next(numbers):02}-{safe}.txt").write_text(to_named_text(model), encoding="utf-8")

    def observe(name: str, original: Model, result: Model) -> None:
        if not initial_models:
            initial_models.append(original)
            write("given", original)
        write(name, result)

    return observe
