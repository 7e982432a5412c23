"""Dynamic partitioning: one plan for all input shapes.

A plan serves all input shapes if its verdicts hold at all of them and the rules have no limits. If costs decided the
placement, the plan serves only nearby shapes. Every device is then asked again with dynamic dimensions. The host
accepts any segment. A segment that an adapter IR device refuses is specialized per set of sizes.

ONNX engines need non-empty tensors, and windows that fit their inputs. OpenVINO's dynamic programs fail otherwise and
cannot be trusted afterwards, so `is_full` and `planning.bounds` check new ranges of shapes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from functools import cached_property
from typing import Any

from nnadapter.candidates.atoms import ASSUMED_PERMANENT
from nnadapter.candidates.conversion_tracing import DynamicConversion, shape_derived_values_of
from nnadapter.candidates.conversions import convert_dynamic, dynamic_ir_part
from nnadapter.candidates.part import Part, SpecializablePart
from nnadapter.candidates.segments import DynamicParts, calls_among, with_weights
from nnadapter.converters.convert import Conversion
from nnadapter.drivers import SUPPORTED, DynamicShapes, Reason, Unsupported, Verdict, all_of
from nnadapter.drivers.boundary import ask_admission, ask_supported
from nnadapter.drivers.failures import named_call
from nnadapter.errors import InvalidModelError
from nnadapter.ir.model import ABSENT, Model
from nnadapter.ir.structure import GuardedShapes
from nnadapter.onnx.graphs import MEASURING
from nnadapter.onnx.preparation.default_sizes import joined_along, wide_windows
from nnadapter.onnx.preparation.prepare import Prepared, Specialized, specialize
from nnadapter.onnx.signature import Shapes
from nnadapter.planning.bounds import beyond_bounds
from nnadapter.planning.indices import indices_hold, returned_names, unchecked_indices
from nnadapter.planning.judgment import Judgment, completed
from nnadapter.planning.setting import SessionDevice
from nnadapter.planning.settling import AdmittedSegment, Partitioning
from nnadapter.records import dataclass, field, replace
from nnadapter.rules.values import Limits
from partition.plan import Plan, Segment, Step, make_plan


def is_full(prepared: Prepared, nodes: Collection[int], shapes: Shapes) -> bool:
    """Return whether `nodes` has all nodes that run at these shapes, no tensor is empty, and all windows fit."""
    try:
        specialized = specialize(prepared, shapes)
    except InvalidModelError:
        return False
    results = (specialized.graph.value(name) for node in specialized.graph.nodes for name in node.outputs if name)
    folded = frozenset(nodes).difference(specialized.positions)
    return (
        frozenset(specialized.positions) <= frozenset(nodes)
        and not any(0 in (value.shape or ()) for value in results)
        and all(_has_elements(specialized, index) for index in folded)
        and not wide_windows(specialized)
    )


def _has_elements(specialized: Specialized, index: int) -> bool:
    shapes = (
        specialized.graph.value(name).static_shape for name in specialized.model_nodes.nodes[index].outputs if name
    )
    return all(shape is not None and 0 not in shape for shape in shapes)


def with_sizes_in_order(plan: Plan, parts: DynamicParts, takes_ir: Set[str]) -> Plan:
    """Return the plan with every atom after the producers of all values and sizes that it needs.

    With static shapes, a node that needs only the size of a value may run before its producer. Here it moves to a later
    segment, or to a new one at the end. Adapter IR segments receive sizes or compute them.
    """
    homes = _homes(plan)
    onnx_steps = [step for step in plan.steps if step.device not in takes_ir]
    if not any(homes.get(name, -1) > step.segment for step in onnx_steps for name in parts.reads(step)):
        return plan
    atoms_by_place: dict[int, list[int]] = defaultdict(list)
    for atom, place in enumerate(_places(plan, parts, takes_ir, homes)):
        atoms_by_place[place].append(atom)
    segments = [
        Segment(plan.placement[atoms_by_place[place][0]], tuple(atoms_by_place[place]))
        for place in sorted(atoms_by_place)
    ]
    return make_plan(plan.graph, plan.devices, plan.verdicts, plan.placement, segments, exact=plan.exact)


def _homes(plan: Plan) -> dict[str, int]:
    nodes = plan.graph.nodes
    return {
        name: number for number, step in enumerate(plan.steps) for node in step.nodes for name in nodes[node].outputs
    }


def _places(plan: Plan, parts: DynamicParts, takes_ir: Set[str], homes: dict[str, int]) -> Sequence[int]:
    graph, devices = plan.graph, [step.device for step in plan.steps]
    places = [0] * len(graph.atoms)
    for number, step in enumerate(plan.steps):
        for node in step.nodes:
            places[graph.atom_of[node]] = number
    read = [_read(plan, atom, places[atom], parts, takes_ir) for atom in range(len(graph.atoms))]
    makers = {name: graph.atom_of[node] for name, node in graph.producer.items() if name in homes}
    changed = True
    while changed:
        changed = False
        for atom, names in enumerate(read):
            least = max((places[makers[name]] for name in names if name in makers), default=0)
            if least <= places[atom]:
                continue
            device = plan.placement[atom]
            if device not in devices[least:]:
                devices.append(device)
            places[atom], changed = devices.index(device, least), True
    return places


def _read(plan: Plan, atom: int, place: int, parts: DynamicParts, takes_ir: Set[str]) -> tuple[str, ...]:
    nodes, step = plan.graph.atoms[atom], plan.steps[place]
    reads = tuple(name for node in nodes for name in plan.graph.nodes[node].reads)
    if step.device in takes_ir:
        return reads
    results = tuple(name for node in nodes for name in plan.graph.nodes[node].outputs if name)
    return (*reads, *parts.reads(_step(place, step.device, sorted(nodes), (), results)))


_MOST_LOST = 4
"""Divisor: a device loses at most one in this many of its atoms in a dynamic plan."""
_MOST_CUTS = 4
"""Maximum number of additional cuts in a dynamic plan; each costs switches in every run."""


def with_dynamic_verdicts(partitioning: Partitioning) -> Judgment | None:
    """Return the judgment with the verdicts of ONNX devices on the graph with dynamic dimensions.

    A static verdict may hold only at these sizes, such as for a window that divides them evenly. Return None if all
    verdicts remain, a node becomes unplaceable, or rules, plan files or costs decide the placement.
    """
    judgment, setting = partitioning.judgment, partitioning.setting
    onnx_devices = [device for device in setting.devices if device.accelerates and not device.takes_ir]
    can_be_asked = (  # custom kernels require static types
        device.capability.dynamic_shapes is DynamicShapes.ANY and not device.kernels.kernels for device in onnx_devices
    )
    if _is_decided(partitioning) or not all(can_be_asked):
        return None
    model = partitioning.model
    parts = DynamicParts(model.parts.specialized, model.parts.index, model.prepared)
    verdicts = dict(judgment.support.verdicts)
    verdicts |= {
        device.name: _verdicts(device, partitioning.plan, parts, verdicts[device.name]) for device in onnx_devices
    }
    if verdicts == judgment.support.verdicts:
        return None
    at_all = completed(replace(judgment, support=replace(judgment.support, verdicts=verdicts)), setting)
    return at_all if at_all.support.is_complete else None


def _is_decided(partitioning: Partitioning) -> bool:
    demands, constraints = partitioning.judgment.demands, partitioning.setting.constraints
    is_demanded = demands.applied is not None or demands.bound is not None or demands.complete_placement is not None
    return (
        is_demanded
        or constraints.policy.weighs
        or constraints.rules.limits != Limits()
        or constraints.fallback_at("load") == "forbid"
    )


def is_worth_it(partitioning: Partitioning, static_partitioning: Partitioning) -> bool:
    """Return whether a dynamic partitioning has at most a few more segments than the static one."""
    return len(partitioning.plan.steps) <= len(static_partitioning.plan.steps) + 2 * _MOST_CUTS


def _verdicts(
    device: SessionDevice, plan: Plan, parts: DynamicParts, static_verdicts: Sequence[Verdict]
) -> tuple[Verdict, ...]:
    """Return a device's verdicts with dynamic dimensions; the static ones if the device would lose too many nodes."""
    graph = plan.graph
    outputs = tuple(dict.fromkeys(name for name in graph.outputs if name in graph.producer))
    graph_step = _step(0, device.name, range(len(graph.nodes)), graph.inputs, outputs)
    model, nodes = with_weights(parts.part(graph_step), device.capability).model, parts.nodes(graph_step)
    node_verdicts = named_call(device.name, "supported")(ask_supported, device.context, model, len(nodes))
    by_outputs: Mapping[tuple[str, ...], Verdict] = {
        node.outputs: verdict for node, verdict in zip(nodes, node_verdicts, strict=True)
    }
    dynamic_verdicts = tuple(
        _at_open_sizes(verdict, all_of(by_outputs[graph.nodes[node].outputs] for node in atom))
        for atom, verdict in zip(graph.atoms, static_verdicts, strict=True)
    )
    lost = sum(
        bool(static_verdict) and not dynamic_verdict
        for static_verdict, dynamic_verdict in zip(static_verdicts, dynamic_verdicts, strict=True)
    )
    return dynamic_verdicts if lost * _MOST_LOST <= sum(map(bool, static_verdicts)) else tuple(static_verdicts)


