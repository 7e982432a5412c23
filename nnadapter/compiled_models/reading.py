"""A file -> what it says, every word of it checked."""

from __future__ import annotations

import os

from nnadapter.compiled_models.messages import ADVICE, MESSAGES, VERSION, Message
from nnadapter.compiled_models.parts import MODEL, REPORT
from nnadapter.compiled_models.validity import problem_of
from nnadapter.compiled_models.values import read_metadata, read_sizes, read_value
from nnadapter.drivers.selection import CPU
from nnadapter.errors import CompiledModelError
from nnadapter.files.container.reading import Container
from nnadapter.onnx.signature import Signature


class CompiledFile:
    """A compiled model that was opened: its message is read, its parts are not."""

    def __init__(self, source: str | os.PathLike[str] | bytes | Container) -> None:
        """Open a file, or take its contents, or its parts.

        Raises:
            CompiledModelError: it cannot be read, is damaged, or of a newer version.
        """
        self.container = _opened(source)
        found = [number for number, part in enumerate(self.container.parts) if part.kind == MODEL]
        if len(found) != 1:
            raise self.container.damaged(f"it has {len(found)} parts that say what it is, expected one")
        self.message: Message = _parsed(self.container.contents(found[0]), self.container.name)
        problem = problem_of(self.message, self.container)
        if problem:
            raise self.container.damaged(problem)
        self.whole: Message | None = self._whole()
        """The model as it was as a plan for any shapes: one step on the CPU; None where it was not kept."""

    @property
    def signature(self) -> Signature:
        """What goes into the model and what comes out."""
        message = self.message
        rows = (message.inputs, message.overridable, message.outputs)
        inputs, overridable, outputs = (tuple(map(read_value, value_messages)) for value_messages in rows)
        return Signature(inputs, overridable, outputs, read_metadata(message.metadata))

    def shapes(self, plan: Message) -> dict[str, tuple[int, ...]]:
        """The shapes of inputs that a plan is for."""
        return {name: read_sizes(row) for name, row in zip(self.message.order, plan.shapes, strict=True)}

    def report(self, plan: Message) -> bytes:
        """The report of a plan as JSON; the model as it was has that of the first plan."""
        described = self.message.plans[0] if plan is self.whole else plan
        return bytes(self.container.contents(described.report, REPORT))

    def _whole(self) -> Message | None:
        message = self.message
        if not message.HasField("whole"):
            return None
        plan = MESSAGES.new("Plan")
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
    message = MESSAGES.parse_whole("CompiledModel", contents)
    if not 1 <= message.version <= VERSION:
        raise CompiledModelError(
            f"{name!r} holds a compiled model of version {message.version}, and this nnadapter knows 1 to {VERSION}; "
            f"update nnadapter, or {ADVICE}",
            file=name,
        )
    return message
