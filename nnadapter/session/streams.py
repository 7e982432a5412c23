"""Asynchronous runs of a session: futures, and pipelined streams of feeds.

Many inputs one after the other: while one is on a device, the next is on the device before it.

Workers each take an input and run it from its first step to its last. Where a plan has several devices the runs take
turns on them (`running.turns`), so every device has one input at a time and the earliest goes first: a pipeline, whose
stages are the plan's segments on one device in a row. No value passes from thread to thread. On one device alone there
is nothing to take turns on, and runs go side by side as far as the device lets them.

Locks and queues are C's, so an interrupt leaves none of them in between. Workers know the queue and not the stream: one
that is dropped halfway is collected, and its workers end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from queue import SimpleQueue
from threading import Lock, Thread, get_ident
from types import TracebackType
from typing import Any, Self

from nnadapter.engine.control import RunControl, Turns
from nnadapter.engine.provenance import Provenance
from nnadapter.process.resources import new_lock

Work = Callable[[RunControl], tuple[list[Any], Provenance]]


class RunFuture(Future[list[Any]]):
    """The results of a run to come."""

    provenance: Provenance | None = None
    """Where they came from, once they are there."""

    def __init__(self, control: RunControl) -> None:
        super().__init__()
        self._control = control

    def cancel(self) -> bool:
        """Have the run not begin, or stop before its next step, in the middle of one where the device can.

        Returns:
            True if it does not begin. False if it is under way or done: one that is stopped ends in nnadapter's
            CancelledError.
        """
        never_began = super().cancel()
        if not never_began:
            self._control.stop()
        return never_began

    def work(self, run: Work) -> None:
        """Run, in the background's thread."""
        if not self.set_running_or_notify_cancel():
            return
        try:
            results, self.provenance = run(self._control)
        except BaseException as error:  # noqa: BLE001  kept for the caller of result()
            self.set_exception(error)
        else:
            self.set_result(results)


Feed = Mapping[str, Any]
Outcome = tuple[list[Any], Provenance]
RunOne = Callable[[Feed, RunControl], Outcome]


class _Item:
    """One input on its way."""

    __slots__ = ("control", "error", "feed", "outcome", "under_way")

    def __init__(self, feed: Feed, control: RunControl) -> None:
        self.feed, self.control = feed, control
        self.outcome: Outcome | None = None
        self.error: BaseException | None = None
        self.under_way = Lock()
        """Held until there is an outcome or an error, or it is dropped."""
        self.under_way.acquire()

    def run(self, run: RunOne) -> None:
        """Make the outcome, or the error."""
        try:
            self.outcome = run(self.feed, self.control)
        except BaseException as error:  # noqa: BLE001  raised where the result is asked for
            self.error = error
        finally:
            self.under_way.release()

    def fail(self, error: BaseException) -> None:
        """There is no feed."""
        self.error = error
        self.under_way.release()

    def drop(self) -> None:
        """Nobody wants it any more."""
        self.under_way.release()

    @property
    def was_dropped(self) -> bool:
        """It is done, and never ran."""
        return self.is_done and self.outcome is None and self.error is None

    @property
    def is_done(self) -> bool:
        """It came to its end."""
        return not self.under_way.locked()


class Stream(Iterator[list[Any]]):
    """The results of many inputs, in their order. An error is raised in place of the result and ends nothing else.

    `depth` runs are under way at once at most, and as many more inputs or results wait. It ends with its inputs, by
    `close`, at the end of a `with`, or when nobody has it any more: what is under way then stops before its next step.

    Args:
        run: runs the model once; called from several threads.
        feeds: the inputs; taken from in the thread that takes the results.
        depth: how many runs are under way at once; at least 1.
        tell: called with the provenance of every result before that is given.
    """

    def __init__(self, run: RunOne, feeds: Iterable[Feed], depth: int, tell: Callable[[Provenance], None]) -> None:
        self._run, self._depth, self._tell = run, depth, tell
        self._turns = Turns()
        self._count = 0
        self._pending: deque[_Item] = deque()
        self._queue: SimpleQueue[_Item | None] = SimpleQueue()
        self._workers: list[Thread] = []
        self._taking = new_lock()
        self._taker = 0
        """The thread that takes a result."""
        self._feeds: Iterator[Feed] | None = iter(feeds)

    def __next__(self) -> list[Any]:
        """The next result.

        Raises:
            StopIteration: there is none.
            NNAdapterError: what the run of this input raised; the stream goes on.
            RuntimeError: the inputs ask for it, or a handler of signals where it is taken: they would wait for ever.
        """
        if self._taker == get_ident():
            raise RuntimeError("the stream's next result waits for the feeds, which ask for it; call run for feedback")
        with self._taking:
            try:
                self._taker = get_ident()
                item = self._oldest()
            except BaseException:  # an interrupt: what became of which input is not known
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
        self._tell(provenance)
        return results

    def close(self) -> None:
        """End it: inputs that wait are dropped, runs under way stop before their next step. May be called again."""
        self._dismiss()
        for worker in self._workers:
            if worker.is_alive():  # not one that another thread is about to start: it ends by itself
                worker.join()

    def __enter__(self) -> Self:
        """The stream itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the stream."""
        self.close()

    def __del__(self) -> None:
        """Let the workers go; nothing here takes a lock that Python code holds."""
        self._dismiss()

    def _oldest(self) -> _Item | None:
        """The next item, done; None if there is none."""
        self._fill()
        item = self._first()
        if item is not None:
            with item.under_way, suppress(IndexError):  # waits until it is done; perhaps it is closed meanwhile
                self._pending.popleft()
        return item

    def _first(self) -> _Item | None:
        """The item whose result comes next; another thread may close the stream at any time."""
        try:
            return self._pending[0]
        except IndexError:
            return None

    def _fill(self) -> None:
        """Take inputs as long as there is room and the next result is not there; one in any case, for the workers."""
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
        except Exception as error:  # noqa: BLE001  raised behind the results of the inputs before
            item = _Item({}, control)
            item.fail(error)
        self._count += 1
        self._pending.append(item)
        is_last = item.is_done
        if not is_last:
            if len(self._workers) < self._depth:
                self._add_worker()
            self._queue.put(item)
        if self._feeds is None:  # closed while the input was taken: the workers end, or have ended, before it
            self._dismiss()
        elif is_last:
            self._feeds = None

    def _add_worker(self) -> None:
        worker = Thread(target=_work, args=(self._queue, self._run), name="nnadapter stream", daemon=True)
        self._workers.append(worker)
        worker.start()

    def _dismiss(self) -> None:
        self._feeds = None
        with suppress(IndexError):  # none is left
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
