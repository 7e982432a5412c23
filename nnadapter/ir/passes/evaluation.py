"""How a pass may have something computed without knowing a device: a function that runs a model is handed in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from nnadapter.ir.model import Model
from nnadapter.ir.operand import Array

Evaluator = Callable[[Model, Sequence[Array]], Sequence[Array] | None]
"""Runs a model once: the model and one array per model input -> one array per model output, None where it cannot."""


def move(model: Model, inputs: Sequence[Array]) -> Sequence[Array] | None:
    """Run a model of one operation that only moves elements of constants; see `Evaluator`.

    Every data type goes through unchanged, so no device could come to another result.
    """
    if inputs or len(model.operations) != 1 or model.operations[0].type not in MOVES:
        return None
    (operation,) = model.operations
    result = MOVES[operation.type](operation.attributes, *(model.operands[index].value for index in operation.inputs))
    return result if isinstance(result, list) else [result]


def _split(attributes: Mapping[str, Any], x: Array) -> list[Array]:
    return np.split(x, np.cumsum(attributes["split"])[:-1], attributes["axis"])


def _slice(attributes: Mapping[str, Any], x: Array) -> Array:
    where = [slice(None)] * x.ndim
    for axis, *bounds in zip(*(attributes[name] for name in ("axes", "starts", "ends", "steps")), strict=True):
        where[axis] = slice(*bounds)
    return x[tuple(where)]


MOVES: Mapping[str, Callable[..., Any]] = {
    "ASSIGN": lambda attributes, x: x,
    "CONCAT": lambda attributes, *inputs: np.concatenate(inputs, attributes["axis"]),
    "EXPAND": lambda attributes, x: np.broadcast_to(x, attributes["shape"]),
    "RESHAPE": lambda attributes, x: x.reshape(attributes["shape"]),
    "SLICE": _slice,
    "SPLIT": _split,
    "TILE": lambda attributes, x: np.tile(x, attributes["repeats"]),
    "TRANSPOSE": lambda attributes, x: x.transpose(attributes["perm"]),
}
"""By operation type: attributes and inputs -> one result, or a list of them."""
