"""Reader of compiled models, with the rules that their protobuf messages must satisfy.

Checksums do not protect against forgery, so every message is checked once at opening.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import isfinite, prod

from nnadapter import limits
from nnadapter.drivers.capability import ModelForm
from nnadapter.drivers.selection import CPU
from nnadapter.engine import messages
from nnadapter.errors import CompiledModelError
from nnadapter.files.messages import Message
from nnadapter.onnx.preparation.branch_decisions import MOST_DECIDING, MOST_FORKS
from nnadapter.onnx.signature import Signature
from nnadapter.store.container import ADVICE, Container
from partition.graph import ITEMSIZE_OF_DTYPE

Rule = Callable[[Message, Container], Iterator[str]]

_LARGEST_ITEM_BYTES = 16
_MOST_ELEMENTS = 1 << 62
_LONGEST_TYPE = 200
_CONTAINERS = frozenset(("sequence", "optional", "map", "sparse"))
_SEGMENTS: Mapping[str, str] = {ModelForm.IR.value: messages.IR, ModelForm.ONNX.value: messages.ONNX}


def problem_of(model: Message, container: Container) -> str:
    """Return the first fault of a CompiledModel message; empty if there is none."""
    return next(_problems(model, container), "")


def _problems(message: Message, container: Container) -> Iterator[str]:
    for field, value in message.ListFields():
        rule = RULES.get(field.message_type.name) if field.message_type is not None else None
        if rule is not None:
            for submessage in (value,) if hasattr(value, "DESCRIPTOR") else value:
                yield from _problems(submessage, container)
    yield from RULES[message.DESCRIPTOR.name](message, container)


def _value(value: Message, container: Container) -> Iterator[str]:
    data_types = ITEMSIZE_OF_DTYPE.keys() | {""}
    head, _, inner = value.data_type.partition("(")
    if not value.name:
        yield "a value has no name"
    if value.data_type not in data_types and not (head in _CONTAINERS and inner[-1:] == ")"):
        yield f"{_quoted(value.name)} has unknown type {_quoted(value.data_type)}"
    if len(value.data_type) > _LONGEST_TYPE:
        yield f"the type of {_quoted(value.name)} has {len(value.data_type)} characters"
    if not (isfinite(value.itemsize) and 0 <= value.itemsize <= _LARGEST_ITEM_BYTES):
        yield f"elements of {_quoted(value.name)} have {value.itemsize} bytes"


def _shape(shape: Message, container: Container) -> Iterator[str]:
    yield from _check_sizes([row.size for row in shape.dimensions])


def _check_sizes(sizes: Sequence[int]) -> Iterator[str]:
    if len(sizes) > limits.RANK:
        yield f"a shape has {len(sizes)} dimensions, expected at most {limits.RANK}"
    elif any(size < 0 for size in sizes):
        yield f"a shape is {list(sizes)}, expected no size below 0"
    elif prod(size for size in sizes if size) > _MOST_ELEMENTS:
        yield f"a shape is {list(sizes)}, which is too large"


def _contents(array: Message, container: Container) -> Iterator[str]:
    yield from _check_sizes(array.dimensions)
    yield from _check_part(container, array.part, "")
    itemsize = ITEMSIZE_OF_DTYPE.get(array.data_type, 0)
    length = container.parts[array.part].length
    if not itemsize:
        yield f"constant {_quoted(array.name)} is of type {_quoted(array.data_type)}, expected numbers"
    if prod(array.dimensions) * max(1, itemsize) != length:  # narrower types have a byte for each element
        description = f"{array.data_type}{list(array.dimensions)}"
        yield f"constant {_quoted(array.name)} is {description} in {length} bytes"


def _segment(segment: Message, container: Container) -> Iterator[str]:
    if segment.form not in _SEGMENTS:
        yield f"a segment has form {_quoted(segment.form)}, expected 'ir' or 'onnx'"
    else:
        yield from _check_part(container, segment.part, _SEGMENTS[segment.form])
    yield from _check_unique((row.name for row in segment.constants), "constants of a segment")
    if len(segment.places) != len(segment.numbers):
        yield f"a segment has {len(segment.places)} places for {len(segment.numbers)} sizes"


def _program(program: Message, container: Container) -> Iterator[str]:
    yield from _check_part(container, program.part, messages.PROGRAM)


def _step(step: Message, container: Container) -> Iterator[str]:
    host = [step.instead] if step.HasField("instead") else []
    host += [step.segment] if step.device == CPU else []
    if any(segment.form != ModelForm.ONNX.value for segment in host):
        yield "the CPU has a segment that is not ONNX"
    if not step.HasField("segment") and not step.HasField("program"):
        yield f"a step on {_quoted(step.device)} has neither a program nor a segment to compile"
    if "" in step.outputs or not step.outputs:
        yield f"a step on {_quoted(step.device)} has no outputs, or one without a name"
    yield from _check_unique(step.outputs, "outputs of a step")


def _plan(plan: Message, container: Container) -> Iterator[str]:
    yield from _check_part(container, plan.report, messages.REPORT)
    yield from _check_unique((row.name for row in plan.values), "values of a plan")
    for shape in plan.shapes:
        if any(row.WhichOneof("known") != "size" for row in shape.dimensions):
            yield "a plan has inputs of unknown size"
    values = {row.name: row for row in plan.values}
    for number, step in enumerate(plan.steps):
        yield from _checks(step, values)
        if step.HasField("twin") and (step.twin >= number or plan.steps[step.twin].device != step.device):
            yield f"step {number} clones step {step.twin}, which is not an earlier step on its device"


def _checks(step: Message, values: Mapping[str, Message]) -> Iterator[str]:
    for check in step.checks:
        firsts = [*(limit for row in check.ranges for limit in (row.low, row.high)), check.most]
        limits = [limit for first in firsts if first.size_of for limit in (first, *first.others)]
        read_names = [*([] if check.HasField("most") else [check.value]), *(limit.size_of for limit in limits)]
        unknown = next((name for name in read_names if name not in values), None)
        if unknown is not None:
            yield f"a check of indices reads {_quoted(unknown)}, which is not in the plan"
            continue
        axes = ((limit.axis if limit.axis >= 0 else -1 - limit.axis, limit.size_of) for limit in limits)
        if any(axis >= len(values[name].shape.dimensions) for axis, name in axes):
            yield f"a check of {_quoted(check.value)} reads an axis that its value does not have"
        last = values[check.value].shape.dimensions[-1:] if check.value in values else []
        if len(check.ranges) != 1 and not any(row.size == len(check.ranges) for row in last):
            count = len(check.ranges)
            yield f"a check of {_quoted(check.value)} has {count} ranges, expected 1, or one for each column"


def _device(device: Message, container: Container) -> Iterator[str]:
    if not device.name:
        yield "a device has no name"


def _dynamic_shapes(sizes: Message, container: Container) -> Iterator[str]:
    if len(sizes.least) != len(sizes.most):
        yield f"a plan has {len(sizes.least)} lower and {len(sizes.most)} upper bounds of sizes"


def _derived_values(values: Message, container: Container) -> Iterator[str]:
    yield from _check_unique(values.names, "shape-derived values")


def _size_array(array: Message, container: Container) -> Iterator[str]:
    if not array.HasField("contents"):
        yield "an array of sizes has no contents"
    if prod(array.contents.dimensions) > messages.MOST_SIZES:
        yield f"{_quoted(array.contents.name)} is {list(array.contents.dimensions)}, too many elements for sizes"


def _tables(tables: Message, container: Container) -> Iterator[str]:
    if not tables.HasField("model"):
        yield "values that are computed from sizes (Tables) have no model"


def _specialized_program(filled: Message, container: Container) -> Iterator[str]:
    if not filled.HasField("program"):
        yield "a specialized program is missing"


def _any(message: Message, container: Container) -> Iterator[str]:
    """Accept any message, because other rules or the readers check it."""
    yield from ()


def _fork(fork: Message, container: Container) -> Iterator[str]:
    if not fork.conditions:
        yield "a choice of branches (Fork) has no conditions"
    if fork.HasField("model") and fork.model.form != ModelForm.ONNX.value:
        yield "the model that computes conditions of branches (Fork) is not ONNX"
    if not fork.HasField("model"):
        yield from _check_defined(
            set(fork.inputs), (row.name for row in fork.conditions), "a condition of branches (Fork) reads"
        )
    yield from _check_unique((*fork.inputs,), "inputs of conditions of branches (Fork)")


def _model(model: Message, container: Container) -> Iterator[str]:
    rows = {row.name: row for row in (*model.inputs, *model.overridable)}
    if sorted(rows) != sorted(model.order):
        yield "its order of inputs is incomplete"
    elif len(rows) != len(model.inputs) + len(model.overridable):
        yield "an input is listed twice"
    elif [row.name for row in model.defaults] != [row.name for row in model.overridable]:
        yield "optional inputs and their contents do not match"
    else:
        yield from _defaults(model)
        yield from _plans(model, rows)
        yield from _choices(model, rows)
    yield from _check_unique((row.name for row in model.devices), "devices")


def _defaults(model: Message) -> Iterator[str]:
    for array, value in zip(model.defaults, model.overridable, strict=True):
        yield from _check_type(array.dimensions, array.data_type, value)


def _plans(model: Message, rows: Mapping[str, Message]) -> Iterator[str]:
    if not model.plans:
        yield "it has no plan"
    if model.HasField("whole"):
        if model.whole.form != ModelForm.ONNX.value:
            yield "the segment of the original model is not ONNX"
        yield from _check_defined(rows, model.whole.inputs, "the model reads")
    devices = {row.name for row in model.devices}
    outputs = [row.name for row in model.outputs]
    for plan in model.plans:
        yield from _of_plan(plan, [rows[name] for name in model.order], devices, outputs)


def _choices(model: Message, rows: Mapping[str, Message]) -> Iterator[str]:
    """Check that branch conditions have small inputs, and that plans belong to selections."""
    if len(model.forks) > MOST_FORKS:
        yield f"it has {len(model.forks)} choices of branches (Fork), expected at most {MOST_FORKS}"
        return
    forks = {tuple(fork.truths): fork for fork in model.forks}
    yield from _check_unique(map(repr, (tuple(fork.truths) for fork in model.forks)), "choices of branches (Fork)")
    for fork in model.forks:
        yield from _check_defined(rows, (*fork.inputs, *fork.shapes), "a condition of branches (Fork) reads")
        for name in fork.inputs:
            if name in rows and not _is_small_tensor(rows[name]):
                yield f"a condition of branches (Fork) reads {_quoted(name)}, which is not a small tensor of numbers"
    for message in (*model.forks, *model.plans):
        position = 0
        while position < len(message.truths):
            fork = forks.get(tuple(message.truths[:position]))
            if fork is None or not fork.conditions:
                yield "a plan is for branches that no condition (Fork) selects"
                return
            position += len(fork.conditions)
        if position > len(message.truths):
            yield "a plan is for only some conditions of a choice of branches (Fork)"


def _is_small_tensor(value: Message) -> bool:
    dimensions = value.shape.dimensions
    is_fixed = value.HasField("shape") and all(row.WhichOneof("known") == "size" for row in dimensions)
    few = 0 < prod(row.size for row in dimensions) <= MOST_DECIDING
    return is_fixed and few and bool(ITEMSIZE_OF_DTYPE.get(value.data_type))


def _of_plan(plan: Message, inputs: Sequence[Message], devices: set[str], outputs: Sequence[str]) -> Iterator[str]:
    """Check that values are defined once and before use, and that inputs and constants have their declared types."""
    values = {row.name: row for row in plan.values}
    if len(plan.shapes) != len(inputs):
        yield "a plan has other inputs than the model"
        return
    for row, shape in zip(inputs, plan.shapes, strict=True):
        sizes = [dimension.size for dimension in shape.dimensions]
        yield from _check_type(sizes, row.data_type, row)
        yield from _check_type(sizes, row.data_type, values.get(row.name))
    for array in plan.constants:
        yield from _check_type(array.dimensions, array.data_type, values.get(array.name))
    derived_names = plan.open.size_class.given.names
    defined = {*(row.name for row in (*inputs, *plan.constants)), *derived_names}
    if len(defined) != len(inputs) + len(plan.constants) + len(derived_names):
        yield "a constant is an input too, or is listed twice"
    for number, step in enumerate(plan.steps):
        if step.device not in devices:
            yield f"step {number} is on {_quoted(step.device)}, which is not a device of the file"
        for reader in _readers(step):
            yield from _check_defined({*defined, *step.given.names}, reader.inputs, f"step {number} reads")
        if defined.intersection(step.outputs):
            yield "a value is computed twice"
        yield from _check_defined(values, step.outputs, f"step {number} computes an undeclared value:")
        defined.update(step.outputs)
    yield from _check_defined(defined, outputs, "the model returns")
    read_names = set(outputs)
    for step in reversed(plan.steps):
        if not read_names.issuperset(step.outputs):
            yield f"a step on {_quoted(step.device)} computes a value that is never read"
        read_names.update(*(reader.inputs for reader in _readers(step)))


def _readers(step: Message) -> tuple[Message, ...]:
    return step, step.segment, step.instead, step.program


def _check_type(sizes: Sequence[int], data_type: str, value: Message | None) -> Iterator[str]:
    if value is None or "(" in value.data_type:
        return
    if value.data_type not in ("", data_type):
        yield f"{_quoted(value.name)} has types {_quoted(value.data_type)} and {_quoted(data_type)}"
    if value.HasField("shape"):
        rows = value.shape.dimensions
        fits = len(rows) == len(sizes) and all(
            row.WhichOneof("known") != "size" or row.size == size for row, size in zip(rows, sizes, strict=False)
        )
        if not fits:
            yield f"{_quoted(value.name)} has two shapes, one of them {list(sizes)}"


def _check_defined(defined: Iterable[str], names: Iterable[str], subject: str) -> Iterator[str]:
    lost = [name for name in names if name not in defined]
    if lost:
        yield f"{subject} {_quoted(lost[0])}, which is not defined"


def _check_unique(names: Iterable[str], subject: str) -> Iterator[str]:
    listed = list(names)
    if len(set(listed)) != len(listed):
        yield f"two {subject} have the same name"


def _check_part(container: Container, number: int, kind: str) -> Iterator[str]:
    """Check that a part exists and has this kind.

    An empty kind accepts any, since equal contents are stored once.
    """
    if number >= len(container.parts):
        yield f"it refers to part {number}, but there are {len(container.parts)} parts"
    elif kind and container.parts[number].kind != kind:
        yield f"part {number} is {_quoted(container.parts[number].kind)}, expected {kind!r}"


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _LONGEST_TYPE else f"{text[:_LONGEST_TYPE]}…")


RULES: Mapping[str, Rule] = {
    "Value": _value,
    "Shape": _shape,
    "Contents": _contents,
    "Segment": _segment,
    "Program": _program,
    "Step": _step,
    "Device": _device,
    "Plan": _plan,
    "DynamicShapes": _dynamic_shapes,
    "SizeClass": _any,
    "Given": _derived_values,
    "SizeArray": _size_array,
    "Tables": _tables,
    "FilledProgram": _specialized_program,
    "Fork": _fork,
    "CompiledModel": _model,
}


class CompiledFile:
    """Opened compiled model; programs and weights are read on demand."""

    def __init__(self, source: str | os.PathLike[str] | bytes | Container) -> None:
        """Open a compiled model. Raises CompiledModelError if it is damaged or newer than supported."""
        self.container = _opened(source)
        numbers = [number for number, part in enumerate(self.container.parts) if part.kind == messages.MODEL]
        if len(numbers) != 1:
            raise self.container.damaged(f"the file has {len(numbers)} parts that describe the model, expected one")
        self.message: Message = _parsed(self.container.contents(numbers[0]), self.container.name)
        problem = problem_of(self.message, self.container)
        if problem:
            raise self.container.damaged(problem)
        self.original_model: Message | None = self._original_model_plan()
        """Original model as a plan for all shapes with one step on the CPU, if present."""

    @property
    def signature(self) -> Signature:
        message = self.message
        rows = (message.inputs, message.overridable, message.outputs)
        inputs, overridable, outputs = (tuple(map(messages.read_value, value_messages)) for value_messages in rows)
        return Signature(inputs, overridable, outputs, messages.read_metadata(message.metadata))

    def shapes(self, plan: Message) -> dict[str, tuple[int, ...]]:
        return {name: messages.read_sizes(row) for name, row in zip(self.message.order, plan.shapes, strict=True)}

    def report(self, plan: Message) -> bytes:
        """Return a plan's stored report as JSON; the original model has the first plan's report."""
        described = self.message.plans[0] if plan is self.original_model else plan
        return bytes(self.container.contents(described.report, messages.REPORT))

    def _original_model_plan(self) -> Message | None:
        message = self.message
        if not message.HasField("whole"):
            return None
        plan = messages.MESSAGES.new("Plan")
        for rows in (message.inputs, message.overridable, message.outputs):
            plan.values.extend(rows)
        step = plan.steps.add()
        step.device, names = CPU, [row.name for row in message.outputs]
        step.segment.CopyFrom(message.whole)
        step.inputs.extend(message.whole.inputs)
        step.outputs.extend(dict.fromkeys(names))
        return plan


def _opened(source: str | os.PathLike[str] | bytes | Container) -> Container:
    if isinstance(source, Container):
        return source
    return Container.of(source) if isinstance(source, bytes) else Container.open(source)


def _parsed(contents: memoryview, name: str) -> Message:
    message = messages.MESSAGES.parse_whole("CompiledModel", contents)
    if not 1 <= message.version <= messages.VERSION:
        raise CompiledModelError(
            f"{name!r} holds a compiled model of version {message.version}, and this nnadapter knows 1 to "
            f"{messages.VERSION}; update nnadapter, or {ADVICE}",
            file=name,
        )
    return message
