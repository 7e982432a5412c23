"""A trace reader that checks files against Google's Trace Event Format."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PLACE = {"pid": int, "tid": int}
FIELDS = {
    "M": {"name": str, **PLACE, "args": dict},
    "X": {"name": str, "cat": str, "ts": (int, float), "dur": (int, float), **PLACE, "args": dict},
    "i": {"name": str, "cat": str, "ts": (int, float), "s": str, **PLACE, "args": dict},
}
"""Kind of event -> types of its fields except `ph`."""
METADATA = {"process_name": ("name", str), "thread_name": ("name", str), "thread_sort_index": ("sort_index", int)}
_ROUNDING = 1e-3
"""Tolerance in microseconds: floats are written in decimals."""


def lanes_of(path: str | Path) -> dict[str, list[dict[str, Any]]]:
    """Return events by row, checking fields, nesting and that none precedes the start."""
    trace = json.loads(Path(path).read_text(), parse_constant=_refused)
    assert trace.keys() == {"displayTimeUnit", "otherData", "traceEvents"} and trace["displayTimeUnit"] in ("ms", "ns")
    names: dict[tuple[int, int], str] = {}
    rows: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for event in trace["traceEvents"]:
        _check_fields(event)
        place = event["pid"], event["tid"]
        if event["name"] == "thread_name" and event["ph"] == "M":
            names[place] = event["args"]["name"]
        if event["ph"] != "M":
            rows.setdefault(place, []).append(event)
    assert names.keys() == rows.keys() and len(set(names.values())) == len(names)
    for events in rows.values():
        check_nesting(events)
    return {names[place]: events for place, events in rows.items()}


def named(events: Sequence[dict[str, Any]], start: str) -> list[dict[str, Any]]:
    """Return the events whose names have this prefix."""
    return [event for event in events if event["name"].startswith(start)]


def within(inner: dict[str, Any], outer: dict[str, Any]) -> bool:
    """Return whether one event lies within another."""
    end = outer["ts"] + outer["dur"] + _ROUNDING
    return outer["ts"] - _ROUNDING <= inner["ts"] and inner["ts"] + inner.get("dur", 0) <= end


def check_nesting(events: Sequence[dict[str, Any]]) -> None:
    """Check that events of a row are ordered, outer ones first, and nested without partial overlap."""
    around: list[dict[str, Any]] = []
    before = 0.0
    for event in events:
        assert event["ts"] >= before and event.get("dur", 0) >= 0
        before = event["ts"]
        while around and around[-1]["ts"] + around[-1]["dur"] <= event["ts"] + _ROUNDING:
            around.pop()
        assert not around or within(event, around[-1]), (event, around[-1])
        if "dur" in event:
            around.append(event)


def _check_fields(event: dict[str, Any]) -> None:
    fields = FIELDS[event["ph"]]
    assert event.keys() == {"ph", *fields}
    assert all(isinstance(event[name], kind) and not isinstance(event[name], bool) for name, kind in fields.items())
    if event["ph"] == "M":
        key, kind = METADATA[event["name"]]
        assert list(event["args"]) == [key] and isinstance(event["args"][key], kind)
    if event["ph"] == "i":
        assert event["s"] == "t"


def _refused(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")
