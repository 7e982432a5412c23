"""The device's streams: each is a thread that does its work in order.

Locks and queues are C's, which no interrupt breaks. Work behind what failed is left out until somebody synchronizes the
stream and is told.
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
        """What failed before it."""
        self.under_way = Lock()
        """Held until the place is reached."""
        self.under_way.acquire()

    def reached(self, failure: BaseException | None) -> None:
        """The stream has come here."""
        self.failure, self.happened_ns = failure, time.perf_counter_ns()
        self.under_way.release()

    def wait(self) -> BaseException | None:
        """Wait until the stream comes here; what failed before."""
        with self.under_way:
            return self.failure


class Waits:
    """Counts how often the host waited for the device."""

    def __init__(self) -> None:
        self.number = 0
        """How often up to now."""
        self._lock = new_lock()

    def add(self) -> None:
        """One more; safe to call from many threads."""
        with self._lock:
            self.number += 1


class FakeNpuEvent(Event):
    """See `Event`."""

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self.point: _Point | None = None
        """Of the last record."""

    @property
    def is_done(self) -> bool:
        """See `Event.is_done`."""
        point = self.point
        return point is None or not point.under_way.locked()

    @property
    def happened_ns(self) -> int | None:
        """See `Event.happened_ns`."""
        return None if self.point is None else self.point.happened_ns

    def synchronize(self) -> None:
        """See `Event.synchronize`."""
        self._waits.add()
        point = self.point
        failure = None if point is None else point.wait()
        if failure is not None:
            raise failure

    def close(self) -> None:
        """See `Event.close`."""
        self.point = None


class _Queue:
    """The work of one stream, and what became of it: all that its thread knows, so that a stream can be collected."""

    def __init__(self) -> None:
        self.work: SimpleQueue[Work | _Point | None] = SimpleQueue()
        self.failure: BaseException | None = None
        """The first one that nobody was told yet."""

    def do_all(self) -> None:
        """Do what comes, until None comes."""
        while (item := self.work.get()) is not None:
            if isinstance(item, _Point):
                item.reached(self.failure)
            elif self.failure is None:
                self._do(item)
            del item  # what it holds is not kept until the next one comes

    def _do(self, work: Work) -> None:
        try:
            work()
        except FAILURES as error:
            self.failure = error


class FakeNpuStream(Stream):
    """See `Stream`."""

    def __init__(self, waits: Waits) -> None:
        self._waits, self._queue = waits, _Queue()
        self._thread: Thread | None = Thread(target=self._queue.do_all, name="fake_npu stream", daemon=True)
        self._thread.start()

    def submit(self, work: Work) -> None:
        """Put work at the end.

        Raises:
            DriverError: the stream is closed.
        """
        self._open().work.put(work)

    def record(self, event: Event) -> None:
        """See `Stream.record`."""
        assert isinstance(event, FakeNpuEvent), "events of a device are its own"
        point = _Point()
        self._open().work.put(point)
        event.point = point

    def wait(self, event: Event) -> None:
        """See `Stream.wait`."""
        assert isinstance(event, FakeNpuEvent), "events of a device are its own"
        point = event.point
        if point is not None:
            self.submit(lambda: _passed(point))

    def synchronize(self) -> None:
        """See `Stream.synchronize`."""
        self._waits.add()
        queue, point = self._open(), _Point()
        queue.work.put(point)
        failure = point.wait()
        if failure is not None:
            queue.failure = None
            raise failure

    def close(self) -> None:
        """See `Stream.close`."""
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


def _passed(point: _Point) -> None:
    """Have the thread of a stream wait; what failed in the other stream is told there."""
    point.wait()
