"""Writer of compiled files, and of cache entries with plans.

A file contains:

1. Signature and metadata of the model; devices with options and versions.
2. For every plan: types of values between steps, steps, constants, and report.
3. For every step: its segment, to compile with another driver version, and its serialized program, if any.
4. For every step on an accelerator: the same nodes for the CPU, unless fallback is forbidden.
5. The numbers of steps that run in threads.
6. The original model, on request, for shapes without a plan.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from nnadapter.candidates.part import Part
from nnadapter.candidates.segments import onnx_part
from nnadapter.drivers.boundary import checked_bytes
from nnadapter.drivers.failures import named_call
from nnadapter.drivers.onnxruntime.driver import threads_gain
from nnadapter.drivers.onnxruntime.failures import wrong_optimizers
from nnadapter.drivers.registry import device_info
from nnadapter.engine import messages
from nnadapter.engine.bound_steps import BoundStep
from nnadapter.engine.branch_conditions import write_fork
from nnadapter.engine.compiled import Compiled
from nnadapter.engine.model_source import ModelPlanSource
from nnadapter.engine.observed import Observed, observed_of
from nnadapter.engine.shape_messages import write_number, write_shape_derived_values, write_shape_set
from nnadapter.errors import FAILURES, CompiledModelError, DriverWarning, InvalidModelError, describe
from nnadapter.files.messages import Message
from nnadapter.ir.model import Model
from nnadapter.onnx.onnxruntime_limits import loadable
from nnadapter.onnx.preparation.branch_decisions import decision_values
from nnadapter.planning.indices import checks_by_segment
from nnadapter.planning.overlap import overlap_of
from nnadapter.planning.settling import Partitioning
from nnadapter.records import dataclass, replace
from nnadapter.store.container import ContainerWriter, write_container
from partition.plan import Step


def _not_stored(bound: BoundStep) -> int | None:
    return None


class SavedReport(Protocol):
    """Report of a plan, stored in its file as JSON."""

    @property
    def versions(self) -> Mapping[str, str]:
        pass

    @property
    def machine(self) -> str:
        pass

    def to_json(self) -> str:
        pass


ReportMaker = Callable[[Observed], SavedReport]


@dataclass(frozen=True, slots=True)
class Target:
    """Destination of saved plans: a compiled model or a cache entry."""

    writer: ContainerWriter
    make_report: ReportMaker
    linked_program: Callable[[BoundStep], int | None] = _not_stored
    """Returns the number of the part with a step's program, if it is stored already."""
    stands_alone: bool = True
    """True if segments and the CPU's nodes are stored too, so that no model is needed."""


def save(
    path: str | os.PathLike[str],
    source: ModelPlanSource,
    make_report: ReportMaker,
    *,
    keeps_model: bool,
) -> None:
    """Write all plans of a source to a compiled model; with `keeps_model`, also the original model.

    Raises:
        CompiledModelError: the file cannot be written, or a part of a plan has no file format.
    """
    plans = source.plans_kept

    def write(writer: ContainerWriter) -> None:
        message = message_of(plans, source, Target(writer, make_report))
        if keeps_model:
            original_model = source.original_part()
            _write_for_host(message.whole, original_model, writer)
        add_message(message, writer)

    write_container(path, write)


def add_message(message: Message, writer: ContainerWriter) -> None:
    """Write the CompiledModel message to the container."""
    writer.add(messages.MODEL, messages.MESSAGES.bytes_of(message))


