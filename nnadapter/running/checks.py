"""What holds the runs of an engine of plans to the CPU, where a session asks for it; see `nnadapter.accuracy`."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import Any, Protocol

from nnadapter.running.compiled import RunnablePlan
from nnadapter.running.incidents import Incident
from nnadapter.running.provenance import Provenance


class Checks(Protocol):
    """Those of one session. Usable from many threads at once."""

    first: Lock
    """Held by the run whose plan is checked before anybody gets results of it."""

    def is_due(self) -> bool:
        """Count a run; whether it is one of those that are compared."""

    def is_checked(self, plan: RunnablePlan) -> bool:
        """Whether results of a plan may be given to anybody."""

    def after(self, plan: RunnablePlan, provenance: Provenance, values: Sequence[Any]) -> tuple[Incident, ...]:
        """Compare every step of a run.

        Args:
            plan: that was run.
            provenance: of the run.
            values: by slot, all that its steps read and made; none where the model ran as it was.

        Returns:
            What was found to be wrong, and taken from its device: such a run is to be repeated. Nothing else.

        Raises:
            AccuracyError: something is wrong, and the policy forbids that another device does it.
        """

    @property
    def count(self) -> int:
        """How many plans were found to be right, or made right."""

    @property
    def notes(self) -> Sequence[str]:
        """What is to be said of it in reports."""
