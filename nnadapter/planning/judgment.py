"""A model with what devices say of it and what a person demands: all that a placement needs to know.

A judgment is a value. What takes something back, a rule or a device that broke its promise, gives another one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from nnadapter.drivers.registry import devices_of_distribution
from nnadapter.offering.model import ShapedModel
from nnadapter.offering.offers import Answers
from nnadapter.onnx.brought_converters import bringing
from nnadapter.planning.constraints import Demands
from nnadapter.planning.setting import SessionDevice, Setting
from nnadapter.planning.support import Support, ask
from partition.verdict import Reason, Unsupported

Atoms = tuple[str, tuple[int, ...]]
"""A device and the atoms of one segment on it: what identifies a segment while the graph is cut again and again."""


@dataclass(frozen=True, eq=False, slots=True)
class Judgment:
    """What is placed."""

    model: ShapedModel
    support: Support
    demands: Demands
    whole_here: frozenset[str] = frozenset()
    """Nodes that are written down in the ops of their bodies at other sizes, perhaps, and not at these."""


def answers(judgment: Judgment, setting: Setting) -> Answers:
    """The verdicts of each device that accelerates."""
    verdicts = judgment.support.verdicts
    return [device_verdicts for name, device_verdicts in verdicts.items() if name in setting.accelerators]


def completed(judgment: Judgment, setting: Setting) -> Judgment:
    """The same with the last resort asked as well, if an atom has no device without it."""
    support, spare = judgment.support, setting.last_resort
    if spare.name in support.verdicts or support.is_complete:
        return judgment
    device_verdicts, applied = ask(spare, judgment.model), judgment.demands.applied
    allowed = device_verdicts if applied is None else applied.restricted(spare.name, device_verdicts)
    return replace(judgment, support=replace(support, verdicts={**support.verdicts, spare.name: allowed}))


def constrained(judgment: Judgment, setting: Setting) -> Judgment:
    """The same with what rules forbid taken back, and with what a plan file says.

    Raises:
        RulesError: a rule cannot be kept.
    """
    constraints, model, support = setting.constraints, judgment.model, judgment.support
    rules, specialized = constraints.rules, model.specialized
    applied = bound = None
    if rules.pins or rules.bans:  # most people have neither these nor a plan file
        from nnadapter.rules.applying import apply_rules

        applied = apply_rules(
            rules, specialized.own, model.graph, specialized.positions, support.devices, support.verdicts
        )
        support = replace(support, verdicts=applied.verdicts)
    if constraints.plan_file is not None:
        from nnadapter.plan_files.binding import bind_plan

        bound = bind_plan(constraints.plan_file, specialized, model.structure, support.devices, support.verdicts)
    return replace(judgment, support=support, demands=Demands(applied, bound))


def placed_as(judgment: Judgment, labels: Sequence[str] | None) -> Judgment:
    """The same with every atom on its device, as long as that takes it; with None, as the policy has it."""
    whole = None if labels is None else dict(enumerate(labels))
    return replace(judgment, demands=replace(judgment.demands, whole=whole))


def banning(judgment: Judgment, setting: Setting, bans: Mapping[Atoms, Unsupported]) -> Judgment:
    """The same with verdicts taken back: the atoms of each key are refused by its device, for that reason.

    Raises:
        RulesError: an atom is pinned to a device that does not have it any more.
    """
    support = judgment.support
    verdicts = {name: list(device_verdicts) for name, device_verdicts in support.verdicts.items()}
    on_host = list(support.on_host)
    for (device, atoms), refusal in bans.items():
        for atom in atoms:
            verdicts[device][atom] = refusal
            on_host[atom] = refusal if device == setting.host.name else on_host[atom]
            _refuse_broken_pin(judgment, device, atom, refusal)
    left = Support({name: tuple(device_verdicts) for name, device_verdicts in verdicts.items()}, tuple(on_host))
    return completed(replace(judgment, support=left), setting)


def _refuse_broken_pin(judgment: Judgment, device: str, atom: int, refusal: Unsupported) -> None:
    applied = judgment.demands.applied
    if applied is None or applied.pinned.get(atom, ("", ""))[0] != device:
        return
    error = applied.broken_pin(judgment.model.graph, atom, refusal)
    if error is not None:
        raise error


def homeless(judgment: Judgment, setting: Setting) -> str:
    """Why the first node that no device takes is taken by none."""
    graph, verdicts = judgment.model.graph, judgment.support.verdicts
    refusals = zip(*verdicts.values(), strict=True)
    atom, atom_verdicts = next(
        (atom, atom_verdicts) for atom, atom_verdicts in enumerate(refusals) if not any(atom_verdicts)
    )
    node = graph.nodes[graph.atoms[atom][0]]
    description = f"node {node.name!r} ({node.op_type})"
    refused = [why for why in atom_verdicts if isinstance(why, Unsupported)]
    invalid = next((why for why in refused if why.reason is Reason.INVALID_NODE), None)
    if invalid is not None:
        return f"{description} is no valid ONNX, so no device takes it: {invalid.detail}; export the model again"
    op, host = (node.domain, node.op_type), setting.host
    brought = bringing([op], devices_of_distribution, setting.accelerators) if node.domain else ""
    others = "".join(
        f"; {name!r}: {verdicts[name][atom]}"
        for name in verdicts
        if _may_take(setting.by_name[name], op) or (brought and name in setting.accelerators)
    )
    package = f"install the package that brings {node.domain}::{node.op_type}, " if node.domain else ""
    if brought and brought in others:  # its converter is not used, which was just said
        return (
            f"{description} is taken by no device, not even by {host.display_name}: {verdicts[host.name][atom]}{others}"
        )
    advice = brought or f"{package}give session options with the library that has the operator, or export without it"
    return (
        f"{description} is taken by no device, not even by {host.display_name}: {verdicts[host.name][atom]}{others}; "
        f"{advice}"
    )


def _may_take(device: SessionDevice, op: tuple[str, str]) -> bool:
    """Whether a device has a kernel for an op (domain and op type) that nobody converts, or declares its domain."""
    return op in device.kernels.by_op or op[0] in device.capability.domains
