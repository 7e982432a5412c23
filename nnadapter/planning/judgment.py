"""Judgment of a model: verdicts of converters and devices, constraints of the user, and bans.

A judgment is immutable; withdrawing a verdict makes a new judgment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from nnadapter.candidates.atoms import Answers
from nnadapter.candidates.segments import ShapedModel, calls_among, part_of, why_no_call, with_calls
from nnadapter.drivers.boundary import ask_supported
from nnadapter.drivers.capability import DeviceRole, ModelForm
from nnadapter.drivers.failures import named_call
from nnadapter.drivers.interface import SegmentModel
from nnadapter.drivers.registry import devices_of_distribution
from nnadapter.ir.model import Operation
from nnadapter.ir.operations.custom import CUSTOM
from nnadapter.onnx.references import inlined
from nnadapter.onnx.schemas import provider_text
from nnadapter.planning.setting import Demands, SessionBans, SessionDevice, Setting
from nnadapter.records import dataclass, replace
from partition import SUPPORTED, Graph, Reason, Step, Unsupported, Verdict, all_of

if TYPE_CHECKING:
    from nnadapter.store.bans import Ban


Verdicts = tuple[Verdict, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Support:
    """Verdicts on every atom of each device that was asked."""

    verdicts: Mapping[str, Verdicts]
    """Device -> verdicts, in order of preference, with a last resort if needed. A withdrawn verdict is a refusal."""
    on_host: Verdicts
    """The host's verdicts regardless of rules."""

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(self.verdicts)

    @property
    def is_complete(self) -> bool:
        return all(map(any, zip(*self.verdicts.values(), strict=True)))


def ask(device: SessionDevice, model: ShapedModel) -> Verdicts:
    """Return a device's verdict on every atom; a driver that raises an error refuses all.

    A last resort would accept almost every node. Nodes that the converter finds invalid are therefore refused for it.
    """
    conversion = model.conversion
    is_ir = device.capability.form is ModelForm.IR
    of_nodes = _operation_verdicts(device, model) if is_ir else _node_verdicts(device, model)
    if device.capability.role is DeviceRole.LAST_RESORT:
        of_nodes = list(map(_refuse_invalid, of_nodes, conversion.verdicts))
    return tuple(
        of_nodes[atom[0]] if len(atom) == 1 else all_of(of_nodes[node] for node in atom) for atom in model.graph.atoms
    )


def refusals(device: SessionDevice, model: ShapedModel) -> tuple[tuple[Unsupported, ...], ...]:
    """Return all refusals of each node, by the converter and by the device for each operation."""
    conversion = model.conversion
    if device.capability.form is ModelForm.ONNX:
        verdicts_by_node = [[verdict] for verdict in _node_verdicts(device, model)]
    else:
        operation_verdicts = _ask(device, conversion.model, len(conversion.model.operations))
        verdicts_by_node = [
            [first, *(operation_verdicts[operation] for operation in operations)]
            for first, operations in zip(conversion.verdicts, conversion.operations, strict=True)
        ]
    return tuple(
        tuple(dict.fromkeys(verdict for verdict in of_node if isinstance(verdict, Unsupported)))
        for of_node in verdicts_by_node
    )


def _operation_verdicts(device: SessionDevice, model: ShapedModel) -> Sequence[Verdict]:
    conversion = model.conversion
    operation_verdicts = _ask(device, conversion.model, len(conversion.model.operations))
    if CUSTOM in conversion.model.operation_types and not device.kernels.kernels:
        operation_verdicts = [
            _refuse_undeclared_domain(device, *pair)
            for pair in zip(operation_verdicts, conversion.model.operations, strict=True)
        ]
    if all(operation_verdicts) and all(conversion.verdicts):
        return [SUPPORTED] * len(conversion.verdicts)
    return [
        first if isinstance(first, Unsupported) else all_of(operation_verdicts[operation] for operation in operations)
        for first, operations in zip(conversion.verdicts, conversion.operations, strict=True)
    ]


def _refuse_undeclared_domain(device: SessionDevice, verdict: Verdict, operation: Operation) -> Verdict:
    domain = operation.attributes["domain"] if operation.type == CUSTOM else ""
    if operation.type != CUSTOM or domain in device.capability.domains:
        return verdict
    return Unsupported(Reason.UNSUPPORTED_DOMAIN, f"{device.display_name} does not declare the domain {domain!r}")


