"""Choice for `Options(precision="auto")`: the devices' default precision if the first outputs match float32 outputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from nnadapter.accuracy.distances import distance
from nnadapter.drivers.capability import Precision
from nnadapter.drivers.selection import HOSTS, DeviceRequest, Isolate, named_requests, select_one
from nnadapter.process.resources import new_lock

if TYPE_CHECKING:
    from nnadapter.engine.engine import Engine
    from nnadapter.engine.plan_source import RunResult

LEAST_DB = 30.0
"""Lowest SQNR in dB that every output needs for the lower precision."""
_FLOATS = frozenset(("float16", "bfloat16", "float32", "float64"))


def has_lower_default(requests: DeviceRequest | Sequence[DeviceRequest], isolate: Isolate) -> bool:
    """Return True if a device's engine would compute in a lower precision than float32 by default."""
    return any(
        select_one(name, options, isolate, "device").options
        != select_one(name, options, isolate, Precision.FLOAT32).options
        for name, options in named_requests(requests).items()
        if name not in HOSTS
    )


class DecidingEngine:
    """Engine in the devices' default precision, replaced by one in float32 if its first outputs deviate. Thread-safe.

    Values that are bound before the first run select float32, because a binding belongs to one engine.
    """

    def __init__(self, lower: Engine, open_float32: Callable[[], Engine]) -> None:
        self._engine, self._open_float32 = lower, open_float32
        self._is_decided, self._lock = False, new_lock()
        self.choice = "auto: the first run compares the default precision of the devices with float32"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def run(
        self, names: Sequence[str] | None, feed: Mapping[str, Any], options: Any = None, *arguments: Any
    ) -> RunResult:
        if not self._is_decided:
            with self._lock:
                if not self._is_decided:
                    self._decide(feed, options)
        return self._engine.run(names, feed, options, *arguments)

    def binding(self) -> Any:
        with self._lock:
            if not self._is_decided:
                self._choose(self._open_float32(), "float32, because values were bound before the first run")
        return self._engine.binding()

    def _decide(self, feed: Mapping[str, Any], options: Any) -> None:
        lower = self._engine
        results, _ = lower.run(None, feed, options)
        float32 = self._open_float32()
        try:
            expected, _ = float32.run(None, feed, options)
            names = [value.name for value in lower.outputs()]
            least, output = min(zip(map(agreement, results, expected), names, strict=True))
        except BaseException:
            float32.close()
            raise
        measured = f"output {output!r} agrees with float32 to {least:.1f} dB on the first feed"
        if least >= LEAST_DB:
            self._choose(lower, f"the devices' default precision, because {measured}, at least {LEAST_DB:.0f}")
            float32.close()
        else:
            self._choose(float32, f"float32, because {measured} at the devices' default, less than {LEAST_DB:.0f}")

    def _choose(self, engine: Engine, reason: str) -> None:
        replaced, self._engine = self._engine, engine
        self.choice, self._is_decided = f"auto chose {reason}", True
        if replaced is not engine:
            replaced.close()


def agreement(result: Any, expected: Any) -> float:
    """Return the SQNR of float results in dB; for other results, inf if they are equal, otherwise -inf."""
    if isinstance(expected, list):
        return min(map(agreement, result, expected), default=inf) if len(result) == len(expected) else -inf
    if np.shape(result) != np.shape(expected):
        return -inf
    if isinstance(expected, np.ndarray) and expected.dtype.name in _FLOATS:
        return distance(result, expected).sqnr_db
    return inf if np.array_equal(result, expected) else -inf