def _at_open_sizes(static_verdict: Verdict, dynamic_verdict: Verdict) -> Verdict:
    if isinstance(static_verdict, Unsupported) and static_verdict.reason is not Reason.UNSUPPORTED_ATTRIBUTE:
        return static_verdict
    return (
        Unsupported(Reason.DYNAMIC_SHAPE, f"the device refuses the node with dynamic shapes: {dynamic_verdict.detail}")
        if isinstance(dynamic_verdict, Unsupported)
        else SUPPORTED
    )


class ShapeDependentRefusal(Unsupported):
    """Refusal that may not hold at other shapes."""


@dataclass(frozen=True, eq=False)
class DynamicPartitioning:
    """Partitioning with dynamic shapes, and its conditions."""

    partitioning: Partitioning
    sizes: GuardedShapes | None
    """Guarded shapes; None if `planning.bounds` checks shapes instead."""
    specializable: Mapping[int, SpecializablePart] = field(default_factory=dict)
    why_fixed: str = ""
    unchecked: str = ""
    """Description of the indices to check at every new shape, if any."""

    @cached_property
    def is_looked_through(self) -> bool:
        """True if an ONNX device has a segment, so that new shapes are first checked for empty tensors."""
        by_name = self.partitioning.setting.by_name
        devices = (by_name[step.device] for step in self.partitioning.plan.steps)
        return any(device.accelerates and not device.takes_ir for device in devices)

    def indices_hold(self, shapes: Shapes) -> bool:
        partitioning = self.partitioning
        model, devices = partitioning.model, partitioning.setting.devices
        names = frozenset(device.name for device in devices if not device.capability.checks_indices)
        return indices_hold(model, partitioning.plan, names, specialize(model.prepared, shapes))


