"""Writes what was compiled as one file.

1. The model's inputs, outputs and metadata; the devices with their options and versions.
2. Every plan: what is known of the values at its borders, its steps, its constants, and its report.
3. Of every step: the segment that it was compiled from, and what the driver wrote, if it writes programs. A segment
   stays, since another version of a driver compiles it again.
4. Of a step on a device that accelerates, the same nodes for the CPU, should the device fail; not where fallback is
   forbidden.
5. Of a step that runs beside others, that it does: what costs said when it was compiled is not known where it runs.
6. The model as it was, if it is asked for: the CPU runs it at shapes for which there is no plan.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence

from nnadapter.compiled_models.messages import MESSAGES, VERSION, Message
from nnadapter.compiled_models.parts import MODEL, PROGRAM, REPORT
from nnadapter.compiled_models.segments import write_ir, write_onnx
from nnadapter.compiled_models.values import write_array, write_metadata, write_options, write_shape, write_value
from nnadapter.drivers.border import checked_bytes
from nnadapter.drivers.crashes import named_call
from nnadapter.drivers.onnxruntime.optimizers import wrong_optimizers
from nnadapter.drivers.registry import device_info
from nnadapter.errors import FAILURES, CompiledModelError, DriverWarning, InvalidModelError, describe
from nnadapter.files.container import ContainerWriter, write_container
from nnadapter.ir.model import Model
from nnadapter.offering.part import Part
from nnadapter.onnx.onnxruntime_limits import loadable
from nnadapter.planning.alongside import overlap_of
from nnadapter.planning.setting import Setting
from nnadapter.planning.settling import Partitioning
from nnadapter.reports.building import report_of
from nnadapter.reports.circumstances import machine, versions_of
from nnadapter.running.bound_step import BoundStep
from nnadapter.running.compiled import Compiled
from nnadapter.running.observed import observed_of
from nnadapter.running.planned import PlannedEngine
from partition.plan import Step


def save(path: str | os.PathLike[str], engine: PlannedEngine, setting: Setting, *, keeps_model: bool) -> None:
    """Write the plans that an engine holds as a compiled model.

    Args:
        path: of the file, which takes the place of one that is there when it is complete.
        engine: with its plans made.
        setting: of the engine.
        keeps_model: whether the model as it was goes in too.

    Raises:
        CompiledModelError: the file cannot be written, or something has no form in files.
    """
    plans = engine.plans_kept
    write_container(path, lambda writer: _write(writer, engine, setting, plans, keeps_model))


def _write(
    writer: ContainerWriter, engine: PlannedEngine, setting: Setting, plans: Sequence[Compiled], keeps_model: bool
) -> None:
    message = MESSAGES.new("CompiledModel")
    message.version = VERSION
    signature = engine.signature
    for rows, values in (
        (message.inputs, signature.inputs),
        (message.overridable, signature.overridable),
        (message.outputs, signature.outputs),
    ):
        for value in values:
            write_value(rows.add(), value)
    message.order.extend(engine.input_names)
    for name, array in engine.defaults.items():
        write_array(message.defaults.add(), name, array, writer)
    write_metadata(message.metadata, signature.metadata)
    used = {step.device for compiled in plans for step in _partitioning(compiled).plan.steps}
    for device in setting.devices:
        if device.name in used:
            row, info = message.devices.add(), device_info(device.name)
            row.name, row.version, row.hardware = device.name, info.version or info.distribution, info.sub_type
            write_options(row.options, device.options)
    for compiled in plans:
        _write_plan(message.plans.add(), compiled, engine, writer)
    if keeps_model:
        whole = _partitioning(plans[0]).model.parts.as_it_was(signature.output_names)
        _write_for_host(message.whole, whole, writer)
    message.versions.update(versions_of(device.name for device in setting.devices if device.name in used))
    message.machine = machine()
    writer.add(MODEL, message.SerializeToString(deterministic=True))


def _partitioning(compiled: Compiled) -> Partitioning:
    """What its programs were made of."""
    return compiled.partitioning if compiled.opening is None else compiled.opening.partitioning


def _write_plan(message: Message, compiled: Compiled, engine: PlannedEngine, writer: ContainerWriter) -> None:
    partitioning = _partitioning(compiled)
    graph, steps = partitioning.plan.graph, partitioning.plan.steps
    for name in engine.input_names:
        write_shape(message.shapes.add(), partitioning.model.shapes.get(name, ()))
    border = dict.fromkeys((*graph.inputs, *graph.outputs))
    border.update(dict.fromkeys(name for step in steps for name in (*step.inputs, *step.outputs)))
    for name in border:
        write_value(message.values.add(), graph.value(name))
    known = partitioning.model.specialized.constants
    for name in dict.fromkeys(name for name in graph.outputs if name in known):
        write_array(message.constants.add(), name, known[name], writer)
    overlap = overlap_of(partitioning, {bound.step.segment: bound.names for bound in compiled.plan.steps})
    for bound in compiled.plan.steps:
        row = message.steps.add()
        row.alongside = bound.step.segment in overlap.alongside
        _write_step(row, bound, compiled, writer)
    report = report_of(observed_of(compiled, engine.counts))
    message.report = writer.add(REPORT, report.to_json().encode())


def _write_step(message: Message, bound: BoundStep, compiled: Compiled, writer: ContainerWriter) -> None:
    partitioning, step = _partitioning(compiled), bound.step
    device = partitioning.setting.by_name[step.device]
    piece = partitioning.pieces[bound.position]
    message.device = step.device
    message.inputs.extend(step.inputs)
    message.outputs.extend(step.outputs)
    message.nodes.extend(partitioning.plan.graph.nodes[node].name for node in step.nodes)
    twin = compiled.bound_to.get(step.segment)
    if twin is not None:
        message.twin = twin
    blob = _blob(bound, message.nodes)
    if blob is not None:
        message.program.part = writer.add(PROGRAM, blob)
        message.program.inputs.extend(bound.names)
    parts = partitioning.model.parts
    if device.is_host:
        _write_for_host(message.segment, parts.cpu_part(step), writer)
    elif piece is not None and isinstance(piece.part.model, Model):
        try:
            write_ir(message.segment, piece.part.model, piece.part.inputs, writer)
        except InvalidModelError as error:
            message.ClearField("segment")
            if blob is None:
                raise CompiledModelError(
                    f"segment {step.segment} on {step.device!r} has no form in files: {describe(error)}; compile it "
                    "for a device whose driver writes programs"
                ) from error
    else:
        part = parts.part(step)
        write_onnx(message.segment, part.model, part.inputs, (), writer)
    if device.accelerates and partitioning.setting.constraints.fallback != "forbid" and _host_takes(partitioning, step):
        _write_for_host(message.instead, parts.part(step), writer)


def _blob(bound: BoundStep, nodes: Sequence[str]) -> bytes | None:
    """What the driver writes of a program; None where it does not, and where it fails to, which a warning says."""
    device, segment = bound.step.device, bound.step.segment
    try:
        return checked_bytes(named_call(device, "serialize", segment, nodes)(bound.pool.program.serialize))
    except FAILURES as error:
        warnings.warn(
            f"device {device!r} did not write segment {segment} down: {describe(error)}; it is compiled whenever the "
            "file is loaded, so report this to the vendor",
            DriverWarning,
            stacklevel=2,
        )
        return None


def _write_for_host(message: Message, part: Part, writer: ContainerWriter) -> None:
    """Write nodes as ONNX Runtime loads them, without onnx."""
    without = wrong_optimizers(part.model)
    write_onnx(message, loadable(part.model), part.inputs, without, writer)


def _host_takes(partitioning: Partitioning, step: Step) -> bool:
    """Whether the CPU takes every node of a step, as far as is known."""
    plan = partitioning.plan
    taken = plan.verdicts[partitioning.setting.host.name]
    return all(taken[plan.graph.atom_of[node]] for node in step.nodes)
