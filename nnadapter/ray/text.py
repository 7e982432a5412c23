"""The report of a job as text."""

from __future__ import annotations

from collections.abc import Iterator

from nnadapter.ray.facts import JobFacts, KindFacts
from nnadapter.reports.units import count, duration, quantity

_SHOWN = 5


def to_text(report: JobFacts) -> str:
    """Return the report as lines of text: rows and where they ran, kinds of machines, machines, slowest shapes."""
    return "\n".join((*_rows(report), *_kinds(report), *_machines(report), *_shapes(report)))


def summary_of(report: JobFacts) -> str:
    """The first line."""
    rate = f", {report.rows / report.seconds:.0f} rows per second of runs" if report.seconds else ""
    return f"{count(report.rows, 'row')} in {count(report.runs, 'run')}{rate}"


def told_of_kind(kind: KindFacts) -> str:
    """How a kind of machine came to its compiled file."""
    if kind.was_there:
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
    if report.rows_fallen_back:
        yield f"fell back  {count(report.rows_fallen_back, 'row')}: a device did not deliver, and another one did"
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
