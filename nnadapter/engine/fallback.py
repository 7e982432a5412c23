"""Fallback of a session: recorded incidents, with warnings or errors by the policy."""

from __future__ import annotations

import warnings
from collections import Counter, deque
from collections.abc import Mapping, Sequence, Set
from typing import TYPE_CHECKING

from nnadapter import errors
from nnadapter.errors import FallbackWarning, NotDelegatedError
from nnadapter.options import Fallback, fallback_at
from nnadapter.process.resources import new_lock
from nnadapter.records import dataclass
from nnadapter.traces.trace import FALLBACK, SILENT, Trace
from partition import Plan, Reason, Step, Unsupported, Verdict

if TYPE_CHECKING:
    from nnadapter.planning.settling import Partitioning

_MOST_KEPT = 64
_MOST_CAUSES = 256


@dataclass(frozen=True, slots=True)
class Incident:
    """Failure of a device, and the reaction to it."""

    stage: str
    """`load`, `compile`, `run` or `accuracy`; see `Options.fallback`."""
    device: str
    segment: int | None
    """Index of the segment; None if it was never in a plan."""
    nodes: tuple[str, ...]
    kind: str
    message: str
    fallback_action: str


class Incidents:
    """Incidents of one session. Thread-safe."""

    def __init__(self, fallback: Fallback = "warn", trace: Trace = SILENT) -> None:
        self.trace, self._fallback = trace, fallback
        self._kept: deque[Incident] = deque(maxlen=_MOST_KEPT)
        self._counts: Counter[tuple[str, str]] = Counter()
        self._causes: set[tuple[str, str, str]] = set()
        self._lock = new_lock()

    def policy(self, stage: str) -> str:
        return fallback_at(self._fallback, stage)

    def add(self, incident: Incident) -> bool:
        """Record an incident; return True if it is the first of its stage, device and kind."""
        cause, counted = (incident.stage, incident.device, incident.kind), (incident.device, incident.kind)
        with self._lock:
            self._kept.append(incident)
            has_room = counted in self._counts or len(self._counts) < _MOST_CAUSES
            self._counts[counted if has_room else (incident.device, "others")] += 1
            if cause in self._causes or len(self._causes) >= _MOST_CAUSES:
                return False
            self._causes.add(cause)
            return True

    @property
    def newest(self) -> tuple[Incident, ...]:
        with self._lock:
            return tuple(self._kept)

    @property
    def counts(self) -> Mapping[tuple[str, str], int]:
        with self._lock:
            return dict(self._counts)


_TELLING: tuple[type[errors.DriverError | errors.OutOfMemoryError], ...] = (
    errors.DeviceTimeoutError,
    errors.DeviceLostError,
    errors.TransientError,
    errors.OutOfMemoryError,
)
"""Types of driver errors that are raised as they are, the most specific first."""


REPEATED = "it was repeated, and succeeded"
"""Reaction to a transient failure, which is no fallback."""