def partition_dynamic(partitioning: Partitioning) -> DynamicPartitioning | Unsupported:
    """Return a dynamic partitioning, or the reason why there is none."""
    model, plan, setting = partitioning.model, partitioning.plan, partitioning.setting
    for refusal in _shape_dependent_refusals(partitioning):
        return refusal
    parts = DynamicParts(model.parts.specialized, model.parts.index, model.prepared)
    if parts.sized_outputs and setting.constraints.fallback_at("load") == "forbid":
        return _refused(f"output {parts.sized_outputs[0]!r} depends on input shapes alone")
    takes_ir = {device.name for device in setting.devices if device.takes_ir}
    plan = with_sizes_in_order(plan, parts, takes_ir)
    plan = _with_sized_outputs(plan, parts, setting.host.name)
    plan = _export_shape_sources(plan, parts, takes_ir)
    conversion = convert_dynamic(model) if takes_ir else None
    if conversion is None and any(step.device in takes_ir for step in plan.steps):
        return _refused_here("some sizes could not be derived from input sizes")
    for refusal in _taken_elsewhere(partitioning, conversion):
        return refusal
    segments = _open_segments(partitioning, plan, parts, conversion)
    if isinstance(segments, Unsupported):
        return segments
    for refusal in _missing_sizes(plan, segments, conversion):
        return refusal
    open_model = replace(model, parts=parts)
    sizes, specializable = (None, {}) if conversion is None else _by_sizes(plan, segments, conversion)
    read = [
        segment.part.inputs if step.segment not in specializable else specializable[step.segment].inputs
        for step, segment in zip(plan.steps, segments, strict=True)
    ]
    open_plan = replace(plan, graph=parts.open_graph, steps=_rejoined(plan, read, parts))
    unchecked = ""
    for step, reads in zip(open_plan.steps, read, strict=True):
        if setting.by_name[step.device].capability.checks_indices:
            continue
        words, is_of_shapes = unchecked_indices(open_model, open_plan, step, reads)
        if not is_of_shapes and words:
            return _refused_here(words)
        unchecked = unchecked or words
    open_partitioning = replace(
        partitioning,
        judgment=replace(partitioning.judgment, model=open_model),
        plan=open_plan,
        pieces=tuple(segment.piece for segment in segments),
    )
    why_fixed = next((segment.why_fixed for segment in segments if segment.why_fixed), "")
    return DynamicPartitioning(open_partitioning, sizes, specializable, why_fixed, unchecked)


