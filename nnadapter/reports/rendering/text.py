"""The report as text, for a terminal: what an engineer asks first comes first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from nnadapter.drivers.interface import KERNEL, NO_OPERATION
from nnadapter.drivers.selection import HOSTS
from nnadapter.reports.facts import ReportFacts, SegmentFacts
from nnadapter.reports.rendering.border_text import boundary_sentences
from nnadapter.reports.rendering.cost_text import cost_lines
from nnadapter.reports.rendering.flops_text import flops_off_the_cpu
from nnadapter.reports.rendering.incident_lines import incident_lines
from nnadapter.reports.rendering.op_types import op_type_lines
from nnadapter.reports.rendering.refused import refused_groups
from nnadapter.reports.rendering.rule_text import plan_file_lines, rule_lines
from nnadapter.reports.rendering.segments import HEADS, segment_cells
from nnadapter.reports.rendering.wrapping import wrapped
from nnadapter.reports.units import count, quantity

_SHOWN_KERNELS = 8
_SHOWN_SEGMENTS = 20
_SHOWN_REFUSALS = 20
_KEPT = "\u00a0"
"""A space at which no line is broken."""


def to_text(report: ReportFacts) -> str:
    """Return the report as lines of text.

    1. Summary: devices, inputs, how the nodes end, coverage, segments.
    2. Cost, where costs are known, with what it rests on and what else was weighed.
    3. Segments, with what they compute, hold and exchange, predicted time beside measured.
    4. Borders: transfers, casts and changes of layout, what stays on its device, what the last run copied.
    5. What was refused, by device, op type and reason, each with an example and what those nodes cost elsewhere.
    6. Op types, with where their nodes run.
    7. Rules with what they bind, and the plan file with what of it does not bind any more.
    8. Notes: what did not go as promised; incidents of the session: what devices failed to do, and how often.
    """
    return "\n".join(line for part in _PARTS for line in part(report))


def _summary(report: ReportFacts) -> Iterator[str]:
    states = [node.state for node in report.nodes]
    running, folded, unused = (states.count(state) for state in ("runs", "folded", "unused"))
    shapes = ", ".join(f"{name}{list(shape)}" for name, shape in report.input_shapes.items())
    names = [f"{name} (isolated)" if name in report.isolated else name for name in report.devices]
    yield f"devices    {', '.join(names)} (policy {report.policy})"
    yield from wrapped(shapes or "none", "inputs     ")
    if report.choice:
        yield from wrapped(
            f"where {report.choice_text}; other inputs choose other branches, with other plans", "chosen     "
        )
    yield f"nodes      {len(states)}: {running} run, {folded} folded before the run, {unused} unused"
    yield from _groups(report)
    yield (
        f"coverage   {report.coverage.nodes:.1%} of nodes, {flops_off_the_cpu(report)}, "
        f"{report.coverage.bytes:.1%} of bytes off the CPU"
    )
    if report.uncounted:
        words = "are not known: their op has no formula, or the run alone tells their sizes"
        yield from wrapped(f"FLOPs of {count(report.uncounted, 'node')} {words}", " " * 11)
    accelerated = sum(segment.device not in HOSTS for segment in report.segments)
    fewest = "the fewest possible" if report.exact else "not proved the fewest"
    yield (
        f"segments   {len(report.segments)} ({accelerated} off the CPU, {fewest}), "
        f"{count(report.switches, 'switch', 'switches')} between devices"
    )
    if report.search:
        yield f"           {report.search}"
    if report.weights.total:
        held = ", ".join(f"{name} {quantity(size, 'B')}" for name, size in report.weights.devices.items() if size)
        yield from wrapped(f"{quantity(report.weights.total, 'B')} ({held}; shared ones once)", "weights    ")
    if report.plans is not None:
        held = quantity(report.plans.memory_bytes, "B")
        yield (
            f"plans      {report.plans.kept} kept ({held}), {report.plans.made} made, "
            f"{report.plans.used_again} times used again, {report.plans.dropped} dropped"
        )
        if report.plans.sizes:
            yield from wrapped(report.plans.sizes, "           ")
    if report.caches:
        hits, misses = (sum(getattr(cache, what) for cache in report.caches) for what in ("hits", "misses"))
        failures = sum(cache.failures for cache in report.caches)
        yield f"remembered {hits} times, worked out {misses} times in this process; {count(failures, 'failure')}"


def _groups(report: ReportFacts) -> Iterator[str]:
    """Per device that says what nodes run as: how many groups they are fused into, and the largest."""
    for device in report.devices:
        said = [node for node in report.nodes if node.device == device and node.runs_as]
        groups = Counter([(node.segment, node.runs_as) for node in said if node.runs_as != NO_OPERATION])
        if groups:
            (((_, largest), members),) = groups.most_common(1)
            fused = f"fused into {count(len(groups), 'group')}, the largest ({count(members, 'node')}): {largest}"
            text = fused if members > 1 else "none fused"
            yield from wrapped(f"{device}: {count(len(said), 'node')}, {text}", " " * 11)
        by_kernel = [f"{node.runs_as} ({node.name})" for node in said if node.runs_as.startswith(KERNEL)]
        if by_kernel:
            more = f" and {len(by_kernel) - _SHOWN_KERNELS} more" if len(by_kernel) > _SHOWN_KERNELS else ""
            yield from wrapped(f"{device}: {', '.join(by_kernel[:_SHOWN_KERNELS])}{more}", " " * 11)


def _segments(report: ReportFacts) -> Iterator[str]:
    if not report.segments:
        return
    yield ""
    priced = any(segment.predicted_seconds is not None for segment in report.segments)
    yield _row((*HEADS, "last run"), priced)
    for segment in report.segments[:_SHOWN_SEGMENTS]:
        yield from _segment(segment, priced, segment.device in report.guesses)
    if len(report.segments) > _SHOWN_SEGMENTS:
        yield f"... and {len(report.segments) - _SHOWN_SEGMENTS} more; the JSON form has them all"


def _segment(segment: SegmentFacts, priced: bool, guessed: bool) -> Iterator[str]:
    yield _row(segment_cells(segment, "-", guessed), priced)
    told = [_fact(name, value) for name, value in segment.facts.items()]
    if segment.bound_to is not None:
        told.append(f"bound to the program of segment {segment.bound_to}")
    if told:
        facts = ", ".join(fact.replace(" ", _KEPT) for fact in told)
        yield from (line.replace(_KEPT, " ") for line in wrapped(facts, " " * 8))
    if segment.cache is not None:
        yield from wrapped("cache: hit" if segment.cache.hit else f"cache: miss, {segment.cache.why}", " " * 8)


def _row(cells: Sequence[str], priced: bool) -> str:
    """A line of the table; without the column of predictions where nothing is priced."""
    index, device, nodes, flops, *others = cells if priced else (*cells[:-2], cells[-1])
    return f"{index:<8}{device:<14}{nodes:>6}{flops:>13}" + "".join(f"{cell:>11}" for cell in others)


def _fact(name: str, value: float | str | None) -> str:
    words = name.replace("_", " ")
    if name.endswith("_bytes") and isinstance(value, (int, float)):
        return f"{words.removesuffix(' bytes')} {quantity(value, 'B')}"
    if name.endswith("_percent") and isinstance(value, (int, float)):
        return f"{words.removesuffix(' percent')} {value:.1f}%"
    return f"{words} {'not finite' if value is None else value}"


def _borders(report: ReportFacts) -> Iterator[str]:
    words = boundary_sentences(report)
    if words:
        yield ""
        yield "borders"
        for line in words:
            yield from wrapped(line, "  ")


def _refusals(report: ReportFacts) -> Iterator[str]:
    groups = refused_groups(report)
    if not groups:
        return
    yield ""
    yield "refused"
    for group in groups[:_SHOWN_REFUSALS]:
        cost = f"  {group.cost} where they run" if group.seconds is not None else ""
        cost += f"  {group.between}" if group.between else ""
        yield f"  {group.device}: {group.op_type} x{group.nodes}  {group.reason}{cost}"
        yield from wrapped(f"{'as ' if group.nodes > 1 else ''}{group.example}: {group.detail}", " " * 6)
    if len(groups) > _SHOWN_REFUSALS:
        yield f"  ... and {len(groups) - _SHOWN_REFUSALS} more; the JSON form has them all"


def _op_types(report: ReportFacts) -> Iterator[str]:
    yield ""
    yield from op_type_lines(report)


def _notes(report: ReportFacts) -> Iterator[str]:
    if report.notes:
        yield ""
        yield "notes"
        for note in report.notes:
            yield from wrapped(note, "  ")


def _incidents(report: ReportFacts) -> Iterator[str]:
    lines = list(incident_lines(report))
    if lines:
        yield ""
        yield "incidents"
        for line in lines:
            yield from wrapped(line, "  ")


_PARTS = (
    _summary,
    cost_lines,
    _segments,
    _borders,
    _refusals,
    _op_types,
    rule_lines,
    plan_file_lines,
    _notes,
    _incidents,
)
