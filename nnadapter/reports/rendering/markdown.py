"""The report as Markdown, short enough for a comment on a change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from nnadapter.drivers.selection import HOSTS
from nnadapter.onnx.domains import op_name
from nnadapter.reports.facts import CostFacts, ReportFacts
from nnadapter.reports.formatting import code, count, duration, folded, quantity, table
from nnadapter.reports.rendering.sections import (
    HEADS,
    RefusedGroup,
    boundary_sentences,
    cost_sentence,
    cpu_words,
    flops_off_the_cpu,
    guess_words,
    incident_lines,
    prediction_words,
    refused_groups,
    rule_words,
    run_words,
    segment_cells,
    sources_words,
)

_SHOWN_IN_MARKDOWN = 30
"""Rows of a table; a comment holds some 60,000 characters."""
_SHOWN_REASONS = 5


def to_markdown(report: ReportFacts) -> str:
    """Return a heading, a table of key figures, the reasons most often given, and details that are folded.

    What comes from the model or a driver stands in code spans, where it means nothing.
    """
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
        rows.append(("programs", f"{count(bound, 'segment')} bound to another one's program, with other weights"))
    if report.cost is not None:
        rows.extend(_costs(report.cost))
    yield table(("", ""), rows)
    if report.cost is not None:
        said = (cpu_words(report, report.cost), run_words(report), guess_words(report.cost))
        yield from (f"**{words}**" for words in said if words)


def _costs(cost: CostFacts) -> Iterator[tuple[str, str]]:
    yield "cost", f"{cost_sentence(cost)} ({sources_words(cost)})"
    if cost.is_measured and cost.prediction_sources:
        yield "predictions", prediction_words(cost)
    if cost.against_cpu is not None:
        _, alone, word = cost.against_cpu
        yield "all on the CPU", f"{duration(alone)} {word}"


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
        rows = [(index, code(device), *others) for index, device, *others in cells]
        yield folded(count(len(report.segments), "segment"), table((*HEADS, "measured"), rows, len(report.segments)))


def _refused(report: ReportFacts) -> Iterator[str]:
    groups = refused_groups(report)
    if groups:
        rows = [(*_reason(group), code(group.example), code(group.detail)) for group in groups[:_SHOWN_IN_MARKDOWN]]
        heads = ("op type", "by", "nodes", "reason", "cost elsewhere", "such as", "detail")
        yield folded("what was refused, and why", table(heads, rows, len(groups)))


def _markdown_op_types(report: ReportFacts) -> Iterator[str]:
    where: dict[str, Counter[str]] = {}
    for node in report.nodes:
        where.setdefault(op_name(node.domain, node.op_type), Counter())[node.device or node.state] += 1
    ordered = sorted(where.items(), key=lambda item: (-item[1].total(), item[0]))
    columns = [*report.devices, *(end for end in ("folded", "unused") if any(row[end] for row in where.values()))]
    rows = [
        (code(name), str(row.total()), *(str(row[column] or "–") for column in columns))
        for name, row in ordered[:_SHOWN_IN_MARKDOWN]
    ]
    heads = ("op type", "nodes", *(code(column) for column in columns))
    yield folded(count(len(where), "op type"), table(heads, rows, len(where)))


def _markdown_boundaries(report: ReportFacts) -> Iterator[str]:
    words = boundary_sentences(report)
    if words:
        yield folded("between host and devices", "\n".join(f"- {code(line)}" for line in words))


def _rules(report: ReportFacts) -> Iterator[str]:
    if report.rules:
        rows = [(code(rule.text), code(rule_words(rule))) for rule in report.rules[:_SHOWN_IN_MARKDOWN]]
        idle = sum(not rule.nodes for rule in report.rules)
        said = f", {idle} of them binding nothing" if idle else ""
        yield folded(f"{count(len(report.rules), 'rule')}{said}", table(("rule", ""), rows, len(report.rules)))


def _plan_file(report: ReportFacts) -> Iterator[str]:
    plan = report.plan_file
    if plan is None:
        return
    placed, lost = count(plan.matched_nodes, "node"), len(plan.unmatched_entries)
    yield f"Plan file {code(plan.path)}: {placed} placed, {lost} entries lost."
    if plan.unmatched_entries:
        groups = plan.lost_groups()
        rows = [tuple(code(text) for text in group) for group in groups[:_SHOWN_IN_MARKDOWN]]
        yield folded("entries lost", table(("node", "device", "why"), rows, len(groups)))


def _markdown_incidents(report: ReportFacts) -> Iterator[str]:
    lines = list(incident_lines(report))
    if lines:
        yield "Incidents:\n\n" + "\n".join(f"- {code(line)}" for line in lines[:_SHOWN_IN_MARKDOWN])


def _markdown_notes(report: ReportFacts) -> Iterator[str]:
    if report.notes:
        yield "\n".join(f"- {code(note)}" for note in report.notes[:_SHOWN_IN_MARKDOWN])
