"""Trace recorder: records the first events of a session and writes them for chrome://tracing and Perfetto.

Viewers require that events in a row nest or follow each other:

1. Bundle each outermost event of a lane and thread with the events inside it.
2. In order of time, assign bundles to their thread's last row if it is free, otherwise to the first free row or a new
   one.

Source: Google's Trace Event Format, JSON object format: complete events (`X`), instant events (`i`), metadata (`M`).
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import chain, count
from pathlib import Path
from threading import get_native_id
from types import TracebackType
from typing import Any, BinaryIO

from nnadapter.errors import CancelledError, InvalidOptionError, describe
from nnadapter.files.atomic_files import check_writable, write_file
from nnadapter.process.packages import own_version
from nnadapter.records import dataclass, field
from nnadapter.traces.trace import COMPILE, ENGINE, FALLBACK, HOST, PLAN, SESSION, TRANSFER, Event, Trace

_CLOCK = 2_000
"""Tolerance in nanoseconds: ONNX Runtime truncates times to microseconds."""


@dataclass(frozen=True, slots=True)
class Row:
    """Row of a trace viewer, displayed as a thread; a lane has several if its events overlap."""

    name: str
    events: list[Event] = field(default_factory=list)
    """Events by start, the outer one first."""


@dataclass(slots=True)
class _Bundle:
    thread: int
    end: int
    events: list[Event]


def rows_of(events: Sequence[Event]) -> list[Row]:
    """Arrange events in rows without overlap; the session's rows come first."""
    lanes: defaultdict[str, defaultdict[int, list[Event]]] = defaultdict(
        lambda: defaultdict(list), {SESSION: defaultdict(list)}
    )
    for event in sorted(events, key=lambda entry: entry.start):
        lanes[event.lane][event.thread].append(event)
    return [row for lane, threads in lanes.items() for row in _rows(lane, threads.values())]


def _rows(lane: str, threads: Iterable[list[Event]]) -> list[Row]:
    bundles = sorted(
        (bundle for group in threads for bundle in _bundles(group)), key=lambda group: group.events[0].start
    )
    rows: list[Row] = []
    ends: list[int] = []
    thread_rows: dict[int, int] = {}
    for bundle in bundles:
        start = bundle.events[0].start
        tried = [thread_rows[bundle.thread]] if bundle.thread in thread_rows else []
        row = next((index for index in (*tried, *range(len(rows))) if ends[index] <= start), len(rows))
        if row == len(rows):
            rows.append(Row(lane if not rows else f"{lane} ({len(rows) + 1})"))
            ends.append(0)
        rows[row].events.extend(bundle.events)
        ends[row], thread_rows[bundle.thread] = bundle.end, row
    return rows


def _bundles(events: Sequence[Event]) -> Iterator[_Bundle]:
    pending = sorted(events, key=lambda event: (event.start, -event.last))
    while pending:
        overlapping_events: list[Event] = []
        yield from _nested(pending, overlapping_events)
        pending = overlapping_events


def _nested(events: Sequence[Event], overlapping_events: list[Event]) -> Iterator[_Bundle]:
    bundle: _Bundle | None = None
    around: list[int] = []
    for event in events:
        while around and around[-1] <= event.start:
            around.pop()
        if around and event.last > around[-1]:
            if event.last - around[-1] > _CLOCK:
                overlapping_events.append(event)
                continue
            event = event._replace(end=around[-1])
        if around and bundle is not None:
            bundle.events.append(event)
        else:
            if bundle is not None:
                yield bundle
            bundle = _Bundle(event.thread, event.last, [event])
        around.append(event.last)
    if bundle is not None:
        yield bundle


def write_trace(path: Path, events: Sequence[Event], start: int, dropped: int) -> None:
    """Write a trace file atomically. Raises OSError.

    Times count from `start`. `dropped` is the number of events that were not recorded.
    """
    first = min([start, *(event.start for event in events)])

    def write(file: BinaryIO) -> None:
        head = {"displayTimeUnit": "ms", "otherData": {"nnadapter": own_version(), "dropped_events": dropped}}
        file.write(json.dumps(head).removesuffix("}").encode() + b', "traceEvents": [\n')
        file.write(b",\n".join(_line(entry).encode() for entry in _entries(rows_of(events), first)))
        file.write(b"\n]}\n")

    write_file(path, write)


