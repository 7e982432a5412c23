"""Where inputs choose among the plans of a file: conditions as messages, and back. See `nnadapter.running.deciding`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nnadapter.compiled_models.compiled_file import CompiledFile
from nnadapter.compiled_models.messages import ONNX, Message
from nnadapter.drivers.capability import ModelForm
from nnadapter.errors import NNAdapterError, describe
from nnadapter.files.container.format import ContainerWriter
from nnadapter.onnx.preparation.branch_decisions import BranchDecision, Conditions, Truths, decisions_text
from nnadapter.running.deciding import Fork


def write_fork(
    message: Message, truths: Truths, conditions: Conditions, texts: Sequence[str], writer: ContainerWriter
) -> None:
    """Fill a Fork message.

    Args:
        message: the message.
        truths: which conditions hold before it comes to this.
        conditions: that decide here.
        texts: the same as a person reads them.
        writer: takes the model that computes them.
    """
    message.truths.extend(truths)
    message.inputs.extend(conditions.inputs)
    message.shapes.extend(conditions.shapes)
    for name, text in zip(conditions.results, texts, strict=True):
        row = message.conditions.add()
        row.name, row.text = name, text
    if conditions.contents:
        message.model.form = ModelForm.ONNX.value
        message.model.inputs.extend((*conditions.inputs, *conditions.shapes))
        message.model.part = writer.add(ONNX, conditions.contents)


def fork_of(file: CompiledFile) -> Fork[Truths] | None:
    """Return where inputs choose first among the plans of a file; None where they do not.

    Raises:
        CompiledModelError: it is damaged.
    """
    forks = {tuple(row.truths): row for row in file.message.forks}
    return _fork(file, (), forks) if () in forks else None


def choice_in_words(file: CompiledFile, truths: Sequence[bool]) -> str:
    """Return when inputs choose what is known by these truths, in words; empty where they choose nothing."""
    forks, taken = {tuple(row.truths): row for row in file.message.forks}, list[BranchDecision]()
    while len(taken) < len(truths):
        row = forks[tuple(truths[: len(taken)])]
        holds = truths[len(taken) : len(taken) + len(row.conditions)]
        taken.extend(
            BranchDecision(condition.text, truth, ()) for condition, truth in zip(row.conditions, holds, strict=True)
        )
    return decisions_text(taken)


def _fork(file: CompiledFile, before: Truths, forks: Mapping[Truths, Message]) -> Fork[Truths]:
    row = forks[before]
    contents = bytes(file.container.contents(row.model.part, ONNX)) if row.HasField("model") else b""
    names = tuple(condition.name for condition in row.conditions)
    conditions = Conditions(tuple(row.inputs), tuple(row.shapes), names, contents)

    def behind(truths: Truths) -> Fork[Truths] | Truths:
        after = (*before, *truths)
        return _fork(file, after, forks) if after in forks else after

    def fail(error: BaseException) -> Truths:
        if isinstance(error, NNAdapterError):
            raise error
        raise file.container.damaged(f"what inputs choose cannot be told: {describe(error)}") from error

    return Fork(conditions, behind, fail)
