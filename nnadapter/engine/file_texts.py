"""Texts that describe a compiled file, and the check that it runs here without compiling."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from nnadapter.drivers.selection import CPU
from nnadapter.engine.branch_conditions import choice_in_words
from nnadapter.engine.compiled_file import CompiledFile
from nnadapter.engine.file_loading import FileDevice, FileDevices, open_devices, reason_against
from nnadapter.engine.messages import PROGRAM, Segments
from nnadapter.engine.plan_store import PLAN_FOR_EACH
from nnadapter.engine.shape_messages import read_shape_set
from nnadapter.engine.shape_sets import ShapeSet
from nnadapter.errors import NNAdapterError, describe
from nnadapter.files.messages import Message
from nnadapter.ir.symbolic_numbers import SymbolicNumber
from nnadapter.onnx.signature import Shapes
from nnadapter.options import Options
from nnadapter.planning.bounds import Bounds
from nnadapter.traces.trace import SILENT

_MOST = 8
_MOST_ALIKE = 2


def served_shapes_text(file: CompiledFile, shape_sets: Sequence[ShapeSet]) -> str:
    """Return the texts of `served_shapes_texts`, joined by `or`."""
    return " or ".join(served_shapes_texts(file, shape_sets))


def served_shapes_texts(file: CompiledFile, shape_sets: Sequence[ShapeSet]) -> Sequence[str]:
    """Return a text for each set of shapes that a plan of a file serves; a name stands for any size.

    `shape_sets` belong to the file's dynamic plans, in order.
    """
    static_plans = [plan for plan in file.message.plans if not plan.HasField("open")]
    classes = [plan for plan in file.message.plans if plan.HasField("open")]
    plan_texts = [(plan, in_words(file.shapes(plan))) for plan in static_plans]
    plan_texts += [(plan, _shapes_text_of(file, sizes)) for plan, sizes in zip(classes, shape_sets, strict=False)]
    texts_of: dict[str, dict[str, None]] = {}
    for plan, shapes in plan_texts:
        texts_of.setdefault(choice_in_words(file, plan.truths), {})[shapes] = None
    in_turn = zip_longest(*([_with_condition(text, choice) for text in texts] for choice, texts in texts_of.items()))
    texts = [text for turn in in_turn for text in turn if text is not None]
    return texts[:_MOST] if len(texts) <= _MOST else [*texts[: _MOST - 1], f"{len(texts) - _MOST + 1} others"]


def dynamic_shape_sets(file: CompiledFile) -> list[ShapeSet]:
    """Return the shapes that the dynamic plans of a file serve."""
    segments = Segments(file.container)
    plans = (plan for plan in file.message.plans if plan.HasField("open"))
    return [read_shape_set(plan.open, file.shapes(plan), segments) for plan in plans]


def in_words(shapes: Mapping[str, Sequence[Any]]) -> str:
    """Return shapes by input name as text, with equal shapes listed once."""
    texts = {name: f"[{', '.join(map(str, shape))}]" for name, shape in shapes.items()}
    alike: dict[str, list[str]] = {}
    for name, text in texts.items():
        alike.setdefault(text.replace(f"{name}[", "its own ["), []).append(name)
    groups = ([names] if len(names) > _MOST_ALIKE else [[name] for name in names] for names in alike.values())
    equal = {group[0]: len(group) - 1 for subgroups in groups for group in subgroups}
    return ", ".join(
        f"{name}={text}" + (f" (and {equal[name]} inputs of the same shape)" if equal[name] else "")
        for name, text in texts.items()
        if name in equal
    )


def command(file: CompiledFile, shapes: Shapes) -> str:
    """Return the command line that compiles the model for further shapes."""
    devices = ",".join(device.name for device in file.message.devices if device.name != CPU) or CPU
    shape_flags = " ".join(f"--shape {name}={','.join(map(str, shape))}" for name, shape in shapes.items())
    plain = f"nnadapter compile MODEL -d {devices} {shape_flags} -o FILE"
    return f"{plain}, with --dynamic-shapes for similar ones" if _allows_dynamic(file) else plain


def _with_condition(shapes: str, choice: str) -> str:
    return f"{shapes} if {choice}" if choice else shapes


def _allows_dynamic(file: CompiledFile) -> bool:
    """Return True if the model has dynamic dimensions, but the file has neither a dynamic plan nor a reason why."""
    rows, plans = (*file.signature.inputs, *file.signature.overridable), file.message.plans
    is_open = any(not isinstance(size, int) for row in rows for size in row.shape or ())
    notes = json.loads(file.report(plans[0]))["notes"]
    is_told = any(note.startswith(PLAN_FOR_EACH) for note in notes)
    return is_open and not is_told and not any(plan.HasField("open") for plan in plans)


def _shapes_text_of(file: CompiledFile, shape_set: ShapeSet) -> str:
    names = {row.name: row for rows in (file.signature.inputs, file.signature.overridable) for row in rows}
    if shape_set.guards is not None:
        shapes = dict(
            _shapes_of_guards(shape_set.guards.shapes, {name: row.shape or () for name, row in names.items()})
        )
        return in_words(shapes if shape_set.bounds is None else dict(_within(shapes, shape_set.bounds)))
    if shape_set.bounds is not None:
        return in_words(dict(_shapes_of_bounds(shape_set.bounds, names)))
    return in_words({name: ["?" if size is None else size for size in names[name].shape or ()] for name in names})


def _shapes_of_guards(
    shapes: Mapping[str, Sequence[Any]], declared: Mapping[str, Sequence[Any]]
) -> Iterator[tuple[str, list[Any]]]:
    labels_by_size: dict[int, str] = {}
    for name, shape in shapes.items():
        yield name, [_label_of(size, axis, name, declared, labels_by_size) for axis, size in enumerate(shape)]


def _label_of(
    size: Any, axis: int, name: str, declared: Mapping[str, Sequence[Any]], labels_by_size: dict[int, str]
) -> Any:
    if not isinstance(size, SymbolicNumber):
        return size
    if size.trace.is_constant(size.number):
        return size.trace.hint(size.number)
    shape = declared.get(name, ())
    label = shape[axis] if axis < len(shape) and isinstance(shape[axis], str) else f"{name}[{axis}]"
    labels = labels_by_size.values()
    return labels_by_size.setdefault(
        size.trace.representative(size.number), label if label not in labels else f"{name}[{axis}]"
    )


def _within(shapes: Mapping[str, Sequence[Any]], bounds: Bounds) -> Iterator[tuple[str, list[Any]]]:
    for name, shape in shapes.items():
        ends = zip(shape, bounds.least[name], bounds.largest[name], strict=True)
        is_free = name in bounds.unread
        yield (
            name,
            [size if is_free or isinstance(size, int) else f"{size}: {low} to {high}" for size, low, high in ends],
        )


def _shapes_of_bounds(bounds: Bounds, names: Mapping[str, Any]) -> Iterator[tuple[str, list[Any]]]:
    for name, shape in bounds.least.items():
        declared = names[name].shape or (None,) * len(shape)
        ends = zip(declared, shape, bounds.largest[name], strict=True)
        between = [low if isinstance(size, int) else f"{low} to {high}" for size, low, high in ends]
        yield name, ["any" for _ in shape] if name in bounds.unread else between


def reasons_against(file: CompiledFile) -> tuple[str, ...]:
    """Return the reasons why a compiled file would not run here without compiling."""
    file.container.verify()
    dynamic_shape_sets(file)
    reasons: dict[str, None] = {}
    for record in file.message.devices:
        try:
            devices = open_devices([record], None, "forbid", None, SILENT, Options().isolated)
        except NNAdapterError as error:
            reasons[describe(error)] = None
            continue
        try:
            reasons.update(dict.fromkeys(_of_device(file, record.name, devices)))
        finally:
            devices.close()
    return tuple(reasons)


def _of_device(file: CompiledFile, name: str, devices: FileDevices) -> Iterator[str]:
    device = devices.opened.get(name)
    if device is None or name == CPU:
        return
    for plan in file.message.plans:
        for number, step in enumerate(plan.steps):
            if step.device == name:
                yield from _of_step(file, number, step, device)


def _of_step(file: CompiledFile, number: int, step: Message, device: FileDevice) -> Iterator[str]:
    programs = [step.program] if step.HasField("program") else [row.program for row in step.filled]
    for program in programs:
        blob = file.container.contents(program.part, PROGRAM)
        reason = reason_against(device, blob, (number, list(step.nodes)))
        if reason:
            yield f"segment {number} is compiled again for {device.name!r}: {reason}"
    if not programs and not device.is_unchanged:
        yield f"the driver of {device.name!r} differs here, and compiles segment {number} at load time"
