"""The plans of a class of shapes whose devices compile for fixed sizes, as sessions keep them (`running.filling`)."""

from __future__ import annotations

from dataclasses import dataclass

from nnadapter.running.compiled import Compiled
from nnadapter.running.filling import ProgramOwner, ProgramSharer, SpecializedPrograms


@dataclass(frozen=True, eq=False, kw_only=True)
class SpecializedPlans(ProgramOwner, Compiled):
    """A class of shapes; it does not run itself, but the plans that are filled."""

    filling: SpecializedPrograms[SpecializedPlan]


@dataclass(frozen=True, eq=False, kw_only=True)
class SpecializedPlan(ProgramSharer, Compiled):
    """A plan at one set of sizes, whose programs it shares with others of its class."""

    of: SpecializedPrograms[SpecializedPlan]
