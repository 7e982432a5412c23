"""What devices that take ONNX say of nodes whose sizes are left open, where there is no plan for all sizes otherwise.

At some sizes a device may take a node that it takes at these alone (a window that divides), and refuse another that it
takes with open sizes. So it is asked about the whole graph with open sizes, and the model is placed by that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from nnadapter.drivers.border import ask_supported
from nnadapter.drivers.capability import OpenSizes
from nnadapter.drivers.crashes import named_call
from nnadapter.offering.open_parts import DynamicParts
from nnadapter.offering.segments import with_weights
from nnadapter.planning.judgment import Judgment, completed
from nnadapter.planning.setting import SessionDevice
from nnadapter.planning.settling import Partitioning
from nnadapter.rules.values import Limits
from partition.plan import Plan, Step
from partition.verdict import SUPPORTED, Reason, Unsupported, Verdict, all_of

_MOST_LOST = 4
"""Of so many nodes that a device takes at some sizes, one may go elsewhere for all sizes."""
_MOST_CUTS = 4
"""So many more segments at most: each costs switches in every run, and compiling is paid once for a set of shapes."""


def with_dynamic_verdicts(partitioning: Partitioning) -> Judgment | None:
    """Return the judgment with what devices that take ONNX say of open sizes.

    None where that is what they said at these sizes, or they would lose too much, or a node would be left to nobody;
    and where a person or costs say where nodes go.
    """
    judgment, setting = partitioning.judgment, partitioning.setting
    asked = [device for device in setting.devices if device.accelerates and not device.takes_ir]
    if _is_decided(partitioning) or not all(map(_can_be_asked, asked)):
        return None
    model = partitioning.model
    parts = DynamicParts(model.parts.specialized, model.parts.index, model.prepared)
    verdicts = dict(judgment.support.verdicts)
    verdicts |= {device.name: _verdicts(device, partitioning.plan, parts, verdicts[device.name]) for device in asked}
    if verdicts == judgment.support.verdicts:
        return None
    at_all = completed(replace(judgment, support=replace(judgment.support, verdicts=verdicts)), setting)
    return at_all if at_all.support.is_complete else None


def _is_decided(partitioning: Partitioning) -> bool:
    """Whether something else than what devices take says where nodes go."""
    demands, constraints = partitioning.judgment.demands, partitioning.setting.constraints
    told = demands.applied is not None or demands.bound is not None or demands.whole is not None
    return (
        told
        or constraints.policy.weighs
        or constraints.rules.limits != Limits()
        or constraints.fallback_at("load") == "forbid"
    )


def _can_be_asked(device: SessionDevice) -> bool:
    """Whether a device leaves sizes open; custom kernels are bound to types."""
    return device.capability.open_sizes is OpenSizes.ANY and not device.kernels.kernels


def is_worth_it(partitioning: Partitioning, here: Partitioning) -> bool:
    """Whether a partitioning for all sizes is not cut into many more segments than the one at some sizes."""
    return len(partitioning.plan.steps) <= len(here.plan.steps) + 2 * _MOST_CUTS


def _verdicts(device: SessionDevice, plan: Plan, parts: DynamicParts, before: Sequence[Verdict]) -> tuple[Verdict, ...]:
    """The verdicts of a device on every atom with open sizes; those from before where it would lose too much."""
    graph = plan.graph
    outputs = tuple(dict.fromkeys(name for name in graph.outputs if name in graph.producer))
    every = tuple(range(len(graph.nodes)))
    whole = Step(
        segment=0, device=device.name, nodes=every, inputs=graph.inputs, constants=(), outputs=outputs, released=()
    )
    model, nodes = with_weights(parts.part(whole), device.capability).model, parts.nodes(whole)
    said = named_call(device.name, "supported")(ask_supported, device.context, model, len(nodes))
    by_outputs: Mapping[tuple[str, ...], Verdict] = {
        node.outputs: verdict for node, verdict in zip(nodes, said, strict=True)
    }
    after = tuple(
        _at_open_sizes(verdict, all_of(by_outputs[graph.nodes[node].outputs] for node in atom))
        for atom, verdict in zip(graph.atoms, before, strict=True)
    )
    lost = sum(bool(one) and not other for one, other in zip(before, after, strict=True))
    return after if lost * _MOST_LOST <= sum(map(bool, before)) else tuple(before)


def _at_open_sizes(here: Verdict, opened: Verdict) -> Verdict:
    """The verdict on an atom with open sizes; what was refused for another reason than its form stays so."""
    if isinstance(here, Unsupported) and here.reason is not Reason.UNSUPPORTED_ATTRIBUTE:
        return here
    return (
        Unsupported(Reason.DYNAMIC_SHAPE, f"with open sizes, {opened.detail}")
        if isinstance(opened, Unsupported)
        else SUPPORTED
    )