def _node_verdicts(device: SessionDevice, model: ShapedModel) -> Sequence[Verdict]:
    # Hosts judge operators by name, so they need no copy of the weights.
    graph, kernels = model.graph, device.kernels
    nodes = range(len(graph.nodes))
    offered = model.parts.remaining_model() if device.accelerates else model.parts.without_constants()
    offered = with_calls(offered, nodes, graph, calls_among(kernels, nodes, graph, model.conversion))
    if not device.capability.supports_external_initializers:
        offered = inlined(offered)
    verdicts = _ask(device, offered, len(nodes))
    if not kernels.kernels:
        return verdicts
    kernel_refusals = [
        None if verdict else why_no_call(kernels, node, graph, model.conversion)
        for node, verdict in enumerate(verdicts)
    ]
    return [verdict if refusal is None else refusal for verdict, refusal in zip(verdicts, kernel_refusals, strict=True)]


def _ask(device: SessionDevice, model: SegmentModel, expected: int) -> Sequence[Verdict]:
    verdicts: Sequence[Verdict] = named_call(device.name, "supported")(ask_supported, device.context, model, expected)
    return verdicts


def _refuse_invalid(verdict: Verdict, converted: Verdict) -> Verdict:
    invalid = isinstance(converted, Unsupported) and converted.reason is Reason.INVALID_NODE
    return converted if invalid else verdict


Atoms = tuple[str, tuple[int, ...]]
"""Identity of a segment during cutting: device and atoms."""


@dataclass(frozen=True, eq=False, slots=True)
class Judgment:
    """Model to be placed, with verdicts and demanded devices."""

    model: ShapedModel
    support: Support
    demands: Demands
    unexpanded_at_these_shapes: frozenset[str] = frozenset()
    """Names of nodes that may be expanded at other shapes."""


def answers(judgment: Judgment, setting: Setting) -> Answers:
    """Return the verdicts of each accelerator."""
    verdicts = judgment.support.verdicts
    return [device_verdicts for name, device_verdicts in verdicts.items() if name in setting.accelerators]


def completed(judgment: Judgment, setting: Setting) -> Judgment:
    """Return the judgment, with verdicts of the last resort added if some atom has no device."""
    support, spare = judgment.support, setting.last_resort
    if spare.name in support.verdicts or support.is_complete:
        return judgment
    device_verdicts, applied = ask(spare, judgment.model), judgment.demands.applied
    allowed = device_verdicts if applied is None else applied.restricted(spare.name, device_verdicts)
    return replace(judgment, support=replace(support, verdicts={**support.verdicts, spare.name: allowed}))


def constrained(judgment: Judgment, setting: Setting) -> Judgment:
    """Return the judgment with the rules applied and the plan file matched. Raises RulesError."""
    constraints, model, support = setting.constraints, judgment.model, judgment.support
    rules, specialized = constraints.rules, model.specialized
    applied = bound = None
    if rules.pins or rules.bans:  # rare
        from nnadapter.rules.application import apply_rules

        applied = apply_rules(
            rules, specialized.model_nodes, model.graph, specialized.positions, support.devices, support.verdicts,
            {device.name: device.precision for device in setting.devices},
        )  # fmt: skip
        support = replace(support, verdicts=applied.verdicts)
    if constraints.plan_file is not None:
        from nnadapter.planning.plan_files import bind_plan

        bound = bind_plan(constraints.plan_file, specialized, model.structure, support.devices, support.verdicts)
    return replace(judgment, support=support, demands=Demands(applied, bound))


def placed_as(judgment: Judgment, labels: Sequence[str] | None) -> Judgment:
    """Return the judgment with device `labels[atom]` demanded for each atom; with None, the policy decides."""
    placement = None if labels is None else dict(enumerate(labels))
    return replace(judgment, demands=replace(judgment.demands, complete_placement=placement))


def banning(judgment: Judgment, setting: Setting, bans: Mapping[Atoms, Unsupported]) -> Judgment:
    """Return the judgment with refusals of banned atoms; `bans` maps device and atoms to refusal.

    Raises:
        RulesError: an atom is pinned to a device that now refuses it.
    """
    support = judgment.support
    verdicts = {name: list(device_verdicts) for name, device_verdicts in support.verdicts.items()}
    on_host = list(support.on_host)
    for (device, atoms), refusal in bans.items():
        for atom in atoms:
            verdicts[device][atom] = refusal
            on_host[atom] = refusal if device == setting.host.name else on_host[atom]
            _refuse_broken_pin(judgment, device, atom, refusal)
    remaining_support = Support(
        {name: tuple(device_verdicts) for name, device_verdicts in verdicts.items()}, tuple(on_host)
    )
    return completed(replace(judgment, support=remaining_support), setting)


