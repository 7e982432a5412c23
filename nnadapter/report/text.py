"""Reports as text for a terminal, and as Markdown for a comment on a change."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from nnadapter.drivers.interface import KERNEL, NO_OPERATION
from nnadapter.drivers.selection import HOSTS
from nnadapter.onnx.domains import op_name
from nnadapter.records import dataclass, field
from nnadapter.report.facts import CostFacts, ReportFacts, SegmentFacts
from nnadapter.report.sections import (
    HEADS,
    RefusedGroup,
    boundary_sentences,
    code,
    cost_lines,
    cost_sentence,
    count,
    cpu_words,
    duration,
    first_of,
    flops_off_the_cpu,
    folded,
    guess_words,
    incident_lines,
    lost_groups,
    omitted,
    plan_file_lines,
    prediction_words,
    quantity,
    refused_groups,
    rule_lines,
    rule_words,
    run_words,
    segment_cells,
    sources_words,
    table,
    titled,
    wrapped,
)

_SHOWN = 25
_COLUMN = 9
_ENDS = ("folded", "unused")


@dataclass(slots=True)
class _OpTypeRow:
    where: Counter[str] = field(default_factory=Counter)
    """Number of nodes by device; nodes that do not run are counted by state."""
    flops: Counter[str] = field(default_factory=Counter)


def op_type_lines(report: ReportFacts) -> Iterator[str]:
    """Yield a table of op types, most FLOPs first: nodes per device and shares of FLOPs."""
    rows = _rows(report)
    ordered = sorted(rows.items(), key=lambda item: (-item[1].flops.total(), -item[1].where.total(), item[0]))
    sums = _OpTypeRow()
    for row in rows.values():
        sums.where.update(row.where)
        sums.flops.update(row.flops)
    columns = [*report.devices, *(end for end in _ENDS if sums.where[end])]
    width = max(len("op type"), *(len(name) for name, _ in ordered[:_SHOWN])) + 1 if ordered else 8
    yield _line("op type", ["nodes", *columns, "FLOPs"], width)
    for name, row in ordered[:_SHOWN]:
        yield _line(name, [*_counts(row, columns), _share(row.flops.total(), sums)], width)
    if len(ordered) > _SHOWN:
        yield f"... and {len(ordered) - _SHOWN} more; the JSON form has every node"
    yield _line("all", _counts(sums, columns), width)
    if sums.flops.total():
        shares = [_share(sums.flops[name], sums) if name in report.devices else "" for name in columns]
        yield _line("FLOPs", ["", *shares], width).rstrip()


def _rows(report: ReportFacts) -> dict[str, _OpTypeRow]:
    rows = defaultdict[str, _OpTypeRow](_OpTypeRow)
    for node in report.nodes:
        row = rows[op_name(node.domain, node.op_type)]
        row.where[node.device or node.state] += 1
        row.flops[node.device] += node.flops or 0
    return rows


def _counts(row: _OpTypeRow, columns: Sequence[str]) -> list[str]:
    return [str(row.where.total()), *(str(row.where[name] or "-") for name in columns)]


def _share(flops: int, sums: _OpTypeRow) -> str:
    return f"{flops / sums.flops.total():.1%}" if flops else "-"


def _line(name: str, cells: Sequence[str], width: int) -> str:
    return f"{name:<{width}}" + "".join(f"{cell:>{max(_COLUMN, len(cell) + 2)}}" for cell in cells)


_SHOWN_KERNELS = 8
_SHOWN_SEGMENTS = 20
_SHOWN_REFUSALS = 20
_NO_BREAK_SPACE = "\u00a0"


def to_text(report: ReportFacts) -> str:
    """Return the report as text."""
    return "\n".join(line for part in _PARTS for line in part(report))


def _summary(report: ReportFacts) -> Iterator[str]:
    states = Counter(node.state for node in report.nodes)
    shapes = ", ".join(f"{name}{list(shape)}" for name, shape in report.input_shapes.items())
    names = [f"{name} (isolated)" if name in report.isolated else name for name in report.devices]
    yield f"devices    {', '.join(names)} (policy {report.policy})"
    if any(precision != "float32" for precision in report.precisions.values()):
        words = ", ".join(f"{name} in {precision}" for name, precision in report.precisions.items())
        yield from wrapped(words, "precision  ")
    for sentence in report.precision_remarks:
        yield from wrapped(sentence, "precision  ")
    yield from wrapped(shapes or "none", "inputs     ")
    if report.branch_decisions:
        yield from wrapped(
            f"where {report.branch_decisions_text}; other inputs choose other branches, with other plans", "chosen     "
        )
    yield (
        f"nodes      {states.total()}: {states['runs']} run, {states['folded']} folded before the run, "
        f"{states['unused']} unused"
    )
    yield from _groups(report)
    yield (
        f"coverage   {report.coverage.nodes:.1%} of nodes, {flops_off_the_cpu(report)}, "
        f"{report.coverage.bytes:.1%} of bytes off the CPU"
    )
    if report.unknown_flops_nodes:
        words = "are unknown: their op has no formula, or their sizes are known only at run time"
        yield from wrapped(f"FLOPs of {count(report.unknown_flops_nodes, 'node')} {words}", " " * 11)
    accelerated = sum(segment.device not in HOSTS for segment in report.segments)
    fewest = "the fewest possible" if report.exact else "not proved to be the fewest"
    yield (
        f"segments   {len(report.segments)} ({accelerated} off the CPU, {fewest}), "
        f"{count(report.switches, 'switch', 'switches')} between devices"
    )
    if report.search:
        yield f"           {report.search}"
    if report.weights.total:
        sizes = ", ".join(f"{name} {quantity(size, 'B')}" for name, size in report.weights.devices.items() if size)
        yield from wrapped(f"{quantity(report.weights.total, 'B')} ({sizes}; shared ones counted once)", "weights    ")
    if report.plans is not None:
        sizes = quantity(report.plans.memory_bytes, "B")
        yield (
            f"plans      {report.plans.in_cache} in cache ({sizes}), {report.plans.compiled} compiled, "
            f"{report.plans.reused} times reused, {report.plans.evicted} evicted"
        )
        if report.plans.served_shapes_text:
            yield from wrapped(report.plans.served_shapes_text, "           ")
    if report.caches:
        hits, misses = (sum(getattr(cache, field_name) for cache in report.caches) for field_name in ("hits", "misses"))
        failures = sum(cache.failures for cache in report.caches)
        yield f"caches     {hits} hits and {misses} misses in this process; {count(failures, 'failure')}"


def _groups(report: ReportFacts) -> Iterator[str]:
    for device in report.devices:
        described_nodes = [node for node in report.nodes if node.device == device and node.runs_as]
        groups = Counter([(node.segment, node.runs_as) for node in described_nodes if node.runs_as != NO_OPERATION])
        if groups:
            (((_, largest), members),) = groups.most_common(1)
            fused = f"fused into {count(len(groups), 'operation')} of up to {members} nodes, such as {largest}"
            text = fused if members > 1 else "none fused"
            yield from wrapped(f"{device}: {count(len(described_nodes), 'node')}, {text}", " " * 11)
        by_kernel = [f"{node.runs_as} ({node.name})" for node in described_nodes if node.runs_as.startswith(KERNEL)]
        if by_kernel:
            yield from wrapped(f"{device}: {first_of(by_kernel, _SHOWN_KERNELS)}", " " * 11)


def _segments(report: ReportFacts) -> Iterator[str]:
    if not report.segments:
        return
    yield ""
    priced = any(segment.predicted_seconds is not None for segment in report.segments)
    shown = report.segments[:_SHOWN_SEGMENTS]
    width = max(14, *(len(segment.device) + 2 for segment in shown))
    yield _row((*HEADS, "last run"), priced, width)
    for segment in shown:
        yield from _segment(segment, priced, segment.device in report.guesses, width)
    yield from omitted(len(report.segments), _SHOWN_SEGMENTS)


def _segment(segment: SegmentFacts, priced: bool, guessed: bool, width: int) -> Iterator[str]:
    yield _row(segment_cells(segment, "-", guessed), priced, width)
    facts_shown = [_fact(name, value) for name, value in segment.facts.items()]
    if segment.program_of is not None:
        facts_shown.append(f"uses the program of segment {segment.program_of}")
    if facts_shown:
        facts = "reported by the device: " + ", ".join(fact.replace(" ", _NO_BREAK_SPACE) for fact in facts_shown)
        yield from (line.replace(_NO_BREAK_SPACE, " ") for line in wrapped(facts, " " * 8))
    if segment.cache is not None:
        yield from wrapped("cache: hit" if segment.cache.hit else f"cache: miss, {segment.cache.miss_reason}", " " * 8)


def _row(cells: Sequence[str], priced: bool, width: int) -> str:
    index, device, nodes, flops, *remaining = cells if priced else (*cells[:-2], cells[-1])
    return f"{index:<8}{device:<{width}}{nodes:>6}{flops:>13}" + "".join(f"{cell:>11}" for cell in remaining)


def _fact(name: str, value: float | str | None) -> str:
    words = name.replace("_over_bound_", "_above_its_lower_bound_").replace("_", " ")
    if name.endswith("_bytes") and isinstance(value, (int, float)):
        return f"{words.removesuffix(' bytes')} {quantity(value, 'B')}"
    if name.endswith("_percent") and isinstance(value, (int, float)):
        return f"{words.removesuffix(' percent')} {value:.1f}%"
    return f"{words} {'not finite' if value is None else value}"


def _boundaries(report: ReportFacts) -> Iterator[str]:
    return titled("boundaries", boundary_sentences(report))


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
        yield from wrapped(f"{'such as ' if group.nodes > 1 else ''}{group.example}: {group.detail}", " " * 6)
    yield from omitted(len(groups), _SHOWN_REFUSALS, "  ")


def _op_types(report: ReportFacts) -> Iterator[str]:
    yield ""
    yield from op_type_lines(report)


def _notes(report: ReportFacts) -> Iterator[str]:
    return titled("notes", report.notes)


def _incidents(report: ReportFacts) -> Iterator[str]:
    return titled("incidents", incident_lines(report))


_PARTS = (
    _summary,
    cost_lines,
    _segments,
    _boundaries,
    _refusals,
    _op_types,
    rule_lines,
    plan_file_lines,
    _notes,
    _incidents,
)


_SHOWN_IN_MARKDOWN = 30
"""Maximum rows of a table; comments are limited to about 60,000 characters."""
_SHOWN_REASONS = 5


def to_markdown(report: ReportFacts) -> str:
    """Return the report as Markdown. Texts from the model or a driver are code spans."""
    parts = (
        _markdown_summary,
        _reasons,
        _markdown_segments,
        _markdown_boundaries,
        _refused,
        _markdown_op_types,
        _rules,
        _plan_file,
        _markdown_notes,
        _markdown_incidents,
    )
    return "\n\n".join(block for part in parts for block in part(report)) + "\n"


def _markdown_summary(report: ReportFacts) -> Iterator[str]:
    cover = report.coverage
    yield f"### {cover.nodes:.1%} of nodes off the CPU, {count(len(report.segments), 'segment')}"
    states = Counter(node.state for node in report.nodes)
    away = sum(segment.device not in HOSTS for segment in report.segments)
    rows = [
        ("devices", f"{', '.join(code(name) for name in report.devices)}, policy {report.policy}"),
        *(("precision", remark) for remark in report.precision_remarks),
        ("inputs", ", ".join(code(f"{name}{list(shape)}") for name, shape in report.input_shapes.items()) or "none"),
        *([("chosen", f"where {code(report.branch_decisions_text)}")] if report.branch_decisions else []),
        ("nodes", f"{states.total()}: {states['runs']} run, {states['folded']} folded, {states['unused']} unused"),
        ("coverage", f"{cover.nodes:.1%} of nodes, {flops_off_the_cpu(report)}, {cover.bytes:.1%} of bytes"),
        (
            "segments",
            f"{len(report.segments)} ({report.fewest}), {away} off the CPU, "
            f"{count(report.switches, 'switch', 'switches')}",
        ),
        ("weights", quantity(report.weights.total, "B")),
    ]
    bound = sum(segment.program_of is not None for segment in report.segments)
    if bound:
        rows.append(("programs", f"{count(bound, 'segment')} with the program of another segment and other weights"))
    if report.cost is not None:
        rows.extend(_costs(report.cost))
    yield table(("", ""), rows)
    if report.cost is not None:
        remarks = (cpu_words(report, report.cost), run_words(report), guess_words(report.cost))
        yield from (f"**{words}**" for words in remarks if words)


def _costs(cost: CostFacts) -> Iterator[tuple[str, str]]:
    yield "cost", f"{cost_sentence(cost)} ({sources_words(cost.sources)})"
    if words := prediction_words(cost):
        yield "predictions", words
    if cost.against_cpu is not None:
        _, cpu_seconds, word = cost.against_cpu
        yield "all on the CPU", f"{duration(cpu_seconds)} {word}"


def _reasons(report: ReportFacts) -> Iterator[str]:
    groups = refused_groups(report)
    if groups:
        rows = [_reason(group) for group in groups[:_SHOWN_REASONS]]
        yield table(("refused", "by", "nodes", "reason", "cost elsewhere"), rows)


def _reason(group: RefusedGroup) -> tuple[str, ...]:
    return code(group.op_type), code(group.device), str(group.nodes), code(group.reason), _elsewhere(group)


def _elsewhere(group: RefusedGroup) -> str:
    return ", ".join(filter(None, (group.cost, group.between))) or "–"


def _markdown_segments(report: ReportFacts) -> Iterator[str]:
    if report.segments:
        cells = [
            segment_cells(segment, "–", segment.device in report.guesses)
            for segment in report.segments[:_SHOWN_IN_MARKDOWN]
        ]
        rows = [(index, code(device), *remaining) for index, device, *remaining in cells]
        yield folded(count(len(report.segments), "segment"), table((*HEADS, "measured"), rows, len(report.segments)))


def _refused(report: ReportFacts) -> Iterator[str]:
    groups = refused_groups(report)
    if groups:
        rows = [(*_reason(group), code(group.example), code(group.detail)) for group in groups[:_SHOWN_IN_MARKDOWN]]
        heads = ("op type", "by", "nodes", "reason", "cost elsewhere", "such as", "detail")
        yield folded("refusals and their reasons", table(heads, rows, len(groups)))


def _markdown_op_types(report: ReportFacts) -> Iterator[str]:
    where = {name: row.where for name, row in _rows(report).items()}
    ordered = sorted(where.items(), key=lambda item: (-item[1].total(), item[0]))
    columns = [*report.devices, *(end for end in _ENDS if any(row[end] for row in where.values()))]
    rows = [
        (code(name), str(row.total()), *(str(row[column] or "–") for column in columns))
        for name, row in ordered[:_SHOWN_IN_MARKDOWN]
    ]
    heads = ("op type", "nodes", *map(code, columns))
    yield folded(count(len(where), "op type"), table(heads, rows, len(where)))


def _markdown_boundaries(report: ReportFacts) -> Iterator[str]:
    words = boundary_sentences(report)
    if words:
        yield folded("transfers between host and devices", "\n".join(f"- {code(line)}" for line in words))


def _rules(report: ReportFacts) -> Iterator[str]:
    if report.rules:
        rows = [(code(rule.text), code(rule_words(rule))) for rule in report.rules[:_SHOWN_IN_MARKDOWN]]
        idle = sum(not rule.nodes for rule in report.rules)
        remark = f", {idle} of them without effect" if idle else ""
        yield folded(f"{count(len(report.rules), 'rule')}{remark}", table(("rule", ""), rows, len(report.rules)))


def _plan_file(report: ReportFacts) -> Iterator[str]:
    plan = report.plan_file
    if plan is None:
        return
    placed, lost = count(plan.matched_nodes, "node"), len(plan.unmatched_entries)
    yield f"Plan file {code(plan.path)}: {placed} placed, {lost} entries not applied."
    if plan.unmatched_entries:
        groups = lost_groups(plan)
        rows = [tuple(map(code, group)) for group in groups[:_SHOWN_IN_MARKDOWN]]
        yield folded("entries not applied", table(("node", "device", "why"), rows, len(groups)))


def _markdown_incidents(report: ReportFacts) -> Iterator[str]:
    lines = list(incident_lines(report))
    if lines:
        yield "Incidents:\n\n" + "\n".join(f"- {code(line)}" for line in lines[:_SHOWN_IN_MARKDOWN])


def _markdown_notes(report: ReportFacts) -> Iterator[str]:
    if report.notes:
        yield "\n".join(f"- {code(note)}" for note in report.notes[:_SHOWN_IN_MARKDOWN])
