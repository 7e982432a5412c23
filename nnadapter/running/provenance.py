"""Where the results of a run came from, and what passed between the host and devices for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from nnadapter.drivers.copies import Transfer


class StepRun(NamedTuple):
    """What happened to one step in one run."""

    segment: int
    device: str
    """The device that the result came from."""
    seconds: float
    failure: str = ""
    """Why the step's own device did not deliver, if it did not."""


class Provenance(NamedTuple):
    """Where the results of one run came from."""

    steps: tuple[StepRun, ...]
    transfers: tuple[Transfer, ...] = ()
    """What passed between the host and devices that have memory of their own and whose values stay there; what others
    are given and give is not among it."""

    @property
    def seconds(self) -> float:
        """Of all steps together."""
        return sum([step.seconds for step in self.steps])

    @property
    def fell_back(self) -> bool:
        """Some step ran elsewhere than planned."""
        return any(step.failure for step in self.steps)