def message_of(plans: Sequence[Compiled], source: ModelPlanSource, target: Target) -> Message:
    """Write programs, segments and constants of plans; return a CompiledModel message."""
    writer = target.writer
    message = messages.MESSAGES.new("CompiledModel")
    message.version = messages.VERSION
    signature = source.signature
    for rows, values in (
        (message.inputs, signature.inputs),
        (message.overridable, signature.overridable),
        (message.outputs, signature.outputs),
    ):
        for value in values:
            messages.write_value(rows.add(), value)
    message.order.extend(source.input_names)
    for name, array in source.defaults.items():
        messages.write_array(message.defaults.add(), name, array, writer)
    messages.write_metadata(message.metadata, signature.metadata)
    used_devices = {step.device for compiled in plans for step in compiled.run_partitioning.plan.steps}
    for device in source.setting.devices:
        if device.name in used_devices:
            row, info = message.devices.add(), device_info(device.name)
            row.name, row.version, row.hardware = device.name, info.version or info.distribution, info.sub_type
            messages.write_options(row.options, device.options)
    unused = {device.name for device in source.setting.devices} - used_devices
    for compiled in plans:
        report = target.make_report(_observed(compiled, source))
        _write_plan(message.plans.add(), compiled, source, target)
        message.plans[-1].report = writer.add(messages.REPORT, report.to_json().encode())
        message.versions.update({name: text for name, text in report.versions.items() if name not in unused})
        message.machine = report.machine
    for truths, decision in source.decisions.items():
        write_fork(message.forks.add(), truths, decision.conditions, decision.texts, writer)
    return message


def _write_plan(message: Message, compiled: Compiled, source: ModelPlanSource, target: Target) -> None:
    writer = target.writer
    partitioning = compiled.run_partitioning
    graph, steps = partitioning.plan.graph, partitioning.plan.steps
    message.truths.extend(decision_values(partitioning.model.prepared.branch_decisions))
    for name in source.input_names:
        messages.write_shape(message.shapes.add(), partitioning.model.shapes.get(name, ()))
    border = dict.fromkeys((*graph.inputs, *graph.outputs))
    border.update(dict.fromkeys(name for step in steps for name in (*step.inputs, *step.outputs)))
    for name in border:
        messages.write_value(message.values.add(), graph.value(name))
    constants, produced = partitioning.model.specialized.constants, partitioning.plan.produced_values
    for name in dict.fromkeys(name for name in graph.outputs if name in constants and name not in produced):
        messages.write_array(message.constants.add(), name, constants[name], writer)
    if compiled.shapes is not None:
        write_shape_set(message.open, compiled.shapes, writer)
    bound_steps = _bound_steps(compiled)
    reads = {step.segment: _read_by(step, compiled, bound_steps) for step in steps}
    overlap = overlap_of(partitioning, reads)
    checks = checks_by_segment(partitioning.model, partitioning.plan, partitioning.setting.accelerators, reads)
    for position, step in enumerate(steps):
        row = message.steps.add()
        row.alongside = step.segment in overlap.threaded_segments
        for check in checks.get(step.segment, ()):
            messages.write_check(row.checks.add(), check)
        _write_step(row, step, position, bound_steps.get(position), compiled, target)


def _observed(compiled: Compiled, source: ModelPlanSource) -> Observed:
    """Return the observations for a plan's stored report.

    They include the reason for static shapes, which sessions of the file cannot determine.
    """
    observed = observed_of(compiled, source.counts)
    has_open = any(plan.has_dynamic_shapes for plan in source.plans_kept)
    shapes_note = "" if has_open or observed.plans is None else observed.plans.served_shapes_text
    notes = list(filter(None, (shapes_note, source.selection_note)))
    return replace(observed, notes=(*observed.notes, *notes)) if notes else observed


def _bound_steps(compiled: Compiled) -> Mapping[int, BoundStep]:
    return dict(enumerate(compiled.plan.steps)) if compiled.programs is None else compiled.programs.shared


def _read_by(step: Step, compiled: Compiled, bound: Mapping[int, BoundStep]) -> tuple[str, ...]:
    if compiled.dynamic is not None and step.segment in compiled.dynamic.specializable:
        return compiled.dynamic.specializable[step.segment].inputs
    return next(bound_step.names for bound_step in bound.values() if bound_step.step.segment == step.segment)


