"""Conformance kit: selection and runs of a device's cases, the score card, and folders of failures."""

from __future__ import annotations

import atexit
import json
import platform
import shutil
import unittest
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from time import perf_counter
from types import MappingProxyType
from typing import Any

import numpy as np

import nnadapter.testing.ir_cases as ir_cases
import nnadapter.testing.onnx_cases as onnx_cases
from nnadapter.drivers.capability import ModelForm
from nnadapter.errors import NNAdapterError
from nnadapter.ir import Array, Model, to_text
from nnadapter.ir.protobuf.serialization import save
from nnadapter.process.packages import installed_version, own_version
from nnadapter.records import dataclass
from nnadapter.report.sections import code, table
from nnadapter.testing.dynamic_shape_cases import sizes
from nnadapter.testing.onnx_cases import operator_tests
from nnadapter.testing.program_cases import programs
from nnadapter.testing.subjects import (
    Bench,
    Case,
    Cases,
    Evidence,
    FailedOutcome,
    Outcome,
    OutcomeKind,
    PassedOutcome,
    Settings,
    SkippedOutcome,
    repeat_command,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRow:
    """Outcome of a case."""

    name: str
    outcome: Outcome

    @property
    def group(self) -> str:
        return self.name.partition("/")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Counts of outcomes in a group."""

    passed: int
    failed: int
    skipped: int


@dataclass(frozen=True, kw_only=True)
class ScoreCard:
    """Outcomes of a run of the kit."""

    settings: Settings
    rows: tuple[ScoreRow, ...]
    seconds: float

    @cached_property
    def failures(self) -> tuple[tuple[ScoreRow, FailedOutcome], ...]:
        return tuple((row, row.outcome) for row in self.rows if isinstance(row.outcome, FailedOutcome))

    @property
    def all_passed(self) -> bool:
        return not self.failures and any(isinstance(row.outcome, PassedOutcome) for row in self.rows)

    @cached_property
    def kinds(self) -> dict[OutcomeKind, int]:
        return dict(Counter(failed.kind for _, failed in self.failures))

    @cached_property
    def uncompiled_claims(self) -> tuple[str, ...]:
        return tuple(row.name for row, failed in self.failures if failed.kind is OutcomeKind.DOES_NOT_COMPILE)

    @cached_property
    def groups(self) -> dict[str, Tally]:
        names = dict.fromkeys(row.group for row in self.rows)
        return {name: self._tally(name) for name in names}

    def _tally(self, group: str) -> Tally:
        counts = Counter(type(row.outcome) for row in self.rows if row.group == group)
        return Tally(passed=counts[PassedOutcome], failed=counts[FailedOutcome], skipped=counts[SkippedOutcome])

    def to_dict(self) -> dict[str, Any]:
        return {
            "device": self.settings.device,
            "options": dict(self.settings.options),
            "precision": self.settings.precision.value,
            "seed": self.settings.seed,
            "all_passed": self.all_passed,
            "seconds": round(self.seconds, 1),
            "groups": {name: asdict(tally) for name, tally in self.groups.items()},
            "failures": [
                {"case": row.name, "kind": failed.kind.value, "detail": failed.detail} for row, failed in self.failures
            ],
            "uncompiled_claims": list(self.uncompiled_claims),
            "skipped": [
                {"case": row.name, "reason": row.outcome.reason}
                for row in self.rows
                if isinstance(row.outcome, SkippedOutcome)
            ],
        }


GROUPS: Mapping[ModelForm, Mapping[str, Cases]] = MappingProxyType(
    {
        ModelForm.IR: MappingProxyType(
            {
                "operations": ir_cases.operations,
                "boundary": ir_cases.boundaries,
                "graphs": ir_cases.graphs,
                "refusals": ir_cases.refusals,
                "sizes": sizes,
                "onnx": operator_tests,
                "programs": programs,
            }
        ),
        ModelForm.ONNX: MappingProxyType(
            {
                "operations": ir_cases.operations,
                "onnx": operator_tests,
                "boundary": onnx_cases.boundaries,
                "graphs": onnx_cases.graphs,
                "refusals": onnx_cases.refusals,
                "sizes": sizes,
                "programs": programs,
            }
        ),
    }
)
MOST_LOST = 5
"""Number of device losses in a group after which its remaining cases are skipped."""


def cases_of(bench: Bench, pattern: str = "", limit: int | None = None) -> list[Case]:
    """Return at most `limit` cases per group with names that contain `pattern` or match it as a glob."""
    cases: list[Case] = []
    for name, group in GROUPS[bench.capability.form].items():
        if "/" in pattern and not fnmatchcase(name, pattern.partition("/")[0]):
            continue
        cases += [case for case in group(bench) if _matches(case.name, pattern)][:limit]
    return [case for case in cases if case.name == pattern] or cases


def _matches(name: str, pattern: str) -> bool:
    return pattern in name or fnmatchcase(name, pattern)


def run_cases(
    bench: Bench, cases: list[Case], callback: Callable[[Case, Outcome], None] = lambda case, outcome: None
) -> ScoreCard:
    """Run cases, and call `callback` after each, without closing the device."""
    started = perf_counter()
    rows = []
    for case, outcome in _outcomes(bench, cases):
        callback(case, outcome)
        rows.append(ScoreRow(name=case.name, outcome=outcome))
    return ScoreCard(settings=bench.settings, rows=tuple(rows), seconds=perf_counter() - started)


def _outcomes(bench: Bench, cases: list[Case]) -> Iterator[tuple[Case, Outcome]]:
    lost: Counter[str] = Counter()
    for case in cases:
        if lost[case.group] >= MOST_LOST:
            yield case, SkippedOutcome(f"skipped: the group lost the device {MOST_LOST} times")
            continue
        outcome = case.run(bench)
        lost[case.group] += isinstance(outcome, FailedOutcome) and outcome.kind in (
            OutcomeKind.CRASHED,
            OutcomeKind.HUNG,
        )
        yield case, outcome


def run_conformance(
    settings: Settings,
    *,
    pattern: str = "",
    limit: int | None = None,
    on_result: Callable[[Case, Outcome], None] = lambda case, outcome: None,
) -> ScoreCard:
    """Open a device, run its conformance cases, and close it.

    Raises:
        DeviceNotFoundError, DeviceUnavailableError, InvalidOptionError: the device cannot be opened.
    """
    bench = Bench(settings)
    try:
        return run_cases(bench, cases_of(bench, pattern, limit), on_result)
    finally:
        bench.close()


@dataclass(frozen=True, slots=True, eq=False)
class BoundCase:
    """Conformance case bound to the device that it tests."""

    case: Case
    bench: Bench

    @property
    def name(self) -> str:
        return self.case.name

    def check(self) -> None:
        """Run the case.

        Raises:
            AssertionError: the driver failed. unittest.SkipTest: the case is not for this device.
        """
        outcome = self.case.run(self.bench)
        if isinstance(outcome, SkippedOutcome):
            raise unittest.SkipTest(outcome.reason)
        if isinstance(outcome, FailedOutcome):
            command = repeat_command(self.bench.settings, self.name)
            raise AssertionError(f"{outcome.kind.value}: {outcome.detail}\nrepeat: {command}")

    def __str__(self) -> str:
        return self.name


def conformance_cases(
    device: str,
    *,
    options: Mapping[str, Any] | None = None,
    pattern: str = "",
    limit: int | None = None,
    **settings: Any,
) -> list[BoundCase]:
    """Return the cases for a device, which is open in a separate process until this process ends.

    `options` are for its context. `pattern` is a part of names, or a glob; `limit` is the maximum number of cases per
    group. `settings` are other fields of `Settings`, such as `short=True`.

    Raises:
        DeviceNotFoundError, DeviceUnavailableError, InvalidOptionError: the device cannot be opened.
    """
    bench = Bench(Settings(device=device, options=dict(options or {}), **settings))
    atexit.register(bench.close)
    return [BoundCase(case, bench) for case in cases_of(bench, pattern, limit)]


MOST_SHOWN = 40


def score_to_text(card: ScoreCard) -> str:
    """Return headline, groups, failures, and cases supported but not compiled, as text."""
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
        yield from ("", f"repeat one of them: {repeat_command(card.settings, card.failures[0][0].name)}")
    if card.uncompiled_claims:
        yield from ("", "reported as supported, but not compiled")
        yield from (f"  {name}" for name in card.uncompiled_claims[:MOST_SHOWN])
        yield from _left_out(len(card.uncompiled_claims))


def headline(card: ScoreCard) -> str:
    """Return the verdict in one line."""
    passed = sum(tally.passed for tally in card.groups.values())
    if card.all_passed:
        verdict = "full marks"
    elif not card.failures:
        verdict = "nothing was tested: the device supports none of the cases"
    else:
        verdict = f"{len(card.failures)} failures"
    ran = passed + len(card.failures)
    return f"{card.settings.device}: {verdict}; {passed} of {ran} cases passed in {card.seconds:.0f} s"


def _left_out(count: int) -> Iterator[str]:
    if count > MOST_SHOWN:
        yield f"  ... and {count - MOST_SHOWN} more; the JSON form has them all"


def to_markdown(card: ScoreCard) -> str:
    """Return the card as Markdown."""
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
        yield f"Repeat one of them: {code(repeat_command(card.settings, card.failures[0][0].name))}"
    if card.uncompiled_claims:
        yield "## Reported as supported, but not compiled"
        yield table(
            ("case",), [(code(name),) for name in card.uncompiled_claims[:MOST_SHOWN]], len(card.uncompiled_claims)
        )


_PACKAGES = ("numpy", "onnx", "onnxruntime", "ml-dtypes")


def keep_failure(folder: Path, settings: Settings, name: str, failed: FailedOutcome) -> Path:
    """Write a failure to a new folder in `folder`, atomically. Raises OSError."""
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
    except (NNAdapterError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError):  # invalid model
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
