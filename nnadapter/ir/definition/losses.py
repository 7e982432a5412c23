"""Losses of classes, label by label."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from nnadapter.ir.operand import Array


def _likelihood(
    x: Array, target: Array, weight: Array | None = None, *, reduction: str, ignore_index: int | None
) -> Any:
    losses, weights = np.zeros(target.shape), np.zeros(target.shape)
    for place in np.ndindex(target.shape):
        label = target[place]
        if label != ignore_index:
            weights[place] = 1 if weight is None else weight[label]
            losses[place] = -weights[place] * x[place[0], label, *place[1:]]
    return {"none": losses, "sum": losses.sum(), "mean": losses.sum() / weights.sum()}[reduction]


def _cross_entropy(x, target, weight=None, **attributes):  # type: ignore[no-untyped-def]
    shifted = x - x.max(1, keepdims=True)
    logarithms = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    return [_likelihood(logarithms, target, weight, **attributes), logarithms]


LOSSES: Mapping[str, Callable[..., Any]] = {
    "NEGATIVE_LOG_LIKELIHOOD_LOSS": _likelihood,
    "SOFTMAX_CROSS_ENTROPY_LOSS": _cross_entropy,
}
"""By operation."""
