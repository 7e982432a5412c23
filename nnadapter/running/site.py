"""The devices that a plan is bound to, as far as binding asks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from nnadapter.drivers.capability import Threading
from nnadapter.drivers.crashes import NamedCalls
from nnadapter.drivers.interface import Program
from nnadapter.running.by_trace import pools_of
from nnadapter.running.pool import ExecutionPool
from nnadapter.running.resting import Health
from nnadapter.traces.trace import Trace


def evict_nothing() -> bool:
    """See `Site.make_room`."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDevices:
    """Where plans run: those of a session that has the model, and those of a compiled file."""

    accelerators: frozenset[str]
    """Names of the devices on which nodes count as delegated."""
    owning: frozenset[str]
    """Names of the devices that have memory of their own."""
    threading: Mapping[str, Threading]
    """Of every device, by name."""
    trace: Trace
    """Takes what happens."""
    raw: frozenset[str] = frozenset()
    """Names of the devices whose own code gets the addresses of inputs, see `Device.has_raw_inputs`."""
    rests: bool = True
    """Devices that keep failing rest: the policy lets something else take their place."""
    make_room: Callable[[], bool] = evict_nothing
    """Closes something that holds programs of the session, if nobody uses it now; whether there was anything."""
    _healths: dict[str, Health] = field(default_factory=dict)

    def health(self, device: str) -> Health:
        """Return how a device does, which all plans share."""
        return self._healths.setdefault(device, Health(device, rests=self.rests))

    @property
    def resting(self) -> tuple[str, ...]:
        """What is said of the devices that rest now."""
        return tuple(text for health in list(self._healths.values()) if (text := health.text()))

    def pools(self, calls: NamedCalls) -> Callable[[Program], ExecutionPool]:
        """Return what makes executions of a program of a device, as its threading says."""
        return pools_of(self.trace, self.threading[calls.device], calls)
