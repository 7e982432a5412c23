"""When a device does what streams were given: a thread per traced stream waits for what is enqueued, in its order.

The host that enqueued a step may be elsewhere when the device begins it and when it ends. So an event is recorded
before the step and one behind it, and the thread looks at the clock when they happen,
unless the driver says when that was.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any

from nnadapter.drivers.interface import Device
from nnadapter.drivers.streams import Event, Stream
from nnadapter.errors import FAILURES

Note = Callable[[int, int, BaseException | None], None]
"""Takes when the device began and ended, by the trace's clock, and how it failed."""
_Job = tuple[Event, Event, Note]


class Watcher:
    """Waits for what one stream does. Used by one thread at a time, as streams are."""

    def __init__(self, stream: Stream, now: Callable[[], int]) -> None:
        self._jobs: SimpleQueue[_Job | Lock | None] = SimpleQueue()
        Thread(target=_watch, args=(self._jobs, now), name="nnadapter trace", daemon=True).start()
        weakref.finalize(stream, self._jobs.put, None)

    def put(self, begin: Event, end: Event, note: Note) -> None:
        """Have `note` called when the second event has happened; both are closed then."""
        self._jobs.put((begin, end, note))

    def finish(self) -> None:
        """Wait until all is noted."""
        noted = Lock()
        noted.acquire()
        self._jobs.put(noted)
        noted.acquire()


class Watchers:
    """The watchers of the streams of one program."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._used: dict[Watcher, Stream] = {}

    def enqueued(
        self,
        device: Device,
        stream: Stream,
        enqueue: Callable[[], Sequence[Any] | None],
        noting: Callable[[Sequence[Any]], Note],
    ) -> Sequence[Any] | None:
        """Watch what `enqueue` puts into a stream, and return what it gives; None where nothing is.

        Args:
            device: the stream's.
            stream: where it is put.
            enqueue: puts it there.
            noting: makes what takes note, of what `enqueue` gave.
        """
        begin, end = device.create_event(), device.create_event()
        stream.record(begin)
        outputs = enqueue()
        if outputs is None:
            return None
        stream.record(end)
        watcher = _watcher_of(stream, self._now)
        self._used[watcher] = stream  # a watcher ends with its stream, and could not tell any more what is noted
        watcher.put(begin, end, noting(outputs))
        return outputs

    def finish(self) -> None:
        """Wait until all is noted."""
        for watcher in self._used:
            watcher.finish()
        self._used.clear()


_watchers: weakref.WeakKeyDictionary[Stream, Watcher] = weakref.WeakKeyDictionary()
"""Programs share the one of a stream, so that its events are in order."""


def _watcher_of(stream: Stream, now: Callable[[], int]) -> Watcher:
    watcher = _watchers.get(stream)
    if watcher is None:
        watcher = _watchers[stream] = Watcher(stream, now)
    return watcher


def _watch(jobs: SimpleQueue[_Job | Lock | None], now: Callable[[], int]) -> None:
    while (job := jobs.get()) is not None:
        if not isinstance(job, tuple):
            job.release()
            continue
        begin, end, note = job
        with suppress(*FAILURES):  # of a step before it
            begin.synchronize()
        start, failure = begin.happened_ns or now(), None
        try:
            end.synchronize()
        except FAILURES as error:
            failure = error
        note(start, end.happened_ns or now(), failure)
        with suppress(*FAILURES):
            begin.close()
            end.close()
        del job, begin, end, note  # nothing is kept until the next one comes
