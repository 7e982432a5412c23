"""How long a driver may take, and whether anybody still wants what it does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """What a compilation or a computation is given along. Source: NNAdapterControl."""

    deadline_seconds: float = 0.0
    """After the call began; 0 for none."""
    cancelled: Callable[[], bool] | None = None
    """Asked by the driver, from any thread; must not raise. What the host gives says so at the deadline as well."""
    progress: Callable[[float], None] | None = None
    """Told by the driver how much is done, 0 to 1, from any thread; must not raise."""


UNLIMITED = Control()
"""No deadline, and nobody who cancels."""
