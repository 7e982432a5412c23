"""Report of a job: facts, text and HTML."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from nnadapter.drivers.selection import CPU
from nnadapter.files.atomic_files import write_file
from nnadapter.ray.cluster import Request
from nnadapter.ray.job import CompileResult, JobSnapshot, Kind, Totals
from nnadapter.records import dataclass
from nnadapter.report.facts import plain, to_lines
from nnadapter.report.html import bars, static_page, table, tiles
from nnadapter.report.sections import count, duration, quantity

_SLOWEST = 20
SCHEMA_VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class KindFacts:
    """Facts of a kind of machines, on which compiling has the same result."""

    name: str
    machine: Mapping[str, str]
    devices: tuple[str, ...]
    missing: Mapping[str, str]
    machines: int
    sessions: int
    rows: int
    compiles: int
    reused_file: bool
    compile_seconds: float
    compiled_bytes: int
    cache_hits: int
    segments: Mapping[str, int]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """Facts of a machine."""

    machine: str
    address: str
    kind: str
    sessions: int
    session_seconds: float
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeFacts:
    """Counts of runs at one set of shapes."""

    shapes: str
    runs: int
    rows: int
    seconds: float
    slowest: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """Facts of a job; see `nnadapter.ray.report`."""

    model: str
    devices: tuple[str, ...]
    """Requested devices; empty for the devices of a compiled file."""
    rows: int
    """Rows, counted once even if Ray repeats a batch."""
    batches: int
    """Calls of actors. A call may run the model several times."""
    runs: int
    seconds: float
    rows_by_device: Mapping[str, int]
    """Devices that produced results, joined by `+` -> rows."""
    fallback_rows: int
    incidents: Mapping[str, int]
    repeated_batches: int
    """Batches repeated after the loss of an actor; `rows` and `batches` exclude the repetitions."""
    repeated_rows: int
    executions: int
    """Times that the dataset was consumed; the facts are of the last time."""
    compiles: int
    kinds: tuple[KindFacts, ...]
    machines: tuple[MachineFacts, ...]
    slowest_shapes: tuple[ShapeFacts, ...]


def job_report(request: Request, snapshot: JobSnapshot) -> JobReport:
    """Return the report of a job."""
    totals = snapshot.totals or Totals()
    return JobReport(
        model=request.name,
        devices=tuple(request.device_requests),
        rows=totals.rows,
        batches=totals.batches,
        runs=totals.runs,
        seconds=totals.seconds,
        rows_by_device=dict(totals.where.most_common()),
        fallback_rows=totals.fallen,
        incidents=dict(totals.incidents.most_common()),
        repeated_batches=totals.repeated_batches,
        repeated_rows=totals.repeated_rows,
        executions=snapshot.executions,
        compiles=sum(snapshot.compiles.values()),
        kinds=tuple(_kind_facts(name, snapshot, totals) for name in _names(snapshot)),
        machines=_machine_facts(snapshot, totals),
        slowest_shapes=_slowest(totals),
    )


def _names(snapshot: JobSnapshot) -> list[str]:
    return list(dict.fromkeys((*snapshot.kinds, *(session.kind for session in snapshot.sessions))))


def _kind_facts(name: str, snapshot: JobSnapshot, totals: Totals) -> KindFacts:
    kind = snapshot.kinds.get(name) or Kind(name=name, devices=(), missing={}, description={})
    compile_result = snapshot.compile_results.get(name) or CompileResult(seconds=0.0, nbytes=0)
    sessions = [session for session in snapshot.sessions if session.kind == name]
    requested_devices = [device[0] for device in kind.devices]
    return KindFacts(
        name=name,
        machine=kind.description,
        devices=sessions[0].devices if sessions else tuple(dict.fromkeys((*requested_devices, CPU))),
        missing=kind.missing,
        machines=len({session.machine for session in sessions}),
        sessions=len(sessions),
        rows=totals.kinds[name],
        compiles=snapshot.compiles.get(name, 0),
        reused_file=compile_result.reused_file,
        compile_seconds=compile_result.seconds,
        compiled_bytes=compile_result.nbytes,
        cache_hits=compile_result.cached,
        segments=_segments(compile_result.report),
        notes=compile_result.notes,
    )


def _segments(report: str) -> dict[str, int]:
    return dict(Counter(segment["device"] for segment in json.loads(report)["segments"])) if report else {}


def _machine_facts(snapshot: JobSnapshot, totals: Totals) -> tuple[MachineFacts, ...]:
    names = dict.fromkeys((*(session.machine for session in snapshot.sessions), *totals.machines))
    facts = []
    for name in names:
        sessions = [session for session in snapshot.sessions if session.machine == name]
        facts.append(
            MachineFacts(
                machine=name,
                address=sessions[0].address if sessions else "",
                kind=sessions[0].kind if sessions else "",
                sessions=len(sessions),
                session_seconds=sum(session.seconds for session in sessions),
                rows=totals.machines[name],
            )
        )
    return tuple(facts)


def _slowest(totals: Totals) -> tuple[ShapeFacts, ...]:
    rows = sorted(totals.shapes.items(), key=lambda row: -row[1][2])[:_SLOWEST]
    return tuple(
        ShapeFacts(shapes=shapes, runs=int(runs), rows=int(count), seconds=seconds, slowest=slowest)
        for shapes, (runs, count, seconds, slowest) in rows
    )


_SHOWN = 5


def to_text(report: JobFacts) -> str:
    """Return the report as text: rows, kinds of machines, machines, slowest shapes."""
    return "\n".join((*_rows(report), *_kinds(report), *_machines(report), *_shapes(report)))


def summary_of(report: JobFacts) -> str:
    """Return the numbers of rows and runs, and the rate, as text."""
    rate = f", {report.rows / report.seconds:.0f} rows per second of runs" if report.seconds else ""
    return f"{count(report.rows, 'row')} in {count(report.runs, 'run')}{rate}"


def told_of_kind(kind: KindFacts) -> str:
    """Return the origin of a kind's compiled file as text."""
    if kind.reused_file:
        return "compiled before, found in the folder"
    if not kind.compiles:
        return "not compiled here"
    times, size = count(kind.compiles, "time"), quantity(kind.compiled_bytes, "B")
    return f"compiled {times}, {duration(kind.compile_seconds)}, {size}"