def growing_inputs(prepared: Prepared) -> dict[str, int]:
    """Return each input that may start empty, such as a KV cache, with its growing axis.

    Only concatenation along that axis may read the contents of such an input.
    """
    graph, axes = prepared.graph, dict[str, int]()
    for name in graph.inputs:
        shape = graph.value(name).shape or ()
        rank = len(shape)
        readers = [prepared.nodes[index] for index in graph.consumers.get(name, ())]
        joins = [node for node in readers if node.domain or node.op_type not in MEASURING]
        along = {joined_along(node, name, rank) for node in joins}
        axis = along.pop() if len(along) == 1 and name not in graph.outputs else None
        if axis is not None and not isinstance(shape[axis], int):
            axes[name] = axis
    concatenations = [node for node in prepared.nodes if node.op_type == "Concat" and not node.domain]
    concatenated_inputs = {name for node in concatenations if axes.keys() >= set(node.inputs) for name in node.inputs}
    return {name: axis for name, axis in axes.items() if name not in concatenated_inputs}


def unread_inputs(prepared: Prepared) -> frozenset[str]:
    """Return the inputs that no output depends on, such as inputs of an untaken branch."""
    graph = prepared.graph
    read, waiting = set[str](), list(graph.outputs)
    while waiting:
        name = waiting.pop()
        if name not in read and name not in prepared.constants:
            read.add(name)
            index = graph.producer.get(name)
            waiting.extend(graph.nodes[index].reads if index is not None else ())
    return frozenset(graph.inputs) - read


def _shape_dependent_refusals(partitioning: Partitioning) -> Iterator[Unsupported]:
    setting, graph = partitioning.setting, partitioning.plan.graph
    constraints = setting.constraints
    if constraints.rules.limits != Limits():
        yield _refused("limits of rules depend on sizes")
    ranks = partitioning.model.prepared.graph
    for name in ranks.inputs:
        if ranks.value(name).shape is None:
            yield _refused(f"the rank of input {name!r} is unknown")
    for name in graph.producer:
        if 0 in (graph.value(name).shape or ()):
            yield _refused_here(f"{name!r} has no elements at these shapes")
    if any(device.accelerates and not device.takes_ir for device in setting.devices):
        wide = wide_windows(partitioning.model.parts.specialized)
        if wide:
            yield _refused_here(f"the window of {wide!r} is larger than its input at these shapes")
    for name in sorted(partitioning.judgment.unexpanded_at_these_shapes):
        yield _refused_here(f"devices refuse an op of {name!r} at these sizes and may take it at others")
    for device in setting.devices:
        if not device.accelerates:
            continue
        capability = device.capability
        if capability.dynamic_shapes is DynamicShapes.NONE and not device.takes_ir:
            yield _refused(f"{device.name} compiles for static shapes only")
            continue
        if capability.dynamic_shapes is DynamicShapes.BOUNDED and not device.takes_ir:
            yield _refused(f"{device.name} takes ONNX and declares dimension bounds, which only adapter IR supports")


def _taken_elsewhere(partitioning: Partitioning, conversion: DynamicConversion | None) -> Iterator[Unsupported]:
    graph = partitioning.plan.graph
    for device in partitioning.setting.devices:
        verdicts = partitioning.judgment.support.verdicts.get(device.name, ()) if device.accelerates else ()
        for atom, verdict in enumerate(verdicts):
            if not isinstance(verdict, Unsupported) or verdict.reason in ASSUMED_PERMANENT:
                continue
            nodes = graph.atoms[atom]
            if verdict.reason is Reason.UNSUPPORTED_ATTRIBUTE and _refuses_open(device, nodes, conversion):
                continue
            name = graph.nodes[nodes[0]].name
            yield _refused_here(f"{device.name} may take {name!r} at other sizes; here it refuses it: {verdict}")


