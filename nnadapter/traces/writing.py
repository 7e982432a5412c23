"""Events as a file that chrome://tracing and ui.perfetto.dev open: JSON, one event per line.

Source: Google's Trace Event Format, JSON object format: complete events (`X`), instant events (`i`), metadata (`M`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from nnadapter.files.replacing import write_file
from nnadapter.process.versions import own_version
from nnadapter.traces.event import Event
from nnadapter.traces.lanes import Row, rows_of


def write_trace(path: Path, events: Sequence[Event], start: int, dropped: int) -> None:
    """Write `path`, whole or not at all.

    Args:
        path: of the file.
        events: in any order.
        start: nanoseconds of the trace's clock that count as 0.
        dropped: events that there were beside.

    Raises:
        OSError: it cannot be written.
    """
    first = min([start, *(event.start for event in events)])  # ONNX Runtime's clock may be set while it runs

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
    """The event's kind, and its time in microseconds."""
    begun = (event.start - start) / 1e3
    if event.end is None:
        return {"ph": "i", "s": "t", "ts": begun}
    return {"ph": "X", "ts": begun, "dur": (event.end - event.start) / 1e3}


def _line(entry: Mapping[str, Any]) -> str:
    try:
        return json.dumps(entry, default=str, allow_nan=False)
    except ValueError:  # a number that JSON does not know
        return json.dumps({**entry, "args": {name: str(fact) for name, fact in entry["args"].items()}}, default=str)
