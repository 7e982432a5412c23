"""JAX starts work and goes on: a stream is what was started, an event the results that it had by then.

What reads an array waits on the device until it is there, so that work is in order whichever stream it is of.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nnadapter.drivers.streams import Event, Stream
from nnadapter.drivers.xla.engine import translated
from nnadapter.errors import DriverError, ExecutionError


class XlaEvent(Event):
    """See `Event`."""

    def __init__(self) -> None:
        self.results: Sequence[Any] = ()
        """What was under way at the last record."""

    @property
    def is_done(self) -> bool:
        """See `Event.is_done`."""
        return all(result.is_ready() for result in self.results)

    def synchronize(self) -> None:
        """See `Event.synchronize`."""
        wait_for(self.results)

    def close(self) -> None:
        """See `Event.close`."""
        self.results = ()


class XlaStream(Stream):
    """See `Stream`."""

    def __init__(self) -> None:
        self._results: list[Any] | None = []
        """Of work that nobody has waited for yet."""

    def add(self, results: Sequence[Any]) -> None:
        """More work is under way."""
        open_results = self._open()
        open_results[:] = [result for result in open_results if not result.is_ready()]
        open_results.extend(results)

    def record(self, event: Event) -> None:
        """See `Stream.record`."""
        assert isinstance(event, XlaEvent), "events of a device are its own"
        event.results = tuple(self._open())

    def wait(self, event: Event) -> None:
        """See `Stream.wait`: whatever reads the results of the other stream waits for them."""

    def synchronize(self) -> None:
        """See `Stream.synchronize`."""
        results, self._results = self._open(), []
        wait_for(results)

    def close(self) -> None:
        """See `Stream.close`."""
        results, self._results = self._results or (), None
        for result in results:
            with_no_word(result)

    def _open(self) -> list[Any]:
        if self._results is None:
            raise DriverError("the stream of xla is closed; create another one")
        return self._results


def wait_for(results: Sequence[Any]) -> None:
    """Wait until all of them are there.

    Raises:
        ExecutionError: what makes one failed.
    """
    with translated("XLA failed", "see its message", ExecutionError):
        for result in results:
            result.block_until_ready()


def with_no_word(result: Any) -> None:
    """Wait for a result that nobody looks at, whatever becomes of it."""
    try:
        wait_for((result,))
    except ExecutionError:
        return
