"""The plans of a class of shapes whose devices compile for fixed sizes, as sessions keep them (`running.filling`)."""

from __future__ import annotations

from dataclasses import dataclass

from nnadapter.running.compiled import Compiled
from nnadapter.running.filling import Filling, FillsPlans, SharesPrograms


@dataclass(frozen=True, eq=False, kw_only=True)
class FilledClass(FillsPlans, Compiled):
    """A class of shapes; it does not run itself, but the plans that are filled."""

    filling: Filling[Filled]


@dataclass(frozen=True, eq=False, kw_only=True)
class Filled(SharesPrograms, Compiled):
    """A plan at one set of sizes, whose programs it shares with others of its class."""

    of: Filling[Filled]
