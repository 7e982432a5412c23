"""What a person demands: read once per session, and held against one model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from nnadapter.options import Options
from nnadapter.plan_files.binding import BoundPlan
from nnadapter.plan_files.reading import read_plan
from nnadapter.plan_files.values import PlanFile
from nnadapter.policies import POLICIES, Policy
from nnadapter.rules.applying import Applied
from nnadapter.rules.reading import read_rules
from nnadapter.rules.values import Rules

Kept = Mapping[int, str]
"""Atom -> the device that it stays on as long as that takes it."""
NOTHING_KEPT: Kept = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Constraints:
    """What a person demands of every model of a session."""

    policy: Policy = POLICIES["priority"]
    fallback: str = "warn"
    rules: Rules = field(default_factory=Rules)
    """Pins, bans and limits."""
    plan_file: PlanFile | None = None


def read_constraints(options: Options) -> Constraints:
    """Return what a person demands.

    Raises:
        RulesError: the rules contradict themselves, or their file cannot be read.
        PlanFileError: the plan file cannot be read.
    """
    plan_file = None if options.plan is None else read_plan(options.plan)
    rules = Rules() if options.rules is None else read_rules(options.rules)
    return Constraints(POLICIES[options.policy], options.fallback, rules, plan_file)


@dataclass(frozen=True, eq=False, slots=True)
class Demands:
    """What comes of constraints for one model at one set of shapes."""

    applied: Applied | None = None
    """What rules did; None where there are none."""
    bound: BoundPlan | None = None
    """What the plan file says; None where there is none."""
    whole: Kept | None = None
    """A whole placement that shall not be weighed against others; None where the policy decides."""

    @property
    def kept(self) -> Kept:
        """Atoms that stay where they are put as long as their device takes them."""
        if self.whole is not None:
            return self.whole
        return NOTHING_KEPT if self.bound is None else self.bound.placement
