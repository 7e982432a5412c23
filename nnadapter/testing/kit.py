"""The kit: which groups there are for a device, which cases are asked for, and a run of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from time import perf_counter
from types import MappingProxyType

import nnadapter.testing.ir_cases as ir_cases
import nnadapter.testing.onnx_cases as onnx_cases
import nnadapter.testing.size_cases as size_cases
from nnadapter.drivers.capability import ModelForm
from nnadapter.testing.bench import Bench, Settings
from nnadapter.testing.case import Case, Cases
from nnadapter.testing.operator_tests import operator_tests
from nnadapter.testing.outcomes import FailedOutcome, Outcome, OutcomeKind, SkippedOutcome
from nnadapter.testing.program_cases import programs
from nnadapter.testing.score import ScoreCard, ScoreRow

GROUPS: Mapping[ModelForm, Mapping[str, Cases]] = MappingProxyType(
    {
        ModelForm.IR: MappingProxyType(
            {
                "operations": ir_cases.operations,
                "boundary": ir_cases.boundaries,
                "graphs": ir_cases.graphs,
                "refusals": ir_cases.refusals,
                "sizes": size_cases.ir_sizes,
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
                "sizes": size_cases.onnx_sizes,
                "programs": programs,
            }
        ),
    }
)
"""By the form in which a device takes models: groups of cases, in the order in which they run."""
MOST_LOST = 5
"""Times that a group may lose the device; the rest of it is given up."""


def cases_of(bench: Bench, pattern: str = "", limit: int | None = None) -> list[Case]:
    """The cases for a device.

    Args:
        bench: the device.
        pattern: a case's name, or a part of names, or a glob; all cases if empty.
        limit: at most so many of each group.
    """
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
    """Run cases and count.

    Args:
        bench: the device; left open.
        cases: from `cases_of`.
        callback: called after each case.
    """
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
            yield case, SkippedOutcome(f"given up: the group lost the device {MOST_LOST} times")
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
    told: Callable[[Case, Outcome], None] = lambda case, outcome: None,
) -> ScoreCard:
    """Run the kit on a device that is opened and closed for it.

    Raises:
        DeviceNotFoundError, DeviceUnavailableError: there is no such device, or it cannot be used here.
        InvalidOptionError: an option does not exist or does not fit.
    """
    bench = Bench(settings)
    try:
        return run_cases(bench, cases_of(bench, pattern, limit), told)
    finally:
        bench.close()
