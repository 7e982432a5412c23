"""Streams of work on a device, and events that order them."""

from __future__ import annotations

from nnadapter.drivers.native.functions import Functions
from nnadapter.errors import ExecutionError


class Event:
    """A point in the work of streams.

    Args:
        functions: the driver's; its group `streams` is there.
        device: the device's handle.
    """

    def __init__(self, functions: Functions, device: int) -> None:
        self._functions = functions
        self.handle: int | None = functions.made("create_event", device)
        """The driver's handle; None after `close`."""

    def close(self) -> None:
        """Destroy it; nothing happens the second time."""
        handle, self.handle = self.handle, None
        if handle is not None:
            self._functions.plain("destroy_event", handle)


class Stream:
    """Work that is done in the order in which it came, while the host goes on.

    Args:
        functions: the driver's; its group `streams` is there.
        device: the device's handle.
    """

    def __init__(self, functions: Functions, device: int) -> None:
        self._functions = functions
        self.handle: int | None = functions.made("create_stream", device)
        """The driver's handle; None after `close`."""

    def record(self, event: Event) -> None:
        """Let the event happen when the work that the stream has now is done."""
        self._functions.call("record_event", event.handle, self.handle)

    def wait(self, event: Event) -> None:
        """Let later work of the stream wait for what the event recorded last."""
        self._functions.call("wait_event", self.handle, event.handle)

    def synchronize(self) -> None:
        """Wait until all work is done.

        Raises:
            ExecutionError: some of it failed (or another error of the tree that says more, such as OutOfMemoryError).
        """
        self._functions.call("synchronize_stream", self.handle, failure=ExecutionError, misuse=ExecutionError)

    def close(self) -> None:
        """Destroy it, after its work is done; nothing happens the second time."""
        handle, self.handle = self.handle, None
        if handle is not None:
            self._functions.plain("destroy_stream", handle)
