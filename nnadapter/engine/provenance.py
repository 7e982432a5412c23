"""Where the results of a run came from, and what passed between the host and devices for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from nnadapter.drivers.tensor_copies import Transfer
    from nnadapter.engine.fallback import Incident


class StepRun(NamedTuple):
    """What happened to one step in one run."""

    segment: int
    device: str
    """The device that the result came from."""
    seconds: float
    failure: str = ""
    """Why the step's own device did not deliver, if it did not."""
    incidents: tuple[Incident, ...] = ()
    """What went wrong, also where a repetition went well."""


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
    def incidents(self) -> tuple[Incident, ...]:
        """What went wrong in the run, in the order of its steps."""
        return tuple([incident for step in self.steps for incident in step.incidents])

    @property
    def fell_back(self) -> bool:
        """Some step ran elsewhere than planned."""
        return any(step.failure for step in self.steps)


def with_incidents(provenance: Provenance, incidents: tuple[Incident, ...]) -> Provenance:
    """The same of a run that was repeated because of these; its first step has them."""
    if not incidents:
        return provenance
    first, *others = provenance.steps
    return provenance._replace(steps=(first._replace(incidents=(*incidents, *first.incidents)), *others))


_NEW = tuple.__new__


def of_one(segment: int, device: str, seconds: float) -> Provenance:
    """Return that of a run of one step that went well.

    Made as the classes themselves do it, without their two calls: a tenth of what is left beside a run of next to
    nothing.
    """
    return _NEW(Provenance, ((_NEW(StepRun, (segment, device, seconds, "", ())),), ()))
