"""One case: a name, and what is done with the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from nnadapter.errors import DeviceLostError, DeviceTimeoutError, NNAdapterError
from nnadapter.testing.bench import Bench, CaseFailure
from nnadapter.testing.outcomes import FailedOutcome, Outcome, OutcomeKind


@dataclass(frozen=True, slots=True)
class Case:
    """One case. The same name, seed and device give the same case again."""

    name: str
    """`group/what/number`."""
    act: Callable[[Bench, Random], Outcome]

    @property
    def group(self) -> str:
        """The first part of its name."""
        return self.name.partition("/")[0]

    def run(self, bench: Bench) -> Outcome:
        """Do it; whatever the driver does, something comes of it."""
        try:
            return self.act(bench, Random(f"{bench.settings.seed}/{self.name}"))
        except CaseFailure as broken:
            return broken.failed
        except DeviceLostError as error:
            return FailedOutcome(
                OutcomeKind.HUNG if isinstance(error, DeviceTimeoutError) else OutcomeKind.CRASHED, str(error)
            )
        except NNAdapterError as error:
            return FailedOutcome(OutcomeKind.WRONG_ANSWER, f"{type(error).__name__}: {error}")


Cases = Callable[[Bench], Iterator[Case]]
"""A group: the cases that there are for a device, made when they are run."""