def _entries(rows: Sequence[Row], start: int) -> Iterator[dict[str, Any]]:
    process = os.getpid()
    yield {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": "nnadapter"}}
    for number, row in enumerate(rows, 1):
        place = {"pid": process, "tid": number}
        yield {"ph": "M", "name": "thread_name", **place, "args": {"name": row.name}}
        yield {"ph": "M", "name": "thread_sort_index", **place, "args": {"sort_index": number}}
        for event in row.events:
            yield {**_when(event, start), "name": event.name, "cat": event.category, **place, "args": event.facts}


def _when(event: Event, start: int) -> Mapping[str, Any]:
    begun = (event.start - start) / 1e3
    if event.end is None:
        return {"ph": "i", "s": "t", "ts": begun}
    return {"ph": "X", "ts": begun, "dur": (event.end - event.start) / 1e3}


def _line(entry: Mapping[str, Any]) -> str:
    try:
        return json.dumps(entry, default=str, allow_nan=False)
    except ValueError:  # a non-finite number
        return json.dumps({**entry, "args": {name: str(fact) for name, fact in entry["args"].items()}}, default=str)


MOST_EVENTS = 100_000
"""Maximum number of frequent events that a trace records; others are counted."""
_MOST_RARE = 20_000
_MOST_FOREIGN = 50_000
_RARE = frozenset((PLAN, COMPILE, FALLBACK))
Source = Callable[[], Iterable[Event]]
"""Function that returns events recorded elsewhere, such as in ONNX Runtime's profiles."""


class Recorder(Trace):
    """Trace that records events and writes them to a file when the session ends.

    Thread-safe without locks, because list `append` and `pop` are atomic, so a finalizer may call `finish`.

    Args:
        of_session_options: True if ONNX Runtime's session options request the trace.
    """

    is_recording = is_logging = True

    def __init__(self, path: Path, *, of_session_options: bool = False, limit: int = MOST_EVENTS) -> None:
        self._path, self._target = path, path.absolute()
        self.of_session_options = of_session_options
        self.started = time.monotonic_ns()
        self._start = time.perf_counter_ns()
        self._process = os.getpid()
        self._rare, self._often = _First(_MOST_RARE), _First(limit)
        self._sources: list[Source] = []
        self._foreign = self._lost = 0
        self._folder = ""
        self._remove: Callable[[], object] = lambda: None
        self._is_wanted = not of_session_options
        self._unwritten = [path]

    def timestamp(self) -> int:
        return time.perf_counter_ns()

    def span(self, lane: str, category: str, name: str, **facts: Any) -> AbstractContextManager[dict[str, Any]]:
        return _Span(self, lane, category, name, facts)

    def add(
        self, lane: str, category: str, name: str, start: int, facts: Mapping[str, Any], end: int | None = None
    ) -> None:
        ended = time.perf_counter_ns() if end is None else end
        self._keep(Event(lane, get_native_id(), category, name, start, ended, facts))

    def mark(self, lane: str, category: str, name: str, **facts: Any) -> None:
        self._keep(Event(lane, get_native_id(), category, name, time.perf_counter_ns(), None, facts))

    def transfer(self, source: str, target: str, nbytes: int, start: int, **facts: Any) -> None:
        self.add(
            source if target == HOST else target, TRANSFER, f"{source} to {target}", start, {"bytes": nbytes, **facts}
        )

    def add_source(self, source: Source) -> None:
        self._sources.append(source)

    def reserve_events(self, events: int) -> bool:
        had_room = self._foreign <= _MOST_FOREIGN
        self._foreign += events
        has_room = self._foreign <= _MOST_FOREIGN
        if had_room and not has_room:
            self.mark(SESSION, ENGINE, "no more events of inner engines, the limit is reached")
        if not has_room:
            self._lost += events
        return has_room

    def folder(self) -> str:
        if not self._folder:
            self._folder = tempfile.mkdtemp(prefix="nnadapter-trace-")
            self._remove = weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        return self._folder

    def check(self) -> None:
        check_writable(self._path)
        self._is_wanted = True

    def finish(self) -> str:
        """Write the file at the first call, but not in a forked child; return the path, if any.

        Raises InvalidOptionError if it cannot be written.
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
    def __init__(self, limit: int) -> None:
        self.kept: list[Event] = []
        self._limit = limit
        self._dropped = count()

    def add(self, event: Event) -> None:
        if len(self.kept) < self._limit:
            self.kept.append(event)
        else:
            next(self._dropped)

    @property
    def dropped(self) -> int:
        """Number of dropped events. Read it once: each reading adds one."""
        return next(self._dropped)


class _Span:
    __slots__ = ("_category", "_facts", "_lane", "_name", "_recorder", "_start")

    def __init__(self, recorder: Recorder, lane: str, category: str, name: str, facts: dict[str, Any]) -> None:
        self._recorder, self._lane, self._category, self._name, self._facts = recorder, lane, category, name, facts
        self._start = 0

    def __enter__(self) -> dict[str, Any]:
        self._start = self._recorder.timestamp()
        return self._facts

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        name = self._name
        if error is not None:
            self._facts["error"] = describe(error)
            name = f"{name} ({'cancelled' if isinstance(error, CancelledError) else 'failed'})"
        self._recorder.add(self._lane, self._category, name, self._start, self._facts)
