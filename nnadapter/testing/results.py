"""Output of a conformance run: score card as text and Markdown, and a folder for each failure.

Each failure as a folder: model, inputs, what was expected and got, versions, and the command that repeats it.

operations__ADD__0/
failure.json        case, kind, detail, versions, command, and the data types of all arrays
model.onnx          or model.nnadapter with its weights; what is too broken for either is in model.txt
input_0.npy ...     expected_0.npy ...     got_0.npy ...
"""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from nnadapter.errors import NNAdapterError
from nnadapter.ir.model import Model
from nnadapter.ir.operand import Array
from nnadapter.ir.protobuf.serialization import save
from nnadapter.ir.text import to_text
from nnadapter.process.packages import installed_version, own_version
from nnadapter.report.sections import code, table
from nnadapter.testing.bench import Settings, repeat_command
from nnadapter.testing.kit import ScoreCard
from nnadapter.testing.subjects import Evidence, FailedOutcome

MOST_SHOWN = 40
"""Failures that are listed; the JSON form has them all."""


def score_to_text(card: ScoreCard) -> str:
    """Return the card as lines: the verdict, a row per group, failures, and what was claimed in vain."""
    return "\n".join(_lines(card))


def _lines(card: ScoreCard) -> Iterator[str]:
    yield headline(card)
    yield ""
    width = max((len(name) for name in card.groups), default=0)
    yield f"{'':<{width}}  passed  failed  not for this device"
    for name, tally in card.groups.items():
        yield f"{name:<{width}}  {tally.passed:>6}  {tally.failed:>6}  {tally.skipped:>6}"
    if card.failures:
        yield from ("", "kinds of failure")
        yield from (f"  {count:>5}  {kind.value}" for kind, count in card.kinds.items())
        yield from ("", "failures")
        for row, failed in card.failures[:MOST_SHOWN]:
            yield f"  {row.name}: {failed.kind.value}: {failed.detail}"
        yield from _left_out(len(card.failures))
        yield from ("", f"one of them again: {repeat_command(card.settings, card.failures[0][0].name)}")
    if card.uncompiled_claims:
        yield from ("", "said to be supported, and not compiled")
        yield from (f"  {name}" for name in card.uncompiled_claims[:MOST_SHOWN])
        yield from _left_out(len(card.uncompiled_claims))


def headline(card: ScoreCard) -> str:
    """One line that says how it went."""
    passed = sum(tally.passed for tally in card.groups.values())
    if card.all_passed:
        verdict = "full marks"
    elif not card.failures:
        verdict = "nothing was tested: the device took none of the cases"
    else:
        verdict = f"{len(card.failures)} failures"
    ran = passed + len(card.failures)
    return f"{card.settings.device}: {verdict}; {passed} of {ran} cases passed in {card.seconds:.0f} s"


def _left_out(count: int) -> Iterator[str]:
    if count > MOST_SHOWN:
        yield f"  ... and {count - MOST_SHOWN} more; the JSON form has them all"


def to_markdown(card: ScoreCard) -> str:
    """Return the card as headings and tables."""
    return "\n\n".join(_blocks(card)) + "\n"


def _blocks(card: ScoreCard) -> Iterator[str]:
    yield f"# Conformance of {code(card.settings.device)}"
    yield f"{headline(card)}."
    yield table(
        ("group", "passed", "failed", "not for this device"),
        [(name, str(tally.passed), str(tally.failed), str(tally.skipped)) for name, tally in card.groups.items()],
    )
    if card.failures:
        yield "## Failures"
        yield table(
            ("case", "what", "detail"),
            [(code(row.name), failed.kind.value, code(failed.detail)) for row, failed in card.failures[:MOST_SHOWN]],
            len(card.failures),
        )
        yield f"One of them again: {code(repeat_command(card.settings, card.failures[0][0].name))}"
    if card.uncompiled_claims:
        yield "## Said to be supported, and not compiled"
        yield table(
            ("case",), [(code(name),) for name in card.uncompiled_claims[:MOST_SHOWN]], len(card.uncompiled_claims)
        )


_PACKAGES = ("numpy", "onnx", "onnxruntime", "ml-dtypes")


def keep_failure(folder: Path, settings: Settings, name: str, failed: FailedOutcome) -> Path:
    """Write a failure to a folder of its own in `folder`, whole or not at all, and return it.

    Raises:
        OSError: it cannot be written.
    """
    target = folder / name.replace("/", "__")
    part = folder / f".{target.name}.part"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        evidence = failed.evidence
        if evidence.model is not None:
            _write_model(part, evidence)
        groups = {"input": evidence.inputs, "expected": evidence.expected, "got": evidence.got}
        for kind, arrays in groups.items():
            _write_arrays(part, kind, arrays)
        facts = {
            "case": name,
            "kind": failed.kind.value,
            "detail": failed.detail,
            "command": repeat_command(settings, name),
            "versions": _versions(),
            "arrays": {kind: [_array_text(array) for array in arrays] for kind, arrays in groups.items()},
        }
        (part / "failure.json").write_text(json.dumps(facts, indent=2) + "\n")
        shutil.rmtree(target, ignore_errors=True)
        part.rename(target)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return target


def _write_model(folder: Path, evidence: Evidence) -> None:
    model = evidence.model
    if not isinstance(model, Model):
        (folder / "model.onnx").write_bytes(model.SerializeToString())
        return
    try:
        save(model, folder / "model.nnadapter")
        text = to_text(model)
    except (NNAdapterError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError):  # it is invalid
        text = "\n".join(map(repr, (*model.operands, *model.operations, model.inputs, model.outputs)))
    (folder / "model.txt").write_text(text + "\n")


def _write_arrays(folder: Path, kind: str, arrays: Sequence[Array]) -> None:
    for position, array in enumerate(arrays):
        np.save(folder / f"{kind}_{position}.npy", array, allow_pickle=array.dtype == object)


def _array_text(array: Array) -> str:
    return f"{array.dtype.name}{list(array.shape)}"


def _versions() -> dict[str, str]:
    return {
        "nnadapter": own_version(),
        "python": platform.python_version(),
        "system": platform.platform(),
        **{package: installed_version(package) for package in _PACKAGES},
    }