def _refuse_broken_pin(judgment: Judgment, device: str, atom: int, refusal: Unsupported) -> None:
    applied = judgment.demands.applied
    if applied is None or applied.pinned.get(atom, ("", ""))[0] != device:
        return
    error = applied.broken_pin(judgment.model.graph, atom, refusal)
    if error is not None:
        raise error


def unplaceable_message(judgment: Judgment, setting: Setting) -> str:
    """Return an error message about the first unplaceable node."""
    graph, verdicts = judgment.model.graph, judgment.support.verdicts
    refusals = zip(*verdicts.values(), strict=True)
    atom, atom_verdicts = next(
        (atom, atom_verdicts) for atom, atom_verdicts in enumerate(refusals) if not any(atom_verdicts)
    )
    node = graph.nodes[graph.atoms[atom][0]]
    description = f"node {node.name!r} ({node.op_type})"
    refused = [refusal for refusal in atom_verdicts if isinstance(refusal, Unsupported)]
    invalid = next((refusal for refusal in refused if refusal.reason is Reason.INVALID_NODE), None)
    if invalid is not None:
        return f"{description} is not valid ONNX, so no device takes it: {invalid.detail}; export the model again"
    op, host = (node.domain, node.op_type), setting.host
    brought = provider_text([op], devices_of_distribution, setting.accelerators) if node.domain else ""
    other_refusals = "".join(
        f"; {name!r}: {verdicts[name][atom]}"
        for name in verdicts
        if _may_take(setting.by_name[name], op) or (brought and name in setting.accelerators)
    )
    package = f"install the package that provides {node.domain}::{node.op_type}, " if node.domain else ""
    advice = brought or f"{package}give session options with the library that has the operator, or export without it"
    is_explained = brought and brought in other_refusals  # by why its converter is not used
    return (
        f"{description} is supported by no device, not even {host.display_name}: "
        f"{verdicts[host.name][atom]}{other_refusals}{'' if is_explained else f'; {advice}'}"
    )


def _may_take(device: SessionDevice, op: tuple[str, str]) -> bool:
    return op in device.kernels.by_op or op[0] in device.capability.domains


def barred(judgment: Judgment, setting: Setting) -> Judgment:
    """Return the judgment with refusals for nodes that are banned from a device."""
    bans: dict[Atoms, Unsupported] = {
        (device.name, (atom,)): Unsupported(Reason.BANNED, ban.text)
        for device in setting.devices
        if device.bans is not None and device.bans.of_nodes
        for atom, ban in _banned(judgment, device, device.bans)
    }
    return banning(judgment, setting, bans) if bans else judgment


def _banned(judgment: Judgment, device: SessionDevice, bans: SessionBans) -> Iterator[tuple[int, Ban]]:
    verdicts = judgment.support.verdicts[device.name]
    for atom in range(len(judgment.model.graph.atoms)):
        ban = bans.find(model_of(judgment.model, device, (atom,))) if verdicts[atom] else None
        if ban is not None and not ban.is_size:
            yield atom, ban


def model_of(model: ShapedModel, device: SessionDevice, atoms: Sequence[int]) -> SegmentModel:
    """Return atoms as one model, in the form that the device takes."""
    step = step_of(model.graph, device.name, atoms)
    return part_of(device.capability, device.kernels, step, model.conversion, model.parts).model


def step_of(graph: Graph, device: str, atoms: Sequence[int]) -> Step:
    """Return a step of these atoms alone."""
    nodes = tuple(sorted(node for atom in atoms for node in graph.atoms[atom]))
    node_set, output_names = frozenset(nodes), frozenset(graph.outputs)
    results = [name for node in nodes for name in graph.nodes[node].outputs if name]
    inside = frozenset(results)
    read = dict.fromkeys(name for node in nodes for name in graph.nodes[node].reads if name not in inside)
    outside = [
        name for name in results if name in output_names or not node_set.issuperset(graph.consumers.get(name, ()))
    ]
    return Step(
        segment=0,
        device=device,
        nodes=nodes,
        inputs=tuple(name for name in read if name not in graph.constants),
        constants=tuple(name for name in read if name in graph.constants),
        outputs=tuple(outside or results),
        released=(),
    )
