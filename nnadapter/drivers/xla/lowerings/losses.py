"""Losses of classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from nnadapter.drivers.tables.lowering import Computes, lowers
from nnadapter.drivers.xla.lowerings.closing import ALL_FLOATS, Function, computes
from nnadapter.drivers.xla.lowerings.normalization import log_softmax
from nnadapter.ir.named_operation import NamedOperation


def _likelihood(x: Any, target: Any, weight: Any = None, *, reduction: str, ignore_index: int | None) -> Any:
    counted = jnp.ones(target.shape, bool) if ignore_index is None else target != ignore_index
    labels = jnp.where(counted, target, 0)
    weights = jnp.where(counted, jnp.ones((), x.dtype) if weight is None else weight.at[labels].get(mode="clip"), 0)
    taken = jnp.take_along_axis(x, jnp.expand_dims(labels, 1), 1, mode="clip")[:, 0]
    losses = jnp.where(counted, -weights * taken, 0)
    if reduction == "none":
        return losses
    return losses.sum() / weights.sum() if reduction == "mean" else losses.sum()


def _cross_entropy(x: Any, target: Any, weight: Any = None, **attributes: Any) -> Any:
    logarithms = log_softmax(x, 1)
    return [_likelihood(logarithms, target, weight, **attributes), logarithms]


_FUNCTIONS: Mapping[str, Function] = {
    "NEGATIVE_LOG_LIKELIHOOD_LOSS": _likelihood,
    "SOFTMAX_CROSS_ENTROPY_LOSS": _cross_entropy,
}


@lowers(*_FUNCTIONS, types=ALL_FLOATS)
def lower_losses(operation: NamedOperation) -> Computes:
    """By the logarithm of the share of each label."""
    return computes(operation, _FUNCTIONS[operation.type])
