"""What a person demands: read once per session, and held against one model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from nnadapter.options import Fallback, Options, fallback_at
from nnadapter.policies import POLICIES, Policy
from nnadapter.rules.values import Rules

if TYPE_CHECKING:
    from nnadapter.plan_files.binding import MatchedPlan
    from nnadapter.plan_files.values import PlanFile
    from nnadapter.rules.applying import Applied

Kept = Mapping[int, str]
"""Atom -> the device that it stays on as long as that takes it."""
NOTHING_KEPT: Kept = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Constraints:
    """What a person demands of every model of a session."""

    policy: Policy = POLICIES["priority"]
    fallback: Fallback = "warn"
    rules: Rules = field(default_factory=Rules)
    """Pins, bans and limits."""
    plan_file: PlanFile | None = None

    def fallback_at(self, stage: str) -> str:
        """See `Options.fallback_at`."""
        return fallback_at(self.fallback, stage)


def read_constraints(options: Options) -> Constraints:
    """Return what a person demands.

    Raises:
        RulesError: the rules contradict themselves, or their file cannot be read.
        PlanFileError: the plan file cannot be read.
    """
    plan_file, rules = None, Rules()
    if options.plan is not None:  # most people write neither
        from nnadapter.plan_files.reading import read_plan

        plan_file = read_plan(options.plan)
    if options.rules is not None:
        from nnadapter.rules.reading import read_rules

        rules = read_rules(options.rules)
    return Constraints(POLICIES[options.policy], options.fallback, rules, plan_file)


@dataclass(frozen=True, eq=False, slots=True)
class Demands:
    """What comes of constraints for one model at one set of shapes."""

    applied: Applied | None = None
    """What rules did; None where there are none."""
    bound: MatchedPlan | None = None
    """What the plan file says; None where there is none."""
    whole: Kept | None = None
    """A whole placement that shall not be weighed against others; None where the policy decides."""

    @property
    def kept(self) -> Kept:
        """Atoms that stay where they are put as long as their device takes them."""
        if self.whole is not None:
            return self.whole
        return NOTHING_KEPT if self.bound is None else self.bound.placement
