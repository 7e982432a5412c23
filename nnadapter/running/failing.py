"""What is said, or raised, where a device failed to do what it had taken, by the policy `Options.fallback`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

from nnadapter import errors
from nnadapter.running.by_trace import fell_back
from nnadapter.running.incidents import Incident, Incidents
from partition.plan import Step

_TELLING: tuple[type[errors.DriverError | errors.OutOfMemoryError], ...] = (
    errors.DeviceTimeoutError,
    errors.DeviceLostError,
    errors.TransientError,
    errors.OutOfMemoryError,
)
"""What drivers raise that says more than that they failed; the most specific first."""


REPEATED = "it was repeated, and went well"
"""What is done about what may go well the next time: nothing falls back."""


def fall_back(
    stage: str,
    step: Step,
    nodes: Sequence[str],
    message: str,
    instead: str,
    error: BaseException,
    incidents: Incidents,
) -> Incident:
    """Say what a device failed to do as the policy wants it said: an error, a warning, or nothing.

    This is the one place where a session says so. A cause (stage, device and kind of error) is warned of once. What was
    `REPEATED` is no fallback, and allowed where that is forbidden.

    Args:
        stage: one of `STAGES`.
        step: that it failed to do.
        nodes: names of its nodes.
        message: what happened.
        instead: what is done now.
        error: what the driver raised.
        incidents: of the session.

    Returns:
        What is remembered of it.
    """
    fell_back(incidents.trace, step, message, instead)
    policy = incidents.policy(stage)
    falls_back = instead != REPEATED
    done = "an error was raised" if policy == "forbid" and falls_back else instead
    incident = Incident(stage, step.device, step.segment, tuple(nodes), type(error).__name__, message, done)
    is_new = incidents.add(incident)
    if policy == "forbid" and falls_back:
        kind, phase = _RAISED[stage]
        telling = next((error_type for error_type in _TELLING if isinstance(error, error_type)), kind)
        raised = telling(
            f"{message}; fallback is forbidden, so allow it or report this to the vendor",
            device=step.device,
            segment=step.segment,
            nodes=nodes,
            phase=getattr(error, "phase", None) or phase,
        )
        if isinstance(raised, errors.AccuracyError) and isinstance(error, errors.AccuracyError):
            raised.deviation = error.deviation
        raise raised from error
    if policy == "warn" and is_new:
        warnings.warn(
            f"{message}; {instead}", errors.FallbackWarning if falls_back else errors.DriverWarning, stacklevel=3
        )
    return incident


def named(nodes: Sequence[str]) -> str:
    """Some nodes, in words."""
    shown = ", ".join(map(repr, nodes[:3]))
    return f"{shown} and {len(nodes) - 3} more" if len(nodes) > 3 else shown


def run_failure(step: Step, nodes: Sequence[str], why: str) -> str:
    """What happened where a device failed to run a step.

    Args:
        step: that failed.
        nodes: names of its nodes.
        why: what the driver said.
    """
    return f"device {step.device!r} failed while it ran segment {step.segment} ({named(nodes)}): {why}"


_RAISED: Mapping[str, tuple[type[errors.DriverError], str]] = {
    "load": (errors.DriverError, "admit"),
    "compile": (errors.CompilationError, "compile"),
    "run": (errors.ExecutionError, "run"),
    "accuracy": (errors.AccuracyError, "run"),
}
"""Per stage, what is raised, and what the device was asked for, where its error does not say more."""
