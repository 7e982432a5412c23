"""The model that inputs choose, for who looks at a plan and runs none: branches in place of their `If`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from nnadapter.errors import FAILURES, InvalidInputError, InvalidModelError
from nnadapter.ir.operand import Array
from nnadapter.onnx.numbers import filled
from nnadapter.onnx.preparation.choice import Conditions, Truths, in_words
from nnadapter.onnx.preparation.decisions import decided, decision_of
from nnadapter.onnx.preparation.prepare import Prepared
from nnadapter.onnx.preparation.sizes import check_shape
from nnadapter.onnx.signature import Shapes
from nnadapter.planning.settling import Partitioning
from nnadapter.running.choices import NothingGainedError, refuse_without_gain
from nnadapter.running.deciding import Fork
from partition.graph import Value

Notes = tuple[str, ...]


def of_choice(
    prepared: Prepared,
    shapes: Callable[[], Shapes],
    values: Mapping[str, Any],
    plan: Callable[[Prepared], Partitioning],
) -> tuple[Partitioning, Notes]:
    """Return the plan of what inputs choose of a model, as sessions have it, and what is to be said of that.

    Args:
        prepared: the model as it was given.
        shapes: gives those of all inputs.
        values: contents of inputs; where these do not say, a condition is taken to hold.
        plan: plans a model.

    Raises:
        InvalidInputError: there is no such input, or its contents do not fit it.
    """
    inputs = {name: prepared.graph.value(name) for name in prepared.graph.inputs}
    feed = {name: array_for(name, value, inputs) for name, value in values.items()}
    decision = decision_of(prepared)
    if decision is None:
        return plan(prepared), ()
    chosen, is_assumed = chosen_by(prepared, shapes(), feed)
    if not chosen.choice:
        return plan(prepared), ()
    words = in_words(chosen.choice)
    try:
        partitioning = plan(chosen)
        refuse_without_gain(partitioning)
    except (NothingGainedError, InvalidModelError, InvalidInputError):
        note = (
            f"inputs choose branches: where {words}, devices have nothing of them, and the model runs as it was given"
        )
        return plan(prepared), (note,)
    if not is_assumed:
        return partitioning, ()
    deciding = decision.conditions.inputs
    how = f"; --input {deciding[0]}=VALUE tells what is planned for others" if deciding else ""
    return partitioning, (f"inputs choose branches: this is for those where {words}{how}",)


def measured(shapes: Shapes) -> dict[str, Array]:
    """Return arrays of these shapes, which hold nothing."""
    return {name: np.broadcast_to(np.zeros((), np.int8), shape) for name, shape in shapes.items()}


def chosen_by(prepared: Prepared, shapes: Shapes, feed: Mapping[str, Array]) -> tuple[Prepared, bool]:
    """Return the model with the branches that a feed chooses, and whether one was taken that it does not tell.

    Args:
        prepared: the model as it was given.
        shapes: of all inputs.
        feed: contents of inputs that choose; where they are not there, conditions are taken to hold.

    Raises:
        InvalidInputError: a condition cannot be computed of these.
    """
    is_assumed = False
    sizes = measured(shapes)
    while (decision := decision_of(prepared)) is not None:
        is_told = feed.keys() >= set(decision.conditions.inputs)
        is_assumed |= not is_told
        every = (True,) * len(decision.texts)
        try:
            prepared = decided(decision, _truths(decision.conditions, {**sizes, **feed}) if is_told else every)
        except InvalidModelError:
            break  # as sessions do, which run the model as it was given
    return prepared, is_assumed


def _truths(conditions: Conditions, feed: Mapping[str, Array]) -> Truths:
    def refuse(error: BaseException) -> Truths:
        raise InvalidInputError(f"what inputs choose cannot be told by these: {error}") from error

    return Fork[Truths](conditions, lambda truths: truths, refuse).chosen(feed)


def array_for(name: str, value: Any, inputs: Mapping[str, Value]) -> Array:
    """Return what an input is given as an array of its own type and shape; one number stands for all elements.

    Raises:
        InvalidInputError: there is no such input, or it does not fit.
    """
    if name not in inputs:
        raise InvalidInputError(f"the model has no input {name!r}; its inputs are {list(inputs)}", name=name)
    declared = inputs[name]
    if isinstance(value, (bool, int, float)):
        return filled(declared, value, declared.static_shape)
    array = _cast(np.asarray(value), declared)
    check_shape(name, array.shape, {name: declared})
    return array


def _cast(array: Array, declared: Value) -> Array:
    """An array in the data type of an input, which has all that is in it."""
    if declared.dtype is None or array.dtype == np.dtype(declared.dtype):
        return array
    try:
        with np.errstate(all="ignore"):
            cast = array.astype(np.dtype(declared.dtype))
        fits = np.can_cast(array.dtype, cast.dtype, "same_kind") and bool((cast == array).all())
    except FAILURES:
        fits = False
    if not fits:
        raise InvalidInputError(
            f"input {declared.name!r} takes {declared.dtype}, got {array.dtype}", name=declared.name
        )
    return cast
