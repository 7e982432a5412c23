"""What is said, or raised, where a device failed to do what it had taken, by the policy `Options.fallback`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from nnadapter.errors import DriverError, FallbackWarning
from nnadapter.running.traced_programs import fell_back
from nnadapter.traces.trace import Trace
from partition.plan import Step


def fall_back(
    kind: type[DriverError],
    step: Step,
    nodes: Sequence[str],
    message: str,
    instead: str,
    error: BaseException,
    policy: str,
    trace: Trace,
) -> None:
    """Say what a device failed to do as the policy wants it said: an error, a warning, or nothing.

    Args:
        kind: of the error.
        step: that it failed to do.
        nodes: names of its nodes.
        message: what happened.
        instead: what is done now.
        error: what the driver raised.
        policy: `warn`, `allow` or `forbid`.
        trace: hears of it.
    """
    fell_back(trace, step, message, instead)
    if policy == "forbid":
        raise kind(
            f"{message}; fallback is forbidden, so allow it or report this to the vendor",
            device=step.device,
            segment=step.segment,
            nodes=nodes,
        ) from error
    if policy == "warn":
        warnings.warn(f"{message}; {instead}", FallbackWarning, stacklevel=3)
