"""Provenance of results: the device of every step, and transfers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from nnadapter.drivers.tensor_copies import Transfer
    from nnadapter.engine.fallback import Incident


class StepRun(NamedTuple):
    """Execution of one step in one run."""

    segment: int
    device: str
    """Device that computed the result."""
    seconds: float
    failure: str = ""
    """Failure of the planned device, if any."""
    incidents: tuple[Incident, ...] = ()


class Provenance(NamedTuple):
    """Steps, devices and transfers of one run."""

    steps: tuple[StepRun, ...]
    transfers: tuple[Transfer, ...] = ()
    """Transfers of device-resident values."""

    @property
    def seconds(self) -> float:
        return sum([step.seconds for step in self.steps])

    @property
    def incidents(self) -> tuple[Incident, ...]:
        return tuple([incident for step in self.steps for incident in step.incidents])

    @property
    def fell_back(self) -> bool:
        """True if a step ran on another device than planned."""
        return any(step.failure for step in self.steps)


def with_incidents(provenance: Provenance, incidents: tuple[Incident, ...]) -> Provenance:
    """Return the provenance with incidents of earlier tries added to its first step."""
    if not incidents:
        return provenance
    first, *later = provenance.steps
    return provenance._replace(steps=(first._replace(incidents=(*incidents, *first.incidents)), *later))


_NEW_TUPLE = tuple.__new__


def of_one(segment: int, device: str, seconds: float) -> Provenance:
    """Return the provenance of a successful one-step run, without the slow constructors."""
    return _NEW_TUPLE(Provenance, ((_NEW_TUPLE(StepRun, (segment, device, seconds, "", ())),), ()))
