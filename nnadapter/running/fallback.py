"""What is said, or refused, where nodes run on another device than a named one, by the policy `Options.fallback`."""

from __future__ import annotations

import warnings
from collections.abc import Set

from nnadapter.errors import FallbackWarning, NotDelegatedError
from nnadapter.planning.settling import Partitioning
from nnadapter.running.failing import named
from nnadapter.running.incidents import Incident, Incidents
from partition.plan import Plan
from partition.verdict import Reason, Unsupported

Cause = tuple[str, Reason | None]
"""A device and why it refused."""


def refuse_fallback(partitioning: Partitioning) -> None:
    """Raise NotDelegatedError where fallback is forbidden and nodes are left for a device that nobody named."""
    plan, setting = partitioning.plan, partitioning.setting
    unnamed = {device.name for device in setting.devices if not device.named}
    spare = [step for step in plan.steps if step.device in unnamed]
    constraints = setting.constraints
    left = [
        node
        for step in spare
        for node in step.nodes
        if constraints.fallback_at("compile" if _failed_to_compile(plan, node) else "load") == "forbid"
    ]
    if not left:
        return
    names = [plan.graph.nodes[node].name for node in left]
    first = setting.devices[0].name
    raise NotDelegatedError(
        f"fallback is forbidden and {len(left)} of {len(plan.graph.nodes)} nodes are taken by no named device "
        f"({named(names)}); {_why_left(plan, first, left[0])}; "
        f"allow fallback, or name {spare[0].device!r} as a device",
        device=first,
        nodes=names,
        phase="compile" if _failed_to_compile(plan, left[0]) else "judge",
    )


def note_unanswered(partitioning: Partitioning, incidents: Incidents) -> None:
    """Remember of each device that accelerates that its driver failed when it was asked, if it did."""
    plan = partitioning.plan
    for device in partitioning.setting.accelerators & plan.verdicts.keys():
        failed = {
            atom: verdict.detail
            for atom, verdict in enumerate(plan.verdicts[device])
            if isinstance(verdict, Unsupported) and verdict.reason is Reason.DRIVER_ERROR
        }
        if failed:
            nodes = tuple(plan.graph.nodes[node].name for atom in failed for node in plan.graph.atoms[atom])
            message = f"device {device!r} failed when it was asked ({named(nodes)}): {next(iter(failed.values()))}"
            incidents.add(Incident("load", device, None, nodes, "DriverError", message, "these nodes go elsewhere"))


def _failed_to_compile(plan: Plan, node: int) -> bool:
    atom = plan.graph.atom_of[node]
    said = (verdicts[atom] for verdicts in plan.verdicts.values())
    return any(isinstance(verdict, Unsupported) and verdict.reason in _COMPILING for verdict in said)


_COMPILING = (Reason.COMPILE_FAILED, Reason.BANNED)


def _is_known_wrong(plan: Plan, device: str, node: int) -> bool:
    """Whether a node was taken from a device for what it computed, which was said then."""
    verdict = plan.verdicts[device][plan.graph.atom_of[node]]
    return isinstance(verdict, Unsupported) and verdict.reason is Reason.WRONG_RESULT


def _why_left(plan: Plan, device: str, node: int) -> str:
    verdict = plan.verdicts[device][plan.graph.atom_of[node]]
    if isinstance(verdict, Unsupported):
        return f"{device!r} refused the first because of {verdict}"
    return f"{device!r} takes the first, which its segment or a plan put elsewhere"


def warn_of_idle(partitioning: Partitioning, said: set[Cause]) -> None:
    """Warn where the policy says so of a named device that took nothing, with the reason.

    Nothing fell back where devices before it took the nodes, or it would have taken those that went elsewhere.

    Args:
        partitioning: what took which nodes.
        said: causes that nobody is warned of again; it grows.
    """
    plan, setting = partitioning.plan, partitioning.setting
    used = {step.device for step in plan.steps}
    if setting.constraints.fallback_at("load") != "warn":
        return
    for position, device in enumerate(setting.devices):
        if not device.accelerates or device.name in used:
            continue
        if setting.constraints.policy.weighs and any(plan.verdicts[device.name]):
            continue  # it was weighed, and something else is cheaper
        left = _left_by(plan, device.name, {later.name for later in setting.devices[position + 1 :]})
        if left and not _is_known_wrong(plan, device.name, left[0]):
            count, refusal = len(plan.graph.nodes), _refusal(plan, device.name, left[0])
            took = (
                f"none of the {count} nodes; the first was refused"
                if count > 1
                else "no node; the only one was refused"
            )
            others = "; see the report for the others" if count > 1 else ""
            _warn(
                f"device {device.name!r} took {took} because of {refusal}{others}",
                (device.name, _reason(plan, device.name, left[0])),
                said,
            )


def warn_of_last_resort(partitioning: Partitioning, said: set[Cause]) -> None:
    """Warn where the policy says so of nodes that are left for the last resort: it is slow, and nobody named it.

    See `warn_of_idle` for the arguments.
    """
    plan, setting = partitioning.plan, partitioning.setting
    spare = [device.name for device in setting.devices if device.is_spare]
    left = [node for step in plan.steps if step.device in spare for node in step.nodes]
    if left and setting.constraints.fallback_at("load") == "warn":
        names = named([plan.graph.nodes[node].name for node in left])
        _warn(
            f"{len(left)} of {len(plan.graph.nodes)} nodes run on onnx's reference evaluator, which is slow ({names}); "
            f"{setting.host.display_name} refused the first because of {_refusal(plan, setting.host.name, left[0])}",
            (setting.host.name, _reason(plan, setting.host.name, left[0])),
            said,
        )


def _warn(text: str, cause: Cause, said: set[Cause]) -> None:
    if cause not in said:
        said.add(cause)
        warnings.warn(text, FallbackWarning, stacklevel=3)


def _reason(plan: Plan, device: str, node: int) -> Reason | None:
    verdict = plan.verdicts[device][plan.graph.atom_of[node]]
    return verdict.reason if isinstance(verdict, Unsupported) else None


def _left_by(plan: Plan, device: str, later: Set[str]) -> list[int]:
    """Nodes that a device refused and that run on one of `later`."""
    elsewhere = (node for step in plan.steps if step.device in later for node in step.nodes)
    return [node for node in elsewhere if not plan.verdicts[device][plan.graph.atom_of[node]]]


def _refusal(plan: Plan, device: str, node: int) -> str:
    return str(plan.verdicts[device][plan.graph.atom_of[node]])
