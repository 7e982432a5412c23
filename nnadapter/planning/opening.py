"""A partitioning whose sizes are left open: one plan for all shapes of inputs, where its devices can.

It is the plan at some shapes, where no other shapes would have made another one: devices said yes, or no for reasons
that hold at all shapes, and neither costs nor limits decided. Every device is asked once more, for its segments with
their sizes open; the host takes any, ONNX devices those that they say yes to, if they have `Capability.open_sizes`. Why
not is a refusal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from nnadapter.drivers.border import ask_admission, ask_supported
from nnadapter.drivers.capability import OpenSizes
from nnadapter.drivers.crashes import named_call
from nnadapter.ir.model import Model
from nnadapter.offering.conversion_tracing import OpenConversion
from nnadapter.offering.expansions import AT_ALL_SHAPES
from nnadapter.offering.open_conversion import open_conversion, open_ir_part
from nnadapter.offering.open_parts import OpenParts
from nnadapter.offering.segments import Part
from nnadapter.onnx.node import OnnxNode
from nnadapter.onnx.preparation.prepare import Prepared
from nnadapter.onnx.sizes import MEASURING
from nnadapter.planning.setting import SessionDevice
from nnadapter.planning.settling import AdmittedSegment, Partitioning
from nnadapter.planning.size_bounds import beyond_bounds
from nnadapter.planning.size_class import SizeClass
from nnadapter.rules.values import Limits
from partition.plan import Plan, Step
from partition.verdict import Reason, Unsupported

_AT_ALL_SHAPES = AT_ALL_SHAPES | {Reason.RULE}


@dataclass(frozen=True, eq=False)
class Opened:
    """A partitioning with its sizes left open."""

    partitioning: Partitioning
    sizes: SizeClass | None
    """The sizes for which it holds; None where that is looked through (`planning.bounds`)."""

    @property
    def is_looked_through(self) -> bool:
        """Whether a device takes ONNX, whose engine asks for tensors that have elements."""
        devices = self.partitioning.setting.devices
        return any(device.accelerates and not device.takes_ir for device in devices)


def opened(partitioning: Partitioning) -> Opened | Unsupported:
    """Return the partitioning for many sizes of inputs; or why there is none."""
    model, plan, setting = partitioning.model, partitioning.plan, partitioning.setting
    hanging = next(_hanging_on_sizes(partitioning), None)
    if hanging is not None:
        return hanging
    parts = OpenParts(model.parts.specialized, model.parts.index, model.prepared)
    if parts.sized_outputs:
        return _refused(f"output {parts.sized_outputs[0]!r} follows from the shapes of inputs alone")
    takes_ir = {device.name for device in setting.devices if device.takes_ir}
    conversion = open_conversion(model) if takes_ir else None
    if takes_ir and conversion is None:
        return _refused("how the sizes of its values follow from those of inputs is not known for all of them")
    cut = [
        open_ir_part(conversion, step) if conversion is not None and step.device in takes_ir else parts.part(step)
        for step in plan.steps
    ]
    given = _given(plan, cut, conversion)
    lost = _lost(plan, cut, given)
    if lost is not None:
        return lost
    pieces: list[AdmittedSegment | None] = []
    for step, part in zip(plan.steps, cut, strict=True):
        piece = _admitted(setting.by_name[step.device], step, part)
        if isinstance(piece, Unsupported):
            return piece
        pieces.append(piece)
    open_partitioning = replace(
        partitioning,
        judgment=replace(partitioning.judgment, model=replace(model, parts=parts)),
        plan=replace(plan, graph=parts.open_graph, steps=_rejoined(plan, cut, parts)),
        pieces=tuple(pieces),
    )
    return Opened(open_partitioning, None if conversion is None else SizeClass.of(conversion, given))


def growing_inputs(prepared: Prepared) -> dict[str, int]:
    """Return the inputs that may have no elements where sizes are open, as a cache at its start, and along which axis.

    Nothing reads what they hold but Concat along that axis, which joins something else to them.
    """
    graph, axes = prepared.graph, dict[str, int]()
    for name in graph.inputs:
        shape = graph.value(name).shape or ()
        rank = len(shape)
        readers = [prepared.nodes[index] for index in graph.consumers.get(name, ())]
        joins = [node for node in readers if node.domain or node.op_type not in MEASURING]
        along = {node.integer("axis", 0) % rank for node in joins if rank and _is_concat(node)}
        if len(along) == 1 and all(map(_is_concat, joins)) and name not in graph.outputs:
            (axis,) = along
            axes |= {} if isinstance(shape[axis], int) else {name: axis}
    alone = {
        name for node in prepared.nodes if _is_concat(node) and axes.keys() >= set(node.inputs) for name in node.inputs
    }
    return {name: axis for name, axis in axes.items() if name not in alone}


def _is_concat(node: OnnxNode) -> bool:
    return node.op_type == "Concat" and not node.domain


def _hanging_on_sizes(partitioning: Partitioning) -> Iterator[Unsupported]:
    """What might have been decided otherwise at other shapes."""
    setting, graph = partitioning.setting, partitioning.plan.graph
    constraints = setting.constraints
    if constraints.policy.weighs:
        yield _refused(f"policy {constraints.policy.name!r} weighs costs, which hang on sizes")
    if constraints.rules.limits != Limits():
        yield _refused("the limits of rules hang on sizes")
    ranks = partitioning.model.prepared.graph
    for name in ranks.inputs:
        if ranks.value(name).shape is None:
            yield _refused(f"the model does not say how many dimensions input {name!r} has")
    for name in graph.producer:
        if 0 in (graph.value(name).shape or ()):
            yield _refused(f"{name!r} has no elements at these shapes")
    for device in setting.devices:
        if not device.accelerates:
            continue
        capability = device.capability
        if capability.open_sizes is OpenSizes.NONE:
            yield _refused(f"{device.name} compiles for fixed sizes")
            continue
        if capability.open_sizes is OpenSizes.BOUNDS and not device.takes_ir:
            yield _refused(f"{device.name} gives bounds of sizes, which are kept in adapter IR alone, and takes ONNX")
            continue
        for atom, verdict in enumerate(partitioning.judgment.support.verdicts.get(device.name, ())):
            if isinstance(verdict, Unsupported) and verdict.reason not in _AT_ALL_SHAPES:
                name = graph.nodes[graph.atoms[atom][0]].name
                yield _refused(f"{device.name} may take {name!r} at other sizes, having refused it for {verdict}")


def _admitted(device: SessionDevice, step: Step, part: Part) -> AdmittedSegment | Unsupported | None:
    """A segment that its device takes with open sizes; None for the host, which takes any."""
    if device.is_host:
        return None
    if isinstance(part.model, Model):
        beyond = beyond_bounds(part.model, device.capability)
        if beyond:
            detail = f"{device.name} does not take segment {step.segment} at these sizes: {beyond}"
            return Unsupported(Reason.SEGMENT_LIMIT, detail)
        asked = named_call(device.name, "supported", step.segment)
        verdicts = asked(ask_supported, device.context, part.model, len(part.model.operations))
        refused = next((verdict for verdict in verdicts if isinstance(verdict, Unsupported)), None)
        if refused is not None:
            return _refused(f"{device.name} does not take segment {step.segment} with open sizes: {refused.detail}")
    admission = named_call(device.name, "admit", step.segment)(ask_admission, device.context, part.model)
    verdict = admission.verdict
    if isinstance(verdict, Unsupported):
        return _refused(f"{device.name} does not take segment {step.segment} with open sizes: {verdict.detail}")
    return AdmittedSegment(part, admission)


def _given(plan: Plan, parts: Sequence[Part], conversion: OpenConversion | None) -> tuple[str, ...]:
    """What parts read that is known of shapes before a run."""
    there = {*plan.graph.inputs, *(name for step in plan.steps for name in step.outputs)}
    read = dict.fromkeys(name for part in parts for name in part.inputs if name not in there)
    return () if conversion is None else tuple(name for name in read if name in conversion.sizes)


def _lost(plan: Plan, parts: Sequence[Part], given: Sequence[str]) -> Unsupported | None:
    """Why a part cannot have what it reads: sizes of a value that stays inside of another segment."""
    there = {*plan.graph.inputs, *given}
    for step, part in zip(plan.steps, parts, strict=True):
        for name in part.inputs:
            if name not in there:
                return _refused(f"segment {step.segment} needs the size of {name!r}, which another one keeps to itself")
        there.update(step.outputs)
    return None


def _rejoined(plan: Plan, parts: Sequence[Part], onnx_parts: OpenParts) -> tuple[Step, ...]:
    """The steps with what their parts read, which may be more than before, and kept as long as somebody reads it.

    What fails runs on the host as ONNX, whose part may read more than one in adapter IR.
    """
    read = [
        dict.fromkeys((*part.inputs, *onnx_parts.reads(step))) for step, part in zip(plan.steps, parts, strict=True)
    ]
    last = {name: number for number, names in enumerate(read) for name in names}
    kept = frozenset(plan.graph.outputs)
    there = {*plan.graph.inputs, *(name for step in plan.steps for name in step.outputs)}
    return tuple(
        replace(
            step,
            inputs=part.inputs,
            released=tuple(name for name in names if last[name] == number and name in there and name not in kept),
        )
        for number, (step, part, names) in enumerate(zip(plan.steps, parts, read, strict=True))
    )


def _refused(detail: str) -> Unsupported:
    return Unsupported(Reason.DYNAMIC_SHAPE, detail)