def _refuses_open(device: SessionDevice, nodes: Sequence[int], conversion: DynamicConversion | None) -> bool:
    """Return whether an adapter IR device repeats its refusal with dynamic dimensions. Guards of its answer remain."""
    if conversion is None or not device.takes_ir or device.capability.dynamic_shapes is DynamicShapes.NONE:
        return False
    ir_conversion = conversion.conversion
    if not all(ir_conversion.verdicts[node] for node in nodes):
        return True
    operations = sorted(operation for node in nodes for operation in ir_conversion.operations[node])
    read = dict.fromkeys(name for operation in operations for name in ir_conversion.model.operations[operation].inputs)
    results = [name for operation in operations for name in ir_conversion.model.operations[operation].outputs]
    part = ir_conversion.part(
        operations, [name for name in read if name not in results and not _is_known(ir_conversion, name)], results
    )
    call_driver = named_call(device.name, "supported")
    return not beyond_bounds(part, device.capability) and not all(
        call_driver(ask_supported, device.context, part, len(operations))
    )


def _is_known(conversion: Conversion, operand: int) -> bool:
    return operand == ABSENT or conversion.model.operands[operand].value is not None


@dataclass(frozen=True, eq=False)
class _OpenSegment:
    part: Part
    piece: AdmittedSegment | None
    why_fixed: str = ""


def _open_segments(
    partitioning: Partitioning, plan: Plan, parts: DynamicParts, conversion: DynamicConversion | None
) -> list[_OpenSegment] | Unsupported:
    model, segments = partitioning.model, list[_OpenSegment]()
    for step in plan.steps:
        device = partitioning.setting.by_name[step.device]
        if conversion is not None and device.takes_ir:
            if not all(conversion.conversion.verdicts[node] for node in step.nodes):
                return _refused(f"segment {step.segment} can be converted for these sizes only")
            segments.append(_ir_segment(device, step, conversion))
            continue
        if calls_among(device.kernels, step.nodes, model.graph, model.conversion):
            return _refused(f"custom kernels of {step.device!r} compute some nodes and require static types")
        part = with_weights(parts.part(step), device.capability)
        piece = _admitted(device, step, part)
        if isinstance(piece, Unsupported):
            return piece
        segments.append(_OpenSegment(part, piece))
    return segments


def _by_sizes(
    plan: Plan, segments: Sequence[_OpenSegment], conversion: DynamicConversion
) -> tuple[GuardedShapes, dict[int, SpecializablePart]]:
    shape_derived_names = _known_values(conversion)
    names_read = _shape_derived_values(
        plan, [segment for segment in segments if not segment.why_fixed], shape_derived_names
    )
    sizes = GuardedShapes(conversion.shapes, conversion.trace, shape_derived_values_of(conversion, names_read))
    specializable = {
        step.segment: SpecializablePart(
            segment.part,
            shape_derived_values_of(conversion, _shape_derived_values(plan, [segment], shape_derived_names)),
        )
        for step, segment in zip(plan.steps, segments, strict=True)
        if segment.why_fixed
    }
    return sizes, specializable


def _ir_segment(device: SessionDevice, step: Step, conversion: DynamicConversion) -> _OpenSegment:
    """Return a segment in the first of these forms that its device accepts.

    1. The segment computes shape-derived tables.
    2. It reads these tables as inputs.
    3. It is specialized per set of sizes.

    A refusal of form 1 may set guards, even by sizes in its message. They are rolled back if form 2 is accepted.
    """
    reading_tables = dynamic_ir_part(conversion, step, with_tables=False)
    if device.capability.dynamic_shapes is DynamicShapes.NONE:
        return _OpenSegment(reading_tables, None, f"{device.name} compiles for static shapes only")
    computing_tables = dynamic_ir_part(conversion, step)
    reason, decided, trace = "", dict[int, Any](), conversion.trace
    for part in (
        (computing_tables, reading_tables) if computing_tables.inputs != reading_tables.inputs else (computing_tables,)
    ):
        guard_count = len(trace.answers)
        piece = _admitted(device, step, part)
        if not isinstance(piece, Unsupported):
            return _OpenSegment(part, piece)
        reason = reason or piece.detail
        decided |= trace.rollback_guards(guard_count)
    trace.restore_guards(decided)  # the device may take the segment at other sizes
    return _OpenSegment(reading_tables, None, reason)


