"""Events -> rows: which stand in which row, so that those of a row lie within each other or behind each other.

1. Events of one lane and thread are bundled: an event that lies in no other, with those that lie in it. What sticks out
   of another by no more than clocks do is cut off; what overlaps it otherwise is bundled apart.
2. Bundles go to rows of their lane in the order of time: each to the row of its thread where that is free, else to the
   first free one, else to a new one. So a lane has as many rows as threads were in it at once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from nnadapter.traces.event import SESSION, Event

_CLOCK = 2_000
"""Nanoseconds: ONNX Runtime cuts starts and durations down to microseconds, each."""


@dataclass(frozen=True, slots=True)
class Row:
    """What viewers show as a thread."""

    name: str
    events: list[Event] = field(default_factory=list)
    """In the order of their starts, the outer one first."""


@dataclass(slots=True)
class _Bundle:
    thread: int
    end: int
    events: list[Event]


def rows_of(events: Sequence[Event]) -> list[Row]:
    """Return the rows of all lanes: of the session's, then of the others in the order in which they were first used."""
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
    """The bundles of one thread."""
    pending = sorted(events, key=lambda event: (event.start, -event.last))
    while pending:
        overlapping_events: list[Event] = []
        yield from _nested(pending, overlapping_events)
        pending = overlapping_events


def _nested(events: Sequence[Event], overlapping_events: list[Event]) -> Iterator[_Bundle]:
    """Bundles of events that nest; those that do not are added to `overlapping_events`."""
    bundle: _Bundle | None = None
    around: list[int] = []
    """Ends of the events around, the innermost last."""
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
