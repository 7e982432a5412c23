"""Something that was made in a device's process, and is made again in the next one when it is used there."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from threading import RLock, Thread
from typing import NamedTuple
from weakref import WeakMethod, finalize

from nnadapter.drivers.isolation.child import Child
from nnadapter.errors import ClosedError, DeviceTimeoutError, NNAdapterError
from nnadapter.process.forking import register_after_fork


class RemoteLocation(NamedTuple):
    """Where it is."""

    child: Child
    number: int


class Made:
    """See above. Usable from many threads.

    Args:
        make: a method of what has this, which makes it, in a process that lives. That is not kept alive by it: a cycle
            would keep what is there until Python looks for cycles.
        there: where it was made already.
    """

    def __init__(self, make: Callable[[], RemoteLocation], location: RemoteLocation | None = None) -> None:
        self._make = WeakMethod(make)
        self.known: RemoteLocation | None = None
        """Where it was when somebody asked last."""
        self._lock = RLock()
        self._again: Thread | None = None
        if location is not None:
            self._take(location)
        register_after_fork(self)

    def there(self, end: float | None = None) -> RemoteLocation:
        """Where it is now; made again where that process is lost.

        Args:
            end: by when, by `time.monotonic`; None for as long as it may take. What is being made goes on behind that.

        Raises:
            DeviceTimeoutError: it is not made yet.
            NNAdapterError: it cannot be made.
        """
        location = self.known
        if location is not None and not location.child.lost:
            return location
        if end is not None:
            self._wait(end)
        with self._lock:
            location = self.known
            if location is None or location.child.lost:
                location = self._take(self._made())
            return location

    def _made(self) -> RemoteLocation:
        make = self._make()
        if make is None:  # while it was made aside
            raise ClosedError("what was made in the device's process is in use by nobody any more")
        return make()

    def part(self) -> None:
        """In a process that was forked: it is made again there."""
        self._lock, self._again = RLock(), None

    def close(self, limit_s: float) -> None:
        """Free it, if its process lives."""
        location, self.known = self.known, None
        if location is not None and not location.child.lost:
            location.child.ask("close", limit_s, number=location.number)

    def _take(self, location: RemoteLocation) -> RemoteLocation:
        self.known = location
        finalize(self, location.child.closing.put, location.number).atexit = False
        return location

    def _wait(self, end: float) -> None:
        """Have it made aside, and wait for that."""
        thread = self._again
        if thread is None or not thread.is_alive():
            thread = self._again = Thread(target=self._made_aside, name="nnadapter made again", daemon=True)
            thread.start()
        thread.join(max(end - time.monotonic(), 0.0))
        if thread.is_alive():
            raise DeviceTimeoutError("the device is still being started again")

    def _made_aside(self) -> None:
        with contextlib.suppress(NNAdapterError):  # who waits asks again, and is told
            self.there()
