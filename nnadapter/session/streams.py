"""Asynchronous runs of a session: futures, and pipelined streams of feeds.

Each worker thread runs one feed from first to last step. Runs take turns on devices (`engine.control.Turns`), the
oldest first, which forms a pipeline without passing values between threads.

Locks and queues are implemented in C, so an interrupt cannot leave them inconsistent. Workers reference the queue, not
the stream, so an abandoned stream is collected.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from threading import Lock, Thread, get_ident
from typing import Any, Self

from nnadapter.engine.control import RunControl, Turns
from nnadapter.engine.provenance import Provenance
from nnadapter.process.resources import new_lock

Work = Callable[[RunControl], tuple[list[Any], Provenance]]


class RunFuture(Future[list[Any]]):
    """Future of a run's results."""

    provenance: Provenance | None = None

    def __init__(self, control: RunControl) -> None:
        super().__init__()
        self._control = control

    def cancel(self) -> bool:
        """Prevent the run from starting and return True, or stop it before its next step and return False.

        It stops within a step if the device can. A stopped run raises nnadapter's CancelledError.
        """
        never_began = super().cancel()
        if not never_began:
            self._control.stop()
        return never_began

    def work(self, run: Work) -> None:
        if not self.set_running_or_notify_cancel():
            return
        try:
            results, self.provenance = run(self._control)
        except BaseException as error:  # noqa: BLE001  raised by result()
            self.set_exception(error)
        else:
            self.set_result(results)


Feed = Mapping[str, Any]
Outcome = tuple[list[Any], Provenance]
RunOne = Callable[[Feed, RunControl], Outcome]


class _Item:
    __slots__ = ("control", "error", "feed", "outcome", "under_way")

    def __init__(self, feed: Feed, control: RunControl) -> None:
        self.feed, self.control = feed, control
        self.outcome: Outcome | None = None
        self.error: BaseException | None = None
        self.under_way = Lock()
        self.under_way.acquire()

    def run(self, run: RunOne) -> None:
        try:
            self.outcome = run(self.feed, self.control)
        except BaseException as error:  # noqa: BLE001  raised when the result is read
            self.error = error
        finally:
            self.under_way.release()

    def fail(self, error: BaseException) -> None:
        self.error = error
        self.under_way.release()

    def drop(self) -> None:
        self.under_way.release()

    @property
    def was_dropped(self) -> bool:
        return self.is_done and self.outcome is None and self.error is None

    @property
    def is_done(self) -> bool:
        return not self.under_way.locked()


class Stream(Iterator[list[Any]]):
    """Results of many feeds, in order. An error is raised in place of its result; later results follow.

    At most `depth` runs are in progress, and at most `depth` more feeds or results wait. The stream ends after its
    feeds, or earlier by `close`, the end of a `with` or garbage collection; runs then stop before their next step.
    Several threads call `run`; the reader's thread reads `feeds` and passes the provenance of every result to
    `on_provenance`.
    """

    def __init__(
        self, run: RunOne, feeds: Iterable[Feed], depth: int, on_provenance: Callable[[Provenance], None]
    ) -> None:
        self._run, self._depth, self._on_provenance = run, depth, on_provenance
        self._turns = Turns()
        self._count = 0
        self._pending: deque[_Item] = deque()
        self._queue: SimpleQueue[_Item | None] = SimpleQueue()
        self._workers: list[Thread] = []
        self._taking = new_lock()
        self._taker = 0
        self._feeds: Iterator[Feed] | None = iter(feeds)

    def __next__(self) -> list[Any]:
        """Return the next result, or raise the error of its run.

        Raises:
            StopIteration: there are no more.
            RuntimeError: the feeds or a signal handler called this method recursively, which would deadlock.
        """
        if self._taker == get_ident():
            raise RuntimeError(
                "the feeds asked for the next result of their own stream, a deadlock; call run to feed results back"
            )
        with self._taking:
            try:
                self._taker = get_ident()
                item = self._oldest()
            except BaseException:  # an interrupt leaves the state of each item unknown
                self._dismiss()
                raise
            finally:
                self._taker = 0
        if item is None or item.was_dropped:
            self.close()
            raise StopIteration
        if item.error is not None:
            raise item.error
        assert item.outcome is not None, "it is done"
        results, provenance = item.outcome
        self._on_provenance(provenance)
        return results

    def close(self) -> None:
        """Drop waiting feeds and stop runs before their next step. Idempotent."""
        self._dismiss()
        for worker in self._workers:
            if worker.is_alive():  # one not started yet ends by itself
                worker.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        """Stop the workers without a lock that Python code may hold, because this can run at any point."""
        self._dismiss()

    def _oldest(self) -> _Item | None:
        self._fill()
        item = self._first()
        if item is not None:
            with item.under_way, suppress(IndexError):  # the stream may be closed meanwhile
                self._pending.popleft()
        return item

    def _first(self) -> _Item | None:
        try:
            return self._pending[0]
        except IndexError:
            return None

    def _fill(self) -> None:
        while (feeds := self._feeds) is not None and len(self._pending) < 2 * self._depth:
            self._start(feeds)
            if (first := self._first()) is not None and first.is_done:
                return

    def _start(self, feeds: Iterator[Feed]) -> None:
        control = RunControl(self._turns, self._count)
        try:
            item = _Item(next(feeds), control)
        except StopIteration:
            self._feeds = None
            return
        except Exception as error:  # noqa: BLE001  raised after the results of earlier feeds
            item = _Item({}, control)
            item.fail(error)
        self._count += 1
        self._pending.append(item)
        is_last = item.is_done
        if not is_last:
            if len(self._workers) < self._depth:
                self._add_worker()
            self._queue.put(item)
        if self._feeds is None:  # closed while the feed was read, so workers may miss the end marks
            self._dismiss()
        elif is_last:
            self._feeds = None

    def _add_worker(self) -> None:
        worker = Thread(target=_work, args=(self._queue, self._run), name="nnadapter stream", daemon=True)
        self._workers.append(worker)
        worker.start()

    def _dismiss(self) -> None:
        self._feeds = None
        with suppress(IndexError):
            while True:
                self._pending.popleft().control.stop()
        for _ in self._workers:
            self._queue.put(None)


def _work(queue: SimpleQueue[_Item | None], run: RunOne) -> None:
    while (item := queue.get()) is not None:
        if item.control.is_over:
            item.drop()
        else:
            item.run(run)
        del item