def _rows(report: JobFacts) -> Iterator[str]:
    yield f"model      {report.model}"
    yield f"devices    {', '.join(report.devices) or 'those of the compiled file'}"
    yield f"rows       {summary_of(report)}"
    for device, rows in report.rows_by_device.items():
        yield f"  ran on   {device}: {count(rows, 'row')}, {rows / max(report.rows, 1):.1%}"
    if report.fallback_rows:
        yield f"fell back  {count(report.fallback_rows, 'row')}: a device failed, and another one computed them"
    for name, times in report.incidents.items():
        yield f"  incident {name}, {count(times, 'time')}"
    if report.repeated_batches:
        repeats = f"{count(report.repeated_batches, 'batch', 'batches')} of {count(report.repeated_rows, 'row')}"
        yield f"repeated   {repeats}: an actor was lost; they count once"
    if report.executions > 1:
        yield f"consumed   {report.executions} times; this is the last one"


def _kinds(report: JobFacts) -> Iterator[str]:
    for kind in report.kinds:
        yield ""
        words = ", ".join(f"{name} {word}" for name, word in kind.machine.items() if word)
        yield f"kind       {kind.name}: {words or 'as the compiled file says'}"
        yield f"  plan     {told_of_kind(kind)}; " + ", ".join(
            f"{count(segments, 'segment')} on {device}" for device, segments in kind.segments.items()
        )
        if kind.cache_hits:
            yield f"  cache    {count(kind.cache_hits, 'segment')} found there"
        for name, reason in kind.missing.items():
            yield f"  without  {name}: {reason}"
        for note in kind.notes:
            yield f"  note     {note}"


def _machines(report: JobFacts) -> Iterator[str]:
    if report.machines:
        yield ""
        yield f"{'machine':<14} {'kind':<14} {'sessions':>8} {'made in':>10} {'rows':>10}"
    for machine in report.machines:
        session_time = duration(machine.session_seconds)
        yield (
            f"{machine.machine[:12]:<14} {machine.kind:<14} {machine.sessions:>8} {session_time:>10} {machine.rows:>10}"
        )


def _shapes(report: JobFacts) -> Iterator[str]:
    if report.slowest_shapes:
        yield ""
        yield "slowest shapes, by time of all their runs"
    for shape_stats in report.slowest_shapes[:_SHOWN]:
        row = duration(shape_stats.seconds / max(shape_stats.rows, 1))
        yield (
            f"  {shape_stats.shapes}: {count(shape_stats.runs, 'run')}, {row} per row, "
            f"slowest run {duration(shape_stats.slowest)}"
        )


def to_page(report: JobFacts) -> str:
    """Return a self-contained HTML page."""
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
        sections.insert(3, _section("What went wrong", table(_columns("device and error", "times"), rows)))
    return static_page("Job report", report.model, summary_of(report), "".join(sections))


def _columns(texts: str, numbers: str) -> list[tuple[str, bool]]:
    return [(heading, names is numbers) for names in (texts, numbers) for heading in names.split(", ")]


_KINDS = _columns("kind, machine, devices, plan, segments", "machines, sessions, rows")
_MACHINES = _columns("machine, address, kind", "sessions, made in, rows")
_SHAPES = _columns("shapes", "runs, rows, per row, slowest run, together")


def _figures(report: JobFacts) -> list[tuple[str, str, str]]:
    fallen = report.fallback_rows
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
            "because an actor was lost. Their first run counts."
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


class JobReport(JobFacts):
    """Report of a job: rows, devices, plans and failures; `str` returns it as text."""

    def to_dict(self) -> dict[str, Any]:
        return {"schema_version": SCHEMA_VERSION, **plain(self)}

    def to_json(self) -> str:
        return to_lines(self.to_dict())

    def to_html(self) -> str:
        return to_page(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the report to a file: HTML for `.html`, JSON for `.json`, otherwise text."""
        target = Path(path)
        text = {".html": self.to_html, ".json": self.to_json}.get(target.suffix, self.__str__)()
        write_file(target, lambda file: file.write(text.encode()))

    def __str__(self) -> str:
        return to_text(self)
