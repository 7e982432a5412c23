"""What is checked: the plans of an engine, as far as checks ask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from nnadapter.accuracy.locating import ErrorLocation
from nnadapter.accuracy.tolerances import Allowed
from nnadapter.running.bound_step import BoundStep
from nnadapter.running.compiled import RunnablePlan
from nnadapter.running.incidents import Incidents


class Subject(Protocol):
    """The plans of an engine."""

    @property
    def incidents(self) -> Incidents:
        """Of the session."""

    def nodes(self, plan: RunnablePlan, bound: BoundStep) -> Sequence[str]:
        """Names of the nodes of a step."""

    def allowed(self, plan: RunnablePlan, bound: BoundStep) -> Allowed:
        """What the precision of a step's device allows."""

    def locate(self, plan: RunnablePlan, bound: BoundStep, values: Sequence[Any]) -> ErrorLocation:
        """Find what is wrong with a step that is off, in a run with these values by slot."""

    def known(self, plan: RunnablePlan, bound: BoundStep) -> ErrorLocation | None:
        """What was found of a step before, with this version of its driver; None where it was never checked."""

    def keep(self, plan: RunnablePlan, bound: BoundStep, located: ErrorLocation) -> ErrorLocation:
        """Keep what was found of a step, with a small model that shows it; the same with where that lies."""

    def take_back(self, plan: RunnablePlan, bound: BoundStep, nodes: Sequence[str], reason: str) -> None:
        """Take nodes of a step from its device for the rest of the session; all that it has where there are none."""
