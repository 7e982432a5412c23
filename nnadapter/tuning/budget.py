"""Accuracy budgets: a user's metric, or the distance to the float outputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnadapter.accuracy.distances import distance
from nnadapter.errors import FAILURES, InvalidOptionError, MetricError
from nnadapter.ir.operand import Array
from nnadapter.records import dataclass

Outputs = Sequence[Sequence[Array]]
"""[samples][outputs]"""
Metric = Callable[[list[list[Array]], list[Any]], Any]
"""Function of all samples' outputs and data items; returns a number, or one per sample to average. Larger is better."""
LEAST_SQNR = 20.0
RELATIVE_DROP = "1%"


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Permitted loss of accuracy."""

    metric: Metric | None
    """None for the distance to the float outputs."""
    limit: float
    """Largest drop, as a fraction of the baseline if `is_relative`. Without a metric, least SQNR in dB."""
    is_relative: bool = False

    def drop(self, baseline: float, score: float) -> float:
        """Return the drop in the units of `limit`."""
        loss = baseline - score
        if not self.is_relative:
            return loss
        return loss / abs(baseline) if baseline else math.copysign(math.inf, loss) if loss else 0.0

    def allows(self, baseline: float, score: float) -> bool:
        if self.metric is None:
            return score >= self.limit
        return self.drop(baseline, score) <= self.limit + 1e-12

    def score(self, outputs: Outputs, reference: Outputs, items: Sequence[Any]) -> float:
        """Return the metric, or the SQNR of the worst output in dB. Raises MetricError."""
        if self.metric is None:
            return signal_to_noise(noise_share(outputs, reference))
        try:
            value = self.metric([list(arrays) for arrays in outputs], list(items))
            shape = np.shape(value)
            number = float(np.mean(value))
        except FAILURES as error:
            name = getattr(self.metric, "__name__", "metric")
            raise MetricError(
                f"metric {name!r} raised {type(error).__name__}: {error}; it gets the outputs of {len(items)} samples, "
                "a list of arrays each, and the items of the data"
            ) from error
        if shape not in ((), (len(items),)):
            raise MetricError(
                f"the metric returned shape {list(shape)} for {len(items)} samples; return a number, or one per sample"
            )
        if not math.isfinite(number):
            raise MetricError(f"the metric returned {number}, expected a finite number")
        return number

    def __str__(self) -> str:
        if self.metric is None:
            return f"an SQNR of at least {self.limit:g} dB"
        return f"a drop of at most {self.limit:.4g}" if not self.is_relative else f"a drop of at most {self.limit:.3%}"


def read_budget(metric: Metric | None, max_drop: float | str | None) -> Budget:
    """Return a budget of a number, or a text such as `0.5%` of the baseline. Raises InvalidOptionError."""
    default = LEAST_SQNR if metric is None else RELATIVE_DROP
    text = str(default if max_drop is None else max_drop).strip()
    is_relative = text.endswith("%")
    try:
        number = float(text.removesuffix("%"))
    except ValueError:
        number = math.nan
    if isinstance(max_drop, bool) or not math.isfinite(number) or number < 0:
        raise InvalidOptionError(f"max_drop must be a number of at least 0 or a percentage, got {max_drop!r}")
    if is_relative and metric is None:
        raise InvalidOptionError(
            f"max_drop is {text}, but there is no metric to relate it to; pass a metric, or the least SQNR in dB"
        )
    if metric is not None and not callable(metric):
        raise InvalidOptionError(f"metric must be a function of outputs and items, got {type(metric).__name__}")
    return Budget(metric=metric, limit=number / 100 if is_relative else number, is_relative=is_relative)


def signal_to_noise(noise: float) -> float:
    """Return the signal-to-noise ratio in dB for a share of noise."""
    return math.inf if noise <= 0 else -10 * math.log10(noise) if math.isfinite(noise) else -math.inf


def noise_share(outputs: Outputs, reference: Outputs) -> float:
    """Return the noise power relative to the signal power of the worst output; inf if shapes differ."""
    worst = 0.0
    for got, expected in zip(zip(*outputs, strict=True), zip(*reference, strict=True), strict=True):
        if not all(isinstance(array, np.ndarray) and array.dtype.kind in "fiub" for array in expected):
            continue  # texts and sequences have no distance
        if any(np.shape(one) != np.shape(other) for one, other in zip(got, expected, strict=True)):
            return math.inf
        worst = max(worst, distance(list(got), list(expected)).relative ** 2)
    return worst