def fall_back(
    stage: str,
    step: Step,
    nodes: Sequence[str],
    message: str,
    instead: str,
    error: BaseException,
    incidents: Incidents,
) -> Incident:
    """Record a failure of a device and return the incident; raise or warn as the fallback policy requires.

    `message` is the failure, `instead` the reaction. Each cause (stage, device and type of error) causes one warning.
    """
    incidents.trace.mark(step.device, FALLBACK, "fall back", segment=step.segment, reason=message, then=instead)
    policy = incidents.policy(stage)
    falls_back = instead != REPEATED
    outcome = "an error was raised" if policy == "forbid" and falls_back else instead
    incident = Incident(stage, step.device, step.segment, tuple(nodes), type(error).__name__, message, outcome)
    is_new = incidents.add(incident)
    if policy == "forbid" and falls_back:
        kind, phase = _RAISED[stage]
        telling = next((error_type for error_type in _TELLING if isinstance(error, error_type)), kind)
        raised = telling(
            f"{message}; fallback is forbidden, so allow it with Options(fallback=...), or report this to the vendor",
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
    """Return at most three nodes' names, and the number of others, as text."""
    shown = ", ".join(map(repr, nodes[:3]))
    return f"{shown} and {len(nodes) - 3} more" if len(nodes) > 3 else shown


def run_failure(step: Step, nodes: Sequence[str], reason: str) -> str:
    """Return the message for a step that failed on its device."""
    return f"device {step.device!r} failed while it ran segment {step.segment} ({named(nodes)}): {reason}"


def report_run_failure(
    step: Step, nodes: Sequence[str], incidents: Incidents, error: BaseException, instead: str
) -> Incident:
    """Record that a device failed to run a step; raise or warn as the policy requires."""
    return fall_back("run", step, nodes, run_failure(step, nodes, errors.describe(error)), instead, error, incidents)


_RAISED: Mapping[str, tuple[type[errors.DriverError], str]] = {
    "load": (errors.DriverError, "admit"),
    "compile": (errors.CompilationError, "compile"),
    "run": (errors.ExecutionError, "run"),
    "accuracy": (errors.AccuracyError, "run"),
}
"""Type and phase of the error per stage, unless the driver's error is more specific."""


Cause = tuple[str, Reason | None]
"""Device that took no nodes, and the reason of its first refusal."""


def refuse_fallback(partitioning: Partitioning) -> None:
    """Raise NotDelegatedError if fallback is forbidden, but nodes would run on a device that the user did not name."""
    plan, setting = partitioning.plan, partitioning.setting
    unnamed = {device.name for device in setting.devices if not device.named}
    spare = [step for step in plan.steps if step.device in unnamed]
    constraints = setting.constraints
    remaining = [
        node
        for step in spare
        for node in step.nodes
        if constraints.fallback_at("compile" if _failed_to_compile(plan, node) else "load") == "forbid"
    ]
    if not remaining:
        return
    names = [plan.graph.nodes[node].name for node in remaining]
    first = setting.devices[0].name
    raise NotDelegatedError(
        f"fallback is forbidden, but {len(remaining)} of {len(plan.graph.nodes)} nodes ({named(names)}) would run on "
        f"{spare[0].device!r}; {_why_left(plan, first, remaining[0])}; "
        f"allow fallback, or name {spare[0].device!r} as a device",
        device=first,
        nodes=names,
        phase="compile" if _failed_to_compile(plan, remaining[0]) else "judge",
    )


def note_unanswered(partitioning: Partitioning, incidents: Incidents) -> None:
    """Record an incident for each accelerator whose driver failed to give verdicts."""
    plan = partitioning.plan
    for device in partitioning.setting.accelerators & plan.verdicts.keys():
        failed = {
            atom: verdict.detail
            for atom, verdict in enumerate(plan.verdicts[device])
            if isinstance(verdict, Unsupported) and verdict.reason is Reason.DRIVER_ERROR
        }
        if failed:
            nodes = tuple(plan.graph.nodes[node].name for atom in failed for node in plan.graph.atoms[atom])
            message = f"device {device!r} failed when asked about nodes ({named(nodes)}): {next(iter(failed.values()))}"
            incidents.add(Incident("load", device, None, nodes, "DriverError", message, "these nodes go elsewhere"))


def _failed_to_compile(plan: Plan, node: int) -> bool:
    atom = plan.graph.atom_of[node]
    atom_verdicts = (verdicts[atom] for verdicts in plan.verdicts.values())
    return any(isinstance(verdict, Unsupported) and verdict.reason in _COMPILING for verdict in atom_verdicts)


_COMPILING = (Reason.COMPILE_FAILED, Reason.BANNED)


def _verdict(plan: Plan, device: str, node: int) -> Verdict:
    return plan.verdicts[device][plan.graph.atom_of[node]]


def _why_left(plan: Plan, device: str, node: int) -> str:
    verdict = _verdict(plan, device, node)
    if isinstance(verdict, Unsupported):
        return f"{device!r} refuses the first: {verdict.detail} ({verdict.reason.value})"
    return f"{device!r} supports the first, but its segment or a plan placed it elsewhere"


def warn_of_idle(partitioning: Partitioning, warned: set[Cause]) -> None:
    """Warn of devices that the user named and that run no node, if the policy is `warn`.

    A device causes a warning only if less preferred devices run nodes that it refused. `warned` receives the causes.
    """
    plan, setting = partitioning.plan, partitioning.setting
    used_devices = {step.device for step in plan.steps}
    if setting.constraints.fallback_at("load") != "warn":
        return
    for position, device in enumerate(setting.devices):
        if not device.accelerates or device.name in used_devices:
            continue
        if setting.constraints.policy.weighs and any(plan.verdicts[device.name]):
            continue
        remaining = _left_by(plan, device.name, {later.name for later in setting.devices[position + 1 :]})
        if remaining and _reason(plan, device.name, remaining[0]) is not Reason.WRONG_RESULT:
            count, refusal = len(plan.graph.nodes), _verdict(plan, device.name, remaining[0])
            took = (
                f"none of the {count} nodes; the first was refused"
                if count > 1
                else "no node; the only one was refused"
            )
            hint = "; see the report for the others" if count > 1 else ""
            _warn(
                f"device {device.name!r} took {took} because of {refusal}{hint}",
                (device.name, _reason(plan, device.name, remaining[0])),
                warned,
            )


def warn_of_last_resort(partitioning: Partitioning, warned: set[Cause]) -> None:
    """Warn of nodes that the slow last resort runs, if the policy is `warn`; `warned` receives the causes."""
    plan, setting = partitioning.plan, partitioning.setting
    spare = [device.name for device in setting.devices if device.is_spare]
    nodes = [node for step in plan.steps if step.device in spare for node in step.nodes]
    if nodes and setting.constraints.fallback_at("load") == "warn":
        names = named([plan.graph.nodes[node].name for node in nodes])
        total = len(plan.graph.nodes)
        _warn(
            f"{len(nodes)} of {total} nodes run on onnx's reference evaluator, which is slow ({names}); "
            f"{setting.host.display_name} refused the first because of {_verdict(plan, setting.host.name, nodes[0])}",
            (setting.host.name, _reason(plan, setting.host.name, nodes[0])),
            warned,
        )


def _warn(text: str, cause: Cause, warned: set[Cause]) -> None:
    if cause not in warned:
        warned.add(cause)
        warnings.warn(text, FallbackWarning, stacklevel=3)


def _reason(plan: Plan, device: str, node: int) -> Reason | None:
    verdict = _verdict(plan, device, node)
    return verdict.reason if isinstance(verdict, Unsupported) else None


def _left_by(plan: Plan, device: str, later: Set[str]) -> list[int]:
    elsewhere = (node for step in plan.steps if step.device in later for node in step.nodes)
    return [node for node in elsewhere if not _verdict(plan, device, node)]
