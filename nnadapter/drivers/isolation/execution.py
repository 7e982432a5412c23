"""An execution of a program in another process."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from nnadapter.drivers.control import UNLIMITED, Control
from nnadapter.drivers.interface import Execution
from nnadapter.drivers.isolation.lane import Computation, Form
from nnadapter.drivers.isolation.made import Made, RemoteLocation
from nnadapter.ir.operand import Array


class IsolatedExecution(Execution):
    """See `nnadapter.drivers.isolated`; as many threads compute at once as the device allows.

    Args:
        program: where its program is.
        forms: of what it makes, where that is known.
        limit: seconds that something may take.
    """

    def __init__(self, program: Made, forms: Sequence[Form] | None, limit: Callable[[str], float]) -> None:
        self._program, self._forms, self._limit = program, forms, limit
        self._limit_s = limit("compute")
        self.made = Made(self._create)
        """Where it is."""
        self.made.there()

    @property
    def number(self) -> int:
        """By which its process knows it."""
        return self.made.there().number

    def compute(self, inputs: Sequence[Array]) -> Sequence[Array]:
        """See `Execution.compute`."""
        return self.computed(inputs)

    def compute_within(self, inputs: Sequence[Array], control: Control) -> Sequence[Array]:
        """See `Execution.compute_within`: a driver that does not stop in time is stopped with its process.

        Raises:
            DeviceTimeoutError: it was.
        """
        return self.computed(inputs, control=control)

    def compute_into(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Sequence[Array]:
        """See `Execution.compute_into`: straight into memory that is shared, by a copy into any other."""
        return self.computed(inputs, outputs)

    def at(self, sizes: Sequence[Any]) -> Execution:
        """See `Execution.at`."""
        return _AtSizes(self, sizes)

    def close(self) -> None:
        """See `Execution.close`."""
        self.made.close(self._limit("close"))

    def computed(
        self,
        inputs: Sequence[Array],
        into: Sequence[Array] = (),
        control: Control = UNLIMITED,
        sizes: Sequence[Any] | None = None,
    ) -> Sequence[Array]:
        """What a run computes; see `Computation`."""
        seconds = control.deadline_seconds
        location = self.made.there(time.monotonic() + seconds if seconds else None)
        computation = Computation(location.number, inputs, self._forms, into, sizes, control)
        results: Sequence[Array] = location.child.run(computation, self._limit_s)
        return results

    def _create(self) -> RemoteLocation:
        location = self._program.there()
        number = location.child.ask("create_execution", self._limit("create_execution"), program=location.number)
        return RemoteLocation(location.child, number)


class _AtSizes(Execution):
    """An execution at some sizes; it belongs to that one."""

    def __init__(self, whole: IsolatedExecution, sizes: Sequence[Any]) -> None:
        self._whole, self._sizes = whole, sizes

    def compute(self, inputs: Sequence[Array]) -> Sequence[Array]:
        """See `Execution.compute`."""
        return self._whole.computed(inputs, sizes=self._sizes)

    def compute_within(self, inputs: Sequence[Array], control: Control) -> Sequence[Array]:
        """See `Execution.compute_within`."""
        return self._whole.computed(inputs, control=control, sizes=self._sizes)
