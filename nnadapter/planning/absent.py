"""Devices that failed when a session was to open them: what is said of that, by the policy of stage `load`.

A device that is not there, or an option that does not fit, is an error whatever the policy is: nobody failed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from nnadapter.drivers.selection import HOSTS, DeviceRequest, Selected, named_requests
from nnadapter.errors import (
    DeviceOpeningError,
    DriverError,
    FallbackWarning,
    NNAdapterError,
    OutOfMemoryError,
    describe,
)

INSTEAD = "the session goes on without it"
"""What is done."""
_FAILURES = (DeviceOpeningError, DriverError, OutOfMemoryError)
_Opened = TypeVar("_Opened")


class Absent(NamedTuple):
    """A device that the person named and the session does not have."""

    device: str
    kind: str
    """Name of the error's class."""
    message: str
    """What happened, in one sentence."""


class Absents(list[Absent]):
    """Those of one session.

    Args:
        policy: of stage `load`: `warn`, `allow` or `forbid`.
    """

    def __init__(self, policy: str) -> None:
        super().__init__()
        self._policy = policy

    def select(
        self,
        requests: DeviceRequest | Sequence[DeviceRequest],
        selects: Callable[[Sequence[DeviceRequest]], tuple[Selected, ...]],
    ) -> tuple[Selected, ...]:
        """Return what `selects` makes of the requests; devices that fail to open are left out.

        Raises:
            NNAdapterError: a device failed and may not, or the caller is at fault.
        """
        left: dict[str, DeviceRequest] = {name: (name, options) for name, options in named_requests(requests).items()}
        while True:
            try:
                return selects(list(left.values()))
            except _FAILURES as error:
                if error.device not in left:
                    raise
                self._leave_out(error.device, error)
                del left[error.device]

    def opened(self, name: str, opens: Callable[[], _Opened]) -> _Opened | None:
        """Return what `opens` gives; None where the device fails.

        Raises:
            NNAdapterError: see `select`.
        """
        try:
            return opens()
        except _FAILURES as error:
            self._leave_out(name, error)
            return None

    def _leave_out(self, name: str, error: NNAdapterError) -> None:
        if self._policy == "forbid" or name in HOSTS:
            raise error
        told = describe(error)
        message = told if repr(name) in told else f"device {name!r} failed when it was opened: {told}"
        self.append(Absent(name, type(error).__name__, message))
        if self._policy == "warn":
            warnings.warn(f"{message}; {INSTEAD}", FallbackWarning, stacklevel=5)
