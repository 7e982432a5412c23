"""The device's streams: each is a thread that does its work in order.

Locks and queues are C's, which no interrupt breaks. Work after a failure is skipped until a caller synchronizes the
stream and gets the error.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from queue import SimpleQueue
from threading import Lock, Thread

from nnadapter.drivers.interface import Event, Stream
from nnadapter.errors import FAILURES, DriverError
from nnadapter.process.resources import new_lock

Work = Callable[[], None]


class _Point:
    """A place in the work of a stream."""

    __slots__ = ("failure", "happened_ns", "under_way")

    def __init__(self) -> None:
        self.happened_ns: int | None = None
        self.failure: BaseException | None = None
        self.under_way = Lock()
        """Locked until the stream reaches the place."""
        self.under_way.acquire()

    def reached(self, failure: BaseException | None) -> None:
        """Note the time and the failure before it."""
        self.failure, self.happened_ns = failure, time.perf_counter_ns()
        self.under_way.release()

    def wait(self) -> BaseException | None:
        """Wait until the stream reaches the place, and return the failure before it."""
        with self.under_way:
            return self.failure


class Waits:
    """Number of waits of the host for the device; safe to use from many threads."""

    def __init__(self) -> None:
        self.number = 0
        self._lock = new_lock()

    def add(self) -> None:
        """Count one more."""
        with self._lock:
            self.number += 1


class FakeNpuEvent(Event):
    """An event of the device."""

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self.point: _Point | None = None
        """Of the last record."""

    @property
    def is_done(self) -> bool:
        return self.point is None or not self.point.under_way.locked()

    @property
    def happened_ns(self) -> int | None:
        return None if self.point is None else self.point.happened_ns

    def synchronize(self) -> None:
        self._waits.add()
        point = self.point
        failure = None if point is None else point.wait()
        if failure is not None:
            raise failure

    def close(self) -> None:
        self.point = None


class _Queue:
    """The work of one stream and its failure. The thread knows nothing else, so that a stream can be collected."""

    def __init__(self) -> None:
        self.work: SimpleQueue[Work | _Point | None] = SimpleQueue()
        self.failure: BaseException | None = None
        """The first one that no caller got yet."""

    def do_all(self) -> None:
        """Do items of work until None comes."""
        while (item := self.work.get()) is not None:
            if isinstance(item, _Point):
                item.reached(self.failure)
            elif self.failure is None:
                try:
                    item()
                except FAILURES as error:
                    self.failure = error
            del item  # its memory is not kept until the next one comes


class FakeNpuStream(Stream):
    """A stream of the device."""

    def __init__(self, waits: Waits) -> None:
        self._waits, self._queue = waits, _Queue()
        self._thread: Thread | None = Thread(target=self._queue.do_all, name="fake_npu stream", daemon=True)
        self._thread.start()

    def submit(self, work: Work) -> None:
        """Append work; raise DriverError if the stream is closed."""
        self._open().work.put(work)

    def record(self, event: Event) -> None:
        assert isinstance(event, FakeNpuEvent), "events of a device are its own"
        point = _Point()
        self._open().work.put(point)
        event.point = point

    def wait(self, event: Event) -> None:
        assert isinstance(event, FakeNpuEvent), "events of a device are its own"
        point = event.point
        if point is not None:
            self.submit(lambda: _pass(point))

    def synchronize(self) -> None:
        self._waits.add()
        queue, point = self._open(), _Point()
        queue.work.put(point)
        failure = point.wait()
        if failure is not None:
            queue.failure = None
            raise failure

    def close(self) -> None:
        thread = self._thread
        if thread is not None:
            self._queue.work.put(None)
            thread.join()
            self._thread = None

    def __del__(self) -> None:
        """Let the thread end."""
        self._queue.work.put(None)

    def _open(self) -> _Queue:
        if self._thread is None:
            raise DriverError("the stream of fake_npu is closed; create another one")
        return self._queue


def _pass(point: _Point) -> None:
    """Let the thread of a stream wait; failures of the other stream are raised there."""
    point.wait()
