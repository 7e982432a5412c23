"""The report of a job as one HTML page, in the style of all reports; it has no script."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from nnadapter.ray.facts import JobFacts, KindFacts
from nnadapter.ray.text import summary_of, told_of_kind
from nnadapter.reports.rendering.static_page import bars, static_page, table, tiles
from nnadapter.reports.units import count, duration


def to_page(report: JobFacts) -> str:
    """Return a page that needs no network and no other file."""
    sections = [
        tiles(_figures(report)),
        _warning(report),
        _section("Where rows ran", bars(report.rows_by_device, report.rows)),
        _section("Kinds of machines", table(_KINDS, [_kind_row(kind) for kind in report.kinds]) + _notes(report)),
        _section("Machines", table(_MACHINES, _machine_rows(report))),
        _section("Slowest shapes, by time of all their runs", table(_SHAPES, _shape_rows(report))),
    ]
    if report.incidents:
        rows = [(name, times) for name, times in report.incidents.items()]
        sections.insert(3, _section("What went wrong", table((("device and error", False), ("times", True)), rows)))
    return static_page("Job report", report.model, summary_of(report), "".join(sections))


_KINDS = (("kind", False), ("machine", False), ("devices", False), ("plan", False), ("segments", False),
          ("machines", True), ("sessions", True), ("rows", True))  # fmt: skip
_MACHINES = (
    ("machine", False),
    ("address", False),
    ("kind", False),
    ("sessions", True),
    ("made in", True),
    ("rows", True),
)
_SHAPES = (
    ("shapes", False),
    ("runs", True),
    ("rows", True),
    ("per row", True),
    ("slowest run", True),
    ("together", True),
)


def _figures(report: JobFacts) -> list[tuple[str, str, str]]:
    fallen = report.rows_fallen_back
    return [
        ("Rows", str(report.rows), f"in {count(report.runs, 'run')}, each counted once"),
        ("Fell back", str(fallen), f"{fallen / max(report.rows, 1):.1%} of rows"),
        ("Compiled", str(report.compiles), f"for {count(len(report.kinds), 'kind')} of machines"),
        ("Time of runs", duration(report.seconds), f"of {count(len(report.machines), 'machine')} together"),
    ]


def _warning(report: JobFacts) -> str:
    sentences = []
    if report.repeated_batches:
        sentences.append(
            f"{count(report.repeated_batches, 'batch', 'batches')} of {count(report.repeated_rows, 'row')} ran again "
            "because an actor was lost. They count once, where they ran first."
        )
    if report.executions > 1:
        sentences.append(f"The dataset was consumed {report.executions} times; this is the last one.")
    return f'<div class="callout">{"<br>".join(map(escape, sentences))}</div>' if sentences else ""


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>" if body else ""


def _kind_row(kind: KindFacts) -> Sequence[object]:
    words = ", ".join(word for word in kind.machine.values() if word)
    segments = ", ".join(f"{number} on {device}" for device, number in kind.segments.items())
    return (
        kind.name, words, ", ".join(kind.devices), told_of_kind(kind), segments or "-", kind.machines, kind.sessions,
        kind.rows,
    )  # fmt: skip


def _notes(report: JobFacts) -> str:
    notes: Iterable[str] = (
        text
        for kind in report.kinds
        for text in (*(f"{name}: {reason}" for name, reason in kind.missing.items()), *kind.notes)
    )
    items = "".join(f"<li>{escape(text)}</li>" for text in dict.fromkeys(notes))
    return f'<ul class="detail">{items}</ul>' if items else ""


def _machine_rows(report: JobFacts) -> list[Sequence[object]]:
    return [
        (
            machine.machine[:12],
            machine.address,
            machine.kind,
            machine.sessions,
            duration(machine.session_seconds),
            machine.rows,
        )
        for machine in report.machines
    ]


def _shape_rows(report: JobFacts) -> list[Sequence[object]]:
    return [
        (
            shapes.shapes,
            shapes.runs,
            shapes.rows,
            duration(shapes.seconds / max(shapes.rows, 1)),
            duration(shapes.slowest),
            duration(shapes.seconds),
        )
        for shapes in report.slowest_shapes
    ]
