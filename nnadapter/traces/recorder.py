"""A trace that keeps its first events, and writes them at the end."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from itertools import chain, count
from pathlib import Path
from threading import get_native_id
from types import TracebackType
from typing import Any

from nnadapter.errors import CancelledError, InvalidOptionError, describe
from nnadapter.files.replacing import check_writable
from nnadapter.traces.event import COMPILE, ENGINE, FALLBACK, HOST, PLAN, SESSION, TRANSFER, Event
from nnadapter.traces.trace import Trace
from nnadapter.traces.writing import write_trace

MOST_EVENTS = 100_000
"""Runs, steps, transfers and waits that are kept: some tens of megabytes."""
_MOST_RARE = 20_000
_MOST_FOREIGN = 50_000
"""Events of engines below. ONNX Runtime keeps its own in its memory."""
_RARE = frozenset((PLAN, COMPILE, FALLBACK))
Source = Callable[[], Iterable[Event]]
"""Events that are kept elsewhere, asked for once, at the end."""


class Recorder(Trace):
    """Keeps events, and writes them to a file when the session ends.

    Usable from many threads at once: nothing is locked, since `append` and `pop` of lists are one step. So it may also
    be written by a finalizer.

    Args:
        path: of the file.
        of_session_options: ONNX Runtime's own options ask for it, not ours: an engine that is ONNX Runtime alone leaves
            it to that.
        limit: how many events of a run are kept.
    """

    is_kept = is_told = True

    def __init__(self, path: Path, *, of_session_options: bool = False, limit: int = MOST_EVENTS) -> None:
        self._path, self._target = path, path.absolute()
        self.of_session_options = of_session_options
        self.started = time.monotonic_ns()
        """When it began, as ONNX Runtime tells it: by Python's `time.monotonic_ns`."""
        self._start = time.perf_counter_ns()
        self._process = os.getpid()
        self._rare, self._often = _First(_MOST_RARE), _First(limit)
        self._sources: list[Source] = []
        self._foreign = self._lost = 0
        """Events of engines below that there were, and those of them that are not kept."""
        self._folder = ""
        self._remove: Callable[[], object] = lambda: None
        self._is_wanted = not of_session_options
        """Somebody writes it: not ONNX Runtime, by its own options."""
        self._unwritten = [path]
        """Empty from the moment on in which somebody writes it."""

    def now(self) -> int:
        """See `Trace.now`."""
        return time.perf_counter_ns()

    def span(self, lane: str, category: str, name: str, **facts: Any) -> AbstractContextManager[dict[str, Any]]:
        """See `Trace.span`."""
        return _Span(self, lane, category, name, facts)

    def add(
        self, lane: str, category: str, name: str, start: int, facts: Mapping[str, Any], end: int | None = None
    ) -> None:
        """See `Trace.add`."""
        ended = time.perf_counter_ns() if end is None else end
        self._keep(Event(lane, get_native_id(), category, name, start, ended, facts))

    def mark(self, lane: str, category: str, name: str, **facts: Any) -> None:
        """See `Trace.mark`."""
        self._keep(Event(lane, get_native_id(), category, name, time.perf_counter_ns(), None, facts))

    def transfer(self, source: str, target: str, nbytes: int, start: int, **facts: Any) -> None:
        """See `Trace.transfer`."""
        self.add(
            source if target == HOST else target, TRANSFER, f"{source} to {target}", start, {"bytes": nbytes, **facts}
        )

    def add_source(self, source: Source) -> None:
        """Take events that are kept elsewhere until the end."""
        self._sources.append(source)

    def has_room(self, events: int) -> bool:
        """See `Trace.has_room`."""
        had_room = self._foreign <= _MOST_FOREIGN
        self._foreign += events
        has_room = self._foreign <= _MOST_FOREIGN
        if had_room and not has_room:
            self.mark(SESSION, ENGINE, "no more events of engines below, there are enough")
        if not has_room:
            self._lost += events
        return has_room

    def folder(self) -> str:
        """A folder for what is read at the end, which is removed then."""
        if not self._folder:
            self._folder = tempfile.mkdtemp(prefix="nnadapter-trace-")
            self._remove = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        return self._folder

    def check(self) -> None:
        """See `Trace.check`."""
        check_writable(self._path)
        self._is_wanted = True

    def finish(self) -> str:
        """See `Trace.finish`. Nothing is kept from then on.

        A process that was forked off writes nothing: the file is its parent's.

        Raises:
            InvalidOptionError: it cannot be written.
        """
        try:
            self._unwritten.pop()
        except IndexError:
            return ""
        if os.getpid() != self._process or not self._is_wanted:
            return ""
        try:
            events = [*self._rare.kept, *self._often.kept, *chain.from_iterable(read() for read in self._sources)]
            dropped = self._rare.dropped + self._often.dropped + self._lost
            write_trace(self._target, events, self._start, dropped)
        except OSError as error:
            reason = error.strerror or error
            raise InvalidOptionError(
                f"trace {str(self._path)!r} cannot be written: {reason}; give another path"
            ) from error
        finally:
            self._sources.clear()
            for buffer in (self._rare, self._often):
                buffer.kept.clear()
            self._remove()
        return str(self._path)

    def _keep(self, event: Event) -> None:
        if self._unwritten:
            (self._rare if event.category in _RARE else self._often).add(event)


class _First:
    """The first events, so many; the others are counted."""

    def __init__(self, limit: int) -> None:
        self.kept: list[Event] = []
        self._limit = limit
        self._dropped = count()

    def add(self, event: Event) -> None:
        """Keep an event if there is room."""
        if len(self.kept) < self._limit:
            self.kept.append(event)
        else:
            next(self._dropped)

    @property
    def dropped(self) -> int:
        """How many were not kept. The count is read by counting on, so it is asked for once."""
        return next(self._dropped)


class _Span:
    """A block that is an event."""

    __slots__ = ("_category", "_facts", "_lane", "_name", "_recorder", "_start")

    def __init__(self, recorder: Recorder, lane: str, category: str, name: str, facts: dict[str, Any]) -> None:
        self._recorder, self._lane, self._category, self._name, self._facts = recorder, lane, category, name, facts
        self._start = 0

    def __enter__(self) -> dict[str, Any]:
        self._start = self._recorder.now()
        return self._facts

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        name = self._name
        if error is not None:
            self._facts["error"] = describe(error)
            name = f"{name} ({'cancelled' if isinstance(error, CancelledError) else 'failed'})"
        self._recorder.add(self._lane, self._category, name, self._start, self._facts)