def _write_step(
    message: Message,
    step: Step,
    position: int,
    bound: BoundStep | None,
    compiled: Compiled,
    target: Target,
) -> None:
    partitioning, writer = compiled.run_partitioning, target.writer
    device = partitioning.setting.by_name[step.device]
    message.device = step.device
    message.inputs.extend(step.inputs)
    message.outputs.extend(step.outputs)
    message.nodes.extend(partitioning.plan.graph.nodes[node].name for node in step.nodes)
    twin = compiled.cloned_from.get(step.segment)
    if twin is not None:
        message.twin = twin
    has_program = bound is not None and _write_program(message, bound, message.nodes, target)
    parts = partitioning.model.parts
    if bound is None:
        _write_filled(message, position, compiled, target)
    elif device.is_host:
        _write_for_host(message.segment, parts.cpu_part(step), writer)
    elif target.stands_alone or not has_program:
        _write_segment(message, step, position, partitioning, has_program, writer)
    falls_back = (
        target.stands_alone and device.accelerates and partitioning.setting.constraints.fallback_at("run") != "forbid"
    )
    if falls_back and _host_takes(partitioning, step):
        part = parts.part(step)
        if _are_available(partitioning, part.inputs):
            _write_for_host(message.instead, part, writer)


def _write_program(message: Message, bound: BoundStep, nodes: Sequence[str], target: Target) -> bool:
    part = target.linked_program(bound)
    if part is None:
        blob = _serialize(bound, nodes)
        if blob is None:
            return False
        part = target.writer.add(messages.PROGRAM, blob)
    message.program.part = part
    message.program.inputs.extend(bound.names)
    return True


def _write_filled(message: Message, position: int, compiled: Compiled, target: Target) -> None:
    writer = target.writer
    assert compiled.programs is not None and compiled.dynamic is not None, "its segments are filled"
    specializable = compiled.dynamic.specializable[compiled.run_partitioning.plan.steps[position].segment]
    messages.write_ir(message.segment, specializable.part.model, specializable.part.inputs, writer)
    write_shape_derived_values(message.given, specializable.given, writer)
    for at, numbers, bound in compiled.programs.compiled_steps:
        row = messages.MESSAGES.new("FilledProgram")
        if at == position and _write_program(row, bound, message.nodes, target):
            for number in numbers:
                write_number(row.key.add(), number)
            message.filled.append(row)


def _write_segment(
    message: Message,
    step: Step,
    position: int,
    partitioning: Partitioning,
    has_program: bool,
    writer: ContainerWriter,
) -> None:
    piece = partitioning.pieces[position]
    if piece is not None and isinstance(piece.part.model, Model):
        try:
            messages.write_ir(message.segment, piece.part.model, piece.part.inputs, writer)
        except InvalidModelError as error:
            message.ClearField("segment")
            if not has_program:
                raise CompiledModelError(
                    f"segment {step.segment} on {step.device!r} cannot be saved: {describe(error)}; compile it "
                    "for a device whose driver serializes programs"
                ) from error
    else:
        model, device = partitioning.model, partitioning.setting.by_name[step.device]
        part = onnx_part(device.kernels, step, model.conversion, model.parts)
        messages.write_onnx(message.segment, part.model, part.inputs, (), writer)


def _are_available(partitioning: Partitioning, names: Iterable[str]) -> bool:
    """Return True if all values with these names are available between steps, not only inside a segment."""
    plan = partitioning.plan
    available = {*plan.graph.inputs, *(name for step in plan.steps for name in step.outputs)}
    return available.issuperset(names)


def _serialize(bound: BoundStep, nodes: Sequence[str]) -> bytes | None:
    device, segment = bound.step.device, bound.step.segment
    try:
        return checked_bytes(named_call(device, "serialize", segment, nodes)(bound.pool.program.serialize))
    except FAILURES as error:
        warnings.warn(
            f"device {device!r} failed to serialize segment {segment}: {describe(error)}; it is compiled whenever the "
            "file is loaded, so report this to the vendor",
            DriverWarning,
            stacklevel=2,
        )
        return None


def _write_for_host(message: Message, part: Part, writer: ContainerWriter) -> None:
    without = wrong_optimizers(part.model)
    messages.write_onnx(message, loadable(part.model), part.inputs, without, writer)
    message.single_threaded = not threads_gain(part.model)


def _host_takes(partitioning: Partitioning, step: Step) -> bool:
    plan = partitioning.plan
    verdicts = plan.verdicts[partitioning.setting.host.name]
    return all(verdicts[plan.graph.atom_of[node]] for node in step.nodes)
