"""Streams of work on a device, and events that order them.

A device with streams takes work and does it while the host goes on. Work of one stream is done in the order in which it
came; work of two streams may be done at once, unless one waits for an event that the other recorded. A session gives
each run a stream per device, enqueues the steps that follow each other there (`Execution.enqueue`), and waits once,
where somebody else needs what they make.

Work that fails says so where somebody waits. What comes behind it in its stream is done or left out, and nobody looks
at it.

Source: PaddleCustomDevice's streams and events (create, destroy, record, wait, synchronize, query); NNAPI's fenced
compute, whose events tell of failures.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from nnadapter.drivers.capability import Threading


class Event(ABC):
    """A point in the work of a stream. It may be recorded again; what counts is its last record."""

    @property
    @abstractmethod
    def is_done(self) -> bool:
        """Whether it has happened, or was never recorded; asks and does not wait."""

    @property
    def happened_ns(self) -> int | None:
        """When it happened, by `time.perf_counter_ns`, for traces; None where that is not known."""
        return None

    @abstractmethod
    def synchronize(self) -> None:
        """Have the host wait until it has happened; at once where it was never recorded.

        Raises:
            ExecutionError: work before it in its stream failed (or another error of the tree that says more), which
                nobody had been told by `Stream.synchronize` when it was recorded. It says so at each call.
        """

    @abstractmethod
    def close(self) -> None:
        """Destroy it; nothing happens the second time."""


class Stream(ABC):
    """Work that is done in the order in which it came. One thread at a time uses it."""

    @abstractmethod
    def record(self, event: Event) -> None:
        """Let the event happen when the work that the stream has now is done, or has failed."""

    @abstractmethod
    def wait(self, event: Event) -> None:
        """Let later work of the stream wait for what the event recorded last; the host goes on."""

    @abstractmethod
    def synchronize(self) -> None:
        """Have the host wait until all work is done.

        Raises:
            ExecutionError: some of it failed (or another error of the tree that says more): the first failure since the
                last call, which is then forgotten.
        """

    @abstractmethod
    def close(self) -> None:
        """Destroy it, after its work is done; nothing happens the second time."""


def is_streaming(threading: Threading, *, has_memory: bool, has_streams: bool) -> bool:
    """Return whether steps of a device are enqueued where that saves a wait.

    Not those of one that does one thing at a time: streams of several runs would be under way there at once.

    Args:
        threading: of the device.
        has_memory: it has memory of its own.
        has_streams: it works while the host goes on.
    """
    return has_memory and has_streams and threading is not Threading.SERIAL
