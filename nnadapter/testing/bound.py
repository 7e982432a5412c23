"""Cases as tests: each bound to its device, for pytest and for whoever runs tests otherwise."""

from __future__ import annotations

import atexit
import unittest
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nnadapter.testing.bench import Bench, Settings
from nnadapter.testing.case import Case
from nnadapter.testing.commands import repeat_command
from nnadapter.testing.kit import cases_of
from nnadapter.testing.outcomes import FailedOutcome, SkippedOutcome


@dataclass(frozen=True, slots=True, eq=False)
class BoundCase:
    """One case of one device."""

    case: Case
    bench: Bench

    @property
    def name(self) -> str:
        """See `Case.name`."""
        return self.case.name

    def check(self) -> None:
        """Run it.

        Raises:
            AssertionError: the driver did something wrong.
            unittest.SkipTest: the case is not for this device; pytest takes it for a skip too.
        """
        outcome = self.case.run(self.bench)
        if isinstance(outcome, SkippedOutcome):
            raise unittest.SkipTest(outcome.reason)
        if isinstance(outcome, FailedOutcome):
            command = repeat_command(self.bench.settings, self.name)
            raise AssertionError(f"{outcome.kind.value}: {outcome.detail}\nagain: {command}")

    def __str__(self) -> str:
        """The name, as pytest shows it."""
        return self.name


def conformance_cases(
    device: str,
    *,
    options: Mapping[str, Any] | None = None,
    pattern: str = "",
    limit: int | None = None,
    **settings: Any,
) -> list[BoundCase]:
    """Return the cases for a device, which is opened in a process of its own for as long as this one lives.

    Args:
        device: its name, as in `nnadapter devices`.
        options: of its context.
        pattern: a part of names, or a glob; all cases if empty.
        limit: at most so many of each group.
        settings: further fields of `Settings`, such as `short=True`.

    Raises:
        DeviceNotFoundError, DeviceUnavailableError: there is no such device, or it cannot be used here.
        InvalidOptionError: an option does not exist or does not fit.
    """
    bench = Bench(Settings(device=device, options=dict(options or {}), **settings))
    atexit.register(bench.close)
    return [BoundCase(case, bench) for case in cases_of(bench, pattern, limit)]
