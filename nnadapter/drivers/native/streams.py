"""Streams of work on a device, and events that order them."""

from __future__ import annotations

from contextlib import suppress

from nnadapter.drivers.native.functions import Functions
from nnadapter.drivers.streams import Event, Stream
from nnadapter.errors import FAILURES, ExecutionError


class NativeEvent(Event):
    """See `Event`; that it is waited for or asked came to the interface later, and a driver may lack it.

    Args:
        functions: the driver's; its group `streams` is there.
        device: the device's handle.
    """

    def __init__(self, functions: Functions, device: int) -> None:
        self._functions = functions
        self.handle: int | None = functions.made("create_event", device)
        """The driver's handle; None after `close`."""

    @property
    def is_done(self) -> bool:
        """See `Event.is_done`."""
        return bool(self._functions.plain("query_event", self.handle))

    def synchronize(self) -> None:
        """See `Event.synchronize`."""
        self._functions.call("synchronize_event", self.handle, failure=ExecutionError, misuse=ExecutionError)

    def close(self) -> None:
        """See `Event.close`."""
        handle, self.handle = self.handle, None
        if handle is not None:
            self._functions.plain("destroy_event", handle)


class NativeStream(Stream):
    """See `Stream`.

    Args:
        functions: the driver's; its group `streams` is there.
        device: the device's handle.
    """

    def __init__(self, functions: Functions, device: int) -> None:
        self._functions = functions
        self.handle: int | None = functions.made("create_stream", device)
        """The driver's handle; None after `close`."""

    def record(self, event: Event) -> None:
        """See `Stream.record`."""
        assert isinstance(event, NativeEvent), "events of a device are its own"
        self._functions.call("record_event", event.handle, self.handle)

    def wait(self, event: Event) -> None:
        """See `Stream.wait`."""
        assert isinstance(event, NativeEvent), "events of a device are its own"
        self._functions.call("wait_event", self.handle, event.handle)

    def synchronize(self) -> None:
        """See `Stream.synchronize`."""
        self._functions.call("synchronize_stream", self.handle, failure=ExecutionError, misuse=ExecutionError)

    def close(self) -> None:
        """See `Stream.close`."""
        handle, self.handle = self.handle, None
        if handle is not None:
            self._functions.plain("destroy_stream", handle)


def wait_out(stream: NativeStream | None) -> None:
    """Wait until a stream, if there is one, is done, however often somebody interrupts: what it works in may go then.

    What failed is not told: an error is being raised already.
    """
    while stream is not None:
        try:
            with suppress(*FAILURES):
                stream.synchronize()
            return
        except KeyboardInterrupt:
            continue
