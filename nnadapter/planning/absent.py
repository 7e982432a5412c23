"""Named devices that failed to open, handled by the fallback policy of stage `load`.

A missing device or a wrong option is an error under any policy.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from nnadapter.drivers.registry import device_of
from nnadapter.drivers.selection import HOSTS, DeviceRequest, Selected, named_requests
from nnadapter.errors import DeviceOpeningError, DriverError, FallbackWarning, OutOfMemoryError, describe

INSTEAD = "the session goes on without it"
_FAILURES = (DeviceOpeningError, DriverError, OutOfMemoryError)
_Opened = TypeVar("_Opened")


class Absent(NamedTuple):
    """Named device that the session lacks."""

    device: str
    kind: str
    message: str


class Absents(list[Absent]):
    """Absent devices of one session, with the fallback policy."""

    def __init__(self, policy: str) -> None:
        super().__init__()
        self._policy = policy

    def select(
        self,
        requests: DeviceRequest | Sequence[DeviceRequest],
        selects: Callable[[Sequence[DeviceRequest]], tuple[Selected, ...]],
    ) -> tuple[Selected, ...]:
        """Return `selects(requests)`, repeated without the devices that fail to open.

        Raises:
            NNAdapterError: the policy forbids a failure, or the requests are not valid.
        """
        remaining_requests: dict[str, DeviceRequest] = {
            name: (name, options) for name, options in named_requests(requests).items()
        }
        while True:
            try:
                return selects(list(remaining_requests.values()))
            except _FAILURES as error:
                failed = [name for name in remaining_requests if error.device in (name, device_of(name))]
                if not failed:
                    raise
                for name in failed:
                    self._leave_out(name, error)
                    del remaining_requests[name]

    def opened(self, name: str, opens: Callable[[], _Opened]) -> _Opened | None:
        """Return `opens()`, or None if the device fails and the policy allows it."""
        try:
            return opens()
        except _FAILURES as error:
            self._leave_out(name, error)
            return None

    def _leave_out(self, name: str, error: Exception) -> None:
        if self._policy == "forbid" or name in HOSTS:
            raise error
        description = describe(error)
        message = (
            description if repr(name) in description else f"device {name!r} failed when it was opened: {description}"
        )
        self.append(Absent(name, type(error).__name__, message))
        if self._policy == "warn":
            warnings.warn(f"{message}; {INSTEAD}", FallbackWarning, stacklevel=5)
