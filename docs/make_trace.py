"""Draws part of a trace as a picture: `python docs/make_trace.py TRACE.json PICTURE.svg [RUN]`.

Rows are those of the file, time goes from left to right, what lies in another event stands below it. One run is drawn,
the last one if none is named.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

WIDTH, LABEL, BAR, GAP, AXIS = 960, 90, 18, 10, 24
COLORS = {"run": "#dfe6f0", "plan": "#f5e3c3", "compile": "#f2c9a8", "step": "#9dc3e6", "engine": "#c9e4c5"}
OTHER = "#e0b4b4"
LETTER = 6.2
"""Pixels of a letter, about."""


def main() -> None:
    """Draw it."""
    trace = json.loads(Path(sys.argv[1]).read_text())
    events = trace["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    runs = [event for event in events if event["ph"] == "X" and event["cat"] == "run"]
    run = runs[int(sys.argv[3]) - 1 if len(sys.argv) > 3 else -1]
    rows = {names[tid]: list(_inside(events, tid, run)) for tid in names}
    Path(sys.argv[2]).write_text(_picture({name: row for name, row in rows.items() if row}, run))


def _inside(events: Sequence[Mapping[str, Any]], tid: int, run: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    end = run["ts"] + run["dur"]
    for event in events:
        if (
            event["ph"] == "X"
            and event["tid"] == tid
            and run["ts"] <= event["ts"]
            and event["ts"] + event["dur"] <= end
        ):
            yield event


def _picture(rows: Mapping[str, Sequence[Mapping[str, Any]]], run: Mapping[str, Any]) -> str:
    scale = (WIDTH - LABEL - 10) / run["dur"]
    parts, top = [], AXIS
    for name, row in rows.items():
        depths = list(_depths(row))
        parts.append(f'<text x="8" y="{top + 13}" font-weight="bold">{escape(name)}</text>')
        parts += [_bar(event, depth, top, scale, run["ts"]) for event, depth in zip(row, depths, strict=True)]
        top += (max(depths) + 1) * BAR + GAP
    ticks = "".join(_tick(number, run["dur"], scale, top) for number in range(6))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" font-family="sans-serif" font-size="11" '
        f'role="img" aria-label="One run on several lanes">\n<rect width="{WIDTH}" height="{top}" fill="#fff"/>\n'
        f"{ticks}\n{chr(10).join(parts)}\n</svg>\n"
    )


def _depths(row: Sequence[Mapping[str, Any]]) -> Iterator[int]:
    ends: list[float] = []
    for event in row:
        while ends and ends[-1] <= event["ts"]:
            ends.pop()
        yield len(ends)
        ends.append(event["ts"] + event["dur"])


def _bar(event: Mapping[str, Any], depth: int, top: int, scale: float, start: float) -> str:
    x, y = LABEL + (event["ts"] - start) * scale, top + depth * BAR
    width = max(event["dur"] * scale, 0.5)
    shape = (
        f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{BAR - 2}" fill="{COLORS.get(event["cat"], OTHER)}"/>'
    )
    letters = int((width - 6) / LETTER)
    name = escape(event["name"].removeprefix("segment ")[:letters])
    words = f'<text x="{x + 3:.1f}" y="{y + 12}">{name}</text>' if letters > 3 else ""
    return shape + words


def _tick(number: int, duration: float, scale: float, bottom: int) -> str:
    x, milliseconds = LABEL + number * duration / 5 * scale, number * duration / 5e3
    anchor = "end" if number == 5 else "middle"
    line = f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{AXIS - 6}" y2="{bottom}" stroke="#ddd"/>'
    return f'{line}<text x="{x:.1f}" y="12" fill="#666" text-anchor="{anchor}">{milliseconds:.1f} ms</text>'


if __name__ == "__main__":
    main()