def _admitted(device: SessionDevice, step: Step, part: Part) -> AdmittedSegment | Unsupported | None:
    if device.is_host:
        return None
    if isinstance(part.model, Model):
        beyond = beyond_bounds(part.model, device.capability)
        if beyond:
            return _refused_here(f"{device.name} does not take segment {step.segment} at these sizes: {beyond}")
        call_driver = named_call(device.name, "supported", step.segment)
        verdicts = call_driver(ask_supported, device.context, part.model, len(part.model.operations))
        refused = next((verdict for verdict in verdicts if isinstance(verdict, Unsupported)), None)
        if refused is not None:
            return _refused(f"{device.name} does not take segment {step.segment} with dynamic shapes: {refused.detail}")
    admission = named_call(device.name, "admit", step.segment)(ask_admission, device.context, part.model)
    verdict = admission.verdict
    if isinstance(verdict, Unsupported):
        return _refused(f"{device.name} does not take segment {step.segment} with dynamic shapes: {verdict.detail}")
    return AdmittedSegment(part, admission)


def _known_values(conversion: DynamicConversion) -> Set[str]:
    return conversion.sizes.keys() | conversion.tables.keys()


def _shape_derived_values(
    plan: Plan, segments: Iterable[_OpenSegment], shape_derived_names: Set[str]
) -> tuple[str, ...]:
    available_names = returned_names(plan)
    read = dict.fromkeys(name for segment in segments for name in segment.part.inputs if name not in available_names)
    return tuple(name for name in read if name in shape_derived_names)


def _with_sized_outputs(plan: Plan, parts: DynamicParts, host: str) -> Plan:
    if not parts.sized_outputs:
        return plan
    return replace(plan, steps=(*plan.steps, _step(len(plan.steps), host, (), (), parts.sized_outputs)))


def _step(number: int, device: str, nodes: Sequence[int], inputs: Sequence[str], outputs: Sequence[str]) -> Step:
    return Step(
        segment=number,
        device=device,
        nodes=tuple(nodes),
        inputs=tuple(inputs),
        constants=(),
        outputs=tuple(outputs),
        released=(),
    )


def _export_shape_sources(plan: Plan, parts: DynamicParts, takes_ir: Set[str]) -> Plan:
    """Return the plan in which steps also output values whose sizes later ONNX segments need."""
    homes = _homes(plan)
    outputs = [dict.fromkeys(step.outputs) for step in plan.steps]
    for number, step in enumerate(plan.steps):
        for name in () if step.device in takes_ir else parts.reads(step):
            maker = homes.get(name, number)
            if maker < number:
                outputs[maker][name] = None
    steps = (replace(step, outputs=tuple(names)) for step, names in zip(plan.steps, outputs, strict=True))
    return replace(plan, steps=tuple(steps))


def _missing_sizes(
    plan: Plan, segments: Sequence[_OpenSegment], conversion: DynamicConversion | None
) -> Iterator[Unsupported]:
    shape_derived_names = set() if conversion is None else _known_values(conversion)
    available_names = {*plan.graph.inputs, *_shape_derived_values(plan, segments, shape_derived_names)}
    for step, segment in zip(plan.steps, segments, strict=True):
        for name in segment.part.inputs:
            if name not in available_names:
                yield _refused(f"segment {step.segment} needs the size of {name!r}, which a later segment produces")
        available_names.update(step.outputs)


def _rejoined(plan: Plan, inputs: Sequence[tuple[str, ...]], onnx_parts: DynamicParts) -> tuple[Step, ...]:
    """Return the plan's steps with new `inputs`, and with values released after their last reader.

    ONNX parts are readers too: fallbacks run them, and they may read more than adapter IR parts.
    """
    read = [
        dict.fromkeys((*step_inputs, *onnx_parts.reads(step)))
        for step, step_inputs in zip(plan.steps, inputs, strict=True)
    ]
    last = {name: number for number, names in enumerate(read) for name in names}
    output_names = frozenset(plan.graph.outputs)
    available_names = returned_names(plan)
    return tuple(
        replace(
            step,
            inputs=step_inputs,
            released=tuple(
                name for name in names if last[name] == number and name in available_names and name not in output_names
            ),
        )
        for number, (step, step_inputs, names) in enumerate(zip(plan.steps, inputs, read, strict=True))
    )


def _refused(detail: str) -> Unsupported:
    return Unsupported(Reason.DYNAMIC_SHAPE, detail)


def _refused_here(detail: str) -> Unsupported:
    return ShapeDependentRefusal(Reason.DYNAMIC_SHAPE, detail)
