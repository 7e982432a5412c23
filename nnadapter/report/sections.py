"""Report sections shared by all formats, and the formatting of numbers, lines and table cells."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from nnadapter.drivers.selection import CPU, HOSTS
from nnadapter.planning.overlap import BoundaryOperation
from nnadapter.records import dataclass, replace
from nnadapter.report.facts import (
    CostFacts,
    NodeFacts,
    PlanFileFacts,
    RefusalCost,
    ReportFacts,
    RuleFacts,
    SegmentFacts,
    TensorFacts,
)

GUESS = "~"
"""Mark of times that rest on unmeasured costs."""
_BINARY: tuple[float, tuple[str, ...]] = (1024.0, ("", "Ki", "Mi", "Gi", "Ti"))
_DECIMAL: tuple[float, tuple[str, ...]] = (1000.0, ("", "k", "M", "G", "T", "P"))


def quantity(number: float, unit: str) -> str:
    """Format a number: `12.3 MFLOP`, `4.0 KiB`."""
    base, prefixes = _BINARY if unit == "B" else _DECIMAL
    index = 0
    while abs(number) >= base and index < len(prefixes) - 1:
        number /= base
        index += 1
    return f"{number:.0f} {unit}" if index == 0 else f"{number:.1f} {prefixes[index]}{unit}"


def work(flops: int, uncounted: int) -> str:
    """Format partly unknown FLOPs: `12.3 MFLOP`, `≥12.3 MFLOP`, `?`."""
    if not uncounted:
        return quantity(flops, "FLOP")
    return f"≥{quantity(flops, 'FLOP')}" if flops else "?"


def duration(seconds: float) -> str:
    """Format a time: `820 ns`, `45.0 µs`, `3.20 ms`, `1.50 s`."""
    size = abs(seconds)
    if size >= 1:
        return f"{seconds:.2f} s"
    if size >= 1e-3:
        return f"{seconds * 1e3:.2f} ms"
    return f"{seconds * 1e6:.1f} µs" if size >= 1e-6 or not size else f"{seconds * 1e9:.0f} ns"


def foretold(seconds: float, guessed: bool) -> str:
    """Format a predicted time: `3.20 ms`, or `~3.20 ms` for a guess."""
    return f"{GUESS if guessed else ''}{duration(seconds)}"


def count(number: int, singular: str, plural: str = "") -> str:
    """Format a number of things: `1 node`, `2 nodes`."""
    return f"{number} {singular if number == 1 else plural or singular + 's'}"


WIDTH = 100


def wrapped(text: str, head: str) -> list[str]:
    """Break `text` into lines of limited width after `head`, without breaking names."""
    indent = " " * len(head)
    return textwrap.wrap(
        text, WIDTH, initial_indent=head, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


_LONGEST = 160


def code(text: str) -> str:
    """Return a Markdown code span without active markup."""
    plain = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    if len(plain) > _LONGEST:
        plain = f"{plain[: _LONGEST - 3]}..."
    if not plain:
        return ""
    longest = max((len(run) for run in re.findall("`+", plain)), default=0)
    fence = "`" * (longest + 1)
    edge = " " if plain[0] == "`" or plain[-1] == "`" else ""
    # Markdown splits table cells before it parses code spans
    return fence + edge + plain.replace("|", "\\|") + edge + fence


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], total: int | None = None) -> str:
    """Return a Markdown table, with a line on omitted rows."""
    lines = [_row(heads), _row(["---"] * len(heads)), *(_row(row) for row in rows)]
    for line in omitted(total or 0, len(rows)):
        lines += ["", line]
    return "\n".join(lines)


def folded(summary: str, body: str) -> str:
    """Return collapsible details; `summary` must not come from the model."""
    return f"<details>\n<summary>{summary}</summary>\n\n{body}\n\n</details>"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def titled(title: str, lines: Iterable[str]) -> Iterator[str]:
    """Yield an empty line, `title` and the wrapped lines, or nothing without lines."""
    for position, line in enumerate(lines):
        if not position:
            yield from ("", title)
        yield from wrapped(line, "  ")


def omitted(total: int, shown: int, indent: str = "") -> Iterator[str]:
    """Yield a line on the number of rows not shown, if any."""
    if total > shown:
        yield f"{indent}... and {total - shown} more; the JSON form has them all"


def first_of(names: Sequence[str], most: int) -> str:
    """Join the first `most` names, and count the others: `a, b, c and 4 more`."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def flops_off_the_cpu(report: ReportFacts) -> str:
    """Return the share off the CPU: `97.1% of FLOPs`, `97.1% of known FLOPs`, or `FLOPs not known`."""
    if not report.unknown_flops_nodes:
        return f"{report.coverage.flops:.1%} of FLOPs"
    has_flops = any(node.flops for node in report.nodes)
    return f"{report.coverage.flops:.1%} of known FLOPs" if has_flops else "FLOPs not known"


def incident_lines(report: ReportFacts) -> Iterator[str]:
    """Yield a line on the failures of each device and class of error."""
    last = {(incident_facts.device, incident_facts.kind): incident_facts for incident_facts in report.incidents}
    for device, kinds in report.incident_counts.items():
        for kind, number in kinds.items():
            incident = last.get((device, kind))
            description = "" if incident is None else f": {incident.message}; {incident.fallback_action}"
            yield f"{device}: {kind} x{number}{description}"


_INDENT = " " * 11
_FAR = 2.0
_NAMES = 42


def cost_lines(report: ReportFacts) -> Iterator[str]:
    """Yield lines on the plan's cost."""
    cost = report.cost
    if cost is None:
        if report.cost_note:
            yield from wrapped(report.cost_note, "cost       ")
        return
    yield from wrapped(cost_sentence(cost), "cost       ")
    if cost.sources:
        yield from wrapped(f"costs of {sources_words(cost.sources)}", _INDENT)
    yield from wrapped(prediction_words(cost), _INDENT)
    cpu_note = cpu_words(report, cost)
    if not cpu_note and cost.all_cpu_seconds is not None and not cost.candidates:
        cpu_note = f"all on the CPU: {duration(cost.all_cpu_seconds)} {cost.word}"
    for words in (guess_words(cost), cpu_note, run_words(report), cost.note):
        yield from wrapped(words, _INDENT)
    if cost.candidates:
        yield ""
        width = max(_NAMES, *(len(candidate.name) + 1 for candidate in cost.candidates))
        yield f"{'candidate':<{width}}{'predicted':>12}{'measured':>12}"
    for candidate in cost.candidates:
        predicted = "-" if candidate.seconds is None else foretold(candidate.seconds, bool(cost.guesses))
        measured = "-" if candidate.measured_seconds is None else duration(candidate.measured_seconds)
        yield f"{candidate.name:<{width}}{predicted:>12}{measured:>12}"


def cost_sentence(cost: CostFacts) -> str:
    """Return cost, lower bound and gap in one sentence."""
    text = f"{duration(cost.seconds)} {cost.word}"
    if cost.bound_seconds is not None:
        kind = f" ({cost.bound_kind})" if cost.bound_kind else ""
        text += f", at least {duration(cost.bound_seconds)} for {cost.bound_of}{kind}"
    return text + (f", gap {cost.gap:.1%}" if cost.gap is not None else "")


def sources_words(sources: Mapping[str, str]) -> str:
    """Return each device with the source of its costs, as text."""
    return ", ".join(f"{device}: {source}" for device, source in sources.items())


def prediction_words(cost: CostFacts) -> str:
    """Return the sources of predictions, empty unless the cost is measured."""
    is_other = cost.is_measured and cost.prediction_sources
    return f"predictions use other costs, of {sources_words(cost.prediction_sources)}" if is_other else ""


def guess_words(cost: CostFacts) -> str:
    """Explain the mark `~` of guessed times and name the devices; empty without guesses."""
    names = ", ".join(name for name in cost.prediction_sources or cost.sources if name in cost.guesses)
    return f"{GUESS} marks a guess: costs of {names} are not measured" if names else ""


def run_words(report: ReportFacts, best_seconds: float | None = None) -> str:
    """Compare the last run with its prediction; empty if close or unknown."""
    pairs = [(segment.seconds, segment.predicted_seconds) for segment in report.segments]
    times_of_segments = [(took, predicted) for took, predicted in pairs if took is not None and predicted is not None]
    last, predicted = (
        (sum(times) for times in zip(*times_of_segments, strict=True)) if times_of_segments else (0.0, 0.0)
    )
    which, took = ("last", last) if best_seconds is None else ("best", best_seconds)
    if len(times_of_segments) < len(pairs) or not took or not predicted or 1 / _FAR <= took / predicted <= _FAR:
        return ""
    word = report.cost.predicted_word if report.cost is not None else "predicted"
    run = f"the {which} run took {duration(took)}"
    if took > predicted:
        return f"{run}, {took / predicted:.1f} times the {duration(predicted)} {word}"
    return f"{run}, less than the {duration(predicted)} {word} by a factor of {predicted / took:.1f}"


def cpu_words(report: ReportFacts, cost: CostFacts) -> str:
    """Return a sentence that the CPU alone is better; empty if it is not."""
    if len(cost.candidates) > 1 and all(segment.device == CPU for segment in report.segments):
        return "the CPU alone is better than every candidate plan"
    if cost.against_cpu is None or not cost.cpu_is_better:
        return ""
    plan_seconds, cpu_seconds, word = cost.against_cpu
    of_this = "" if word == cost.word else f" than the {duration(plan_seconds)} {word} for this plan"
    return (
        f"the CPU alone is better: {duration(cpu_seconds)} {word}, {duration(plan_seconds - cpu_seconds)} less{of_this}"
    )


_SHOWN_STEPS = 8
_KINDS = {
    "transfer": ("transfer", "transfers"),
    "cast": ("cast", "casts"),
    "layout": ("change of layout", "changes of layout"),
}


def boundary_sentences(report: ReportFacts) -> list[str]:
    """Describe boundary operations, device-resident values, asynchronous segments, and the last run's copies."""
    return [*_planned(report), *_staying(report), *_waiting(report), *_ran(report)]


def _planned(report: ReportFacts) -> Iterator[str]:
    steps = report.boundaries.operations
    if not steps:
        return
    kinds = Counter(step.kind for step in steps)
    bytes_by_kind = {kind: sum(step.nbytes or 0 for step in steps if step.kind == kind) for kind in kinds}
    parts = [
        f"{count(number, *_KINDS[kind])} of {quantity(bytes_by_kind[kind], 'B')}" for kind, number in kinds.items()
    ]
    seconds = [step.seconds for step in steps if step.seconds is not None]
    priced = f", predicted {duration(sum(seconds))}" if len(seconds) == len(steps) else ""
    yield f"{', '.join(parts)}{priced}"
    largest = sorted((step for step in steps if step.kind == "transfer"), key=lambda step: -(step.nbytes or 0))
    yield f"transferred: {first_of([*map(_transfer, largest)], _SHOWN_STEPS)}"


def _transfer(step: BoundaryOperation) -> str:
    size = "size not known" if step.nbytes is None else quantity(step.nbytes, "B")
    return f"{step.value} to {step.target.target}:{step.target.device_id} ({size})"


def _staying(report: ReportFacts) -> Iterator[str]:
    stay = report.boundaries.device_resident
    if stay:
        shown = first_of([f"{resident.value} on {resident.device}" for resident in stay], _SHOWN_STEPS)
        size = quantity(sum(resident.nbytes or 0 for resident in stay), "B")
        values = count(len(stay), "value passes", "values pass")
        yield f"{values} between segments of a device without transfer ({size}): {shown}"


def _waiting(report: ReportFacts) -> Iterator[str]:
    borders = report.boundaries
    for segments, how in (
        (borders.enqueued_segments, "enqueued on a stream"),
        (borders.threaded_segments, "run in threads"),
    ):
        if segments:
            numbers = first_of([*map(str, segments)], _SHOWN_STEPS)
            yield f"{count(len(segments), 'segment is', 'segments are')} {how}: {numbers}"
    if borders.host_waits:
        waits = [
            f"for {wait.segment} {'at the end' if wait.waiting_segment is None else f'before {wait.waiting_segment}'}"
            for wait in borders.host_waits
        ]
        yield f"a run waits {count(len(waits), 'time')} for them: {first_of(waits, _SHOWN_STEPS)}"


def _ran(report: ReportFacts) -> Iterator[str]:
    ran = report.transfers
    if ran is not None:
        yield (
            f"the last run copied {count(ran.to_device, 'tensor')} to devices "
            f"({quantity(ran.bytes_to_device, 'B')}) and {ran.to_host} from them "
            f"({quantity(ran.bytes_to_host, 'B')}) in {duration(ran.seconds)}; {ran.round_trips} returned "
            "to the device that produced them"
        )


_SHOWN_LOST = 20
_NAMED = 3


def rule_lines(report: ReportFacts) -> Iterator[str]:
    """Yield every rule with its effect."""
    yield from titled("rules", (f"{rule.text}: {rule_words(rule)}" for rule in report.rules))


def rule_words(rule: RuleFacts) -> str:
    """Describe a rule's effect, location and note."""
    binds = f"applies to {count(rule.nodes, 'node')}" if rule.nodes else "applies to nothing"
    where = f" ({rule.source})" if rule.source else ""
    return f"{binds}{where}" + (f"; {rule.note}" if rule.note else "")


def lost_groups(plan: PlanFileFacts) -> tuple[tuple[str, str, str], ...]:
    """Group a plan file's unmatched entries by device and reason; return (node names, device, reason) per group."""
    groups: dict[tuple[str, str], list[str]] = {}
    for entry in plan.unmatched_entries:
        groups.setdefault((entry.device, entry.reason), []).append(entry.name)
    return tuple((first_of(names, _NAMED), device, reason) for (device, reason), names in groups.items())


def plan_file_lines(report: ReportFacts) -> Iterator[str]:
    """Describe the plan file and its unmatched entries."""
    plan = report.plan_file
    if plan is None:
        return
    yield ""
    lost = (
        f", {count(len(plan.unmatched_entries), 'entry', 'entries')} not applied"
        if plan.unmatched_entries
        else ", all applied"
    )
    yield from wrapped(f"{plan.path}: {count(plan.matched_nodes, 'node')} placed{lost}", "plan file  ")
    groups = lost_groups(plan)
    for names, device, reason in groups[:_SHOWN_LOST]:
        yield from wrapped(f"{names} on {device}: {reason}", "  ")
    if len(groups) > _SHOWN_LOST:
        yield f"  ... and {len(groups) - _SHOWN_LOST} more reasons; the JSON form has every entry"


HEADS = ("segment", "device", "nodes", "FLOPs", "weights", "in", "out", "predicted")


def segment_cells(segment: SegmentFacts, unknown: str, guessed: bool) -> tuple[str, ...]:
    """Return a segment's cells for the columns `HEADS`, and its measured time."""
    predicted = segment.predicted_seconds
    return (
        str(segment.index),
        segment.device,
        str(len(segment.nodes)),
        work(segment.flops, segment.unknown_flops_nodes),
        quantity(segment.weight_bytes, "B"),
        _bytes(segment.inputs),
        _bytes(segment.outputs),
        unknown if predicted is None else foretold(predicted, guessed),
        unknown if segment.seconds is None else duration(segment.seconds),
    )


def _bytes(tensors: Sequence[TensorFacts]) -> str:
    sizes = [tensor.nbytes for tensor in tensors if tensor.nbytes is not None]
    return quantity(sum(sizes), "B") if len(sizes) == len(tensors) else "?"


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedGroup:
    """Nodes of one op type that a device refused for one reason."""

    device: str
    op_type: str
    reason: str
    nodes: int
    example: str
    detail: str
    seconds: float | None
    """Predicted seconds of these nodes; None if unknown for one of them."""
    flops: int
    guessed: bool = False
    caused: RefusalCost | None = None

    @property
    def cost(self) -> str:
        if self.seconds is not None:
            return foretold(self.seconds, self.guessed)
        return quantity(self.flops, "FLOP") if self.flops else ""

    @property
    def switching(self) -> float:
        return max(0.0, self.caused.seconds or 0.0) if self.caused is not None else 0.0

    @property
    def between(self) -> str:
        """Device switches caused by the refusal, and their time: `causes 12 switches, 1.20 ms together`."""
        if self.caused is None or self.caused.switches <= 0:
            return ""
        times = f", {foretold(self.switching, self.guessed)} together" if self.switching else ""
        return f"causes {count(self.caused.switches, 'switch', 'switches')}{times}"


def refused_groups(report: ReportFacts) -> tuple[RefusedGroup, ...]:
    """Return refusals by device, op type and reason, most frequent first."""
    guesses = report.guesses
    caused = {
        (refusal_cost.device, refusal_cost.op_type, refusal_cost.reason): refusal_cost
        for refusal_cost in report.refusal_costs
    }
    return tuple(
        replace(
            _group(*key, nodes),
            caused=caused.get(key),
            guessed=any(node.device in guesses for node in nodes),
        )
        for key, nodes in report.refusals().items()
    )


def _group(device: str, op_type: str, reason: str, nodes: Sequence[NodeFacts]) -> RefusedGroup:
    detail = next(
        refusal.detail for refusal in nodes[0].refusals if (refusal.device, refusal.reason) == (device, reason)
    )
    times = [node.predicted_seconds for node in nodes if node.predicted_seconds is not None]
    return RefusedGroup(
        device=device,
        op_type=op_type,
        reason=reason,
        nodes=len(nodes),
        example=nodes[0].name,
        detail=detail,
        seconds=sum(times) if len(times) == len(nodes) else None,
        flops=sum(node.flops or 0 for node in nodes),
    )


_ALIKE = 1.05
_SHOWN_OBSTACLES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Summary of a report."""

    kind: str
    """`good` if the plan is faster than the CPU alone, `bad` if it is slower, otherwise `open`."""
    headline: str
    more: tuple[str, ...]


def verdict(report: ReportFacts) -> Verdict:
    """Compare a plan with the CPU alone, or explain why that is not possible."""
    kind, headline = _against_the_cpu(report)
    return Verdict(kind=kind, headline=headline, more=tuple(_more(report)))


def _against_the_cpu(report: ReportFacts) -> tuple[str, str]:
    devices = [name for name in report.devices if any(segment.device == name for segment in report.segments)]
    away = " and ".join(name for name in devices if name not in HOSTS)
    if not away:
        reason = cpu_words(report, report.cost) if report.cost is not None else ""
        return "bad", f"Nothing runs off the CPU{f': {reason}' if reason else ''}."
    if report.cost is None or report.cost.against_cpu is None:
        reason = report.cost_note if report.cost is None else "the time on the CPU alone is unknown"
        return (
            "open",
            f"It is not known whether {away} is faster than the CPU alone: costs are {reason or 'not known'}.",
        )
    plan_seconds, cpu_seconds, word = report.cost.against_cpu
    times = f"{duration(plan_seconds)} against {duration(cpu_seconds)}, {word}"
    if cpu_seconds >= _ALIKE * plan_seconds:
        return (
            "good",
            f"With {away} the model runs {cpu_seconds / plan_seconds:.1f} times as fast as on the CPU alone: {times}.",
        )
    if plan_seconds >= _ALIKE * cpu_seconds:
        return (
            "bad",
            f"With {away} the model takes {plan_seconds / cpu_seconds:.1f} times as long as on the CPU alone: {times}.",
        )
    return "open", f"With {away} the model is as fast as on the CPU alone: {times}."


def _more(report: ReportFacts) -> Iterator[str]:
    groups = sorted(refused_groups(report), key=_weight, reverse=True)
    way = "; ".join(_obstacle(group) for group in groups[:_SHOWN_OBSTACLES])
    remaining = f", and {len(groups) - _SHOWN_OBSTACLES} more" if len(groups) > _SHOWN_OBSTACLES else ""
    refused = f"Refused: {way}{remaining}." if groups else "Nothing was refused."
    yield f"Off the CPU: {report.coverage.nodes:.1%} of nodes, {flops_off_the_cpu(report)}. {refused}"
    if report.cost is not None and (words := guess_words(report.cost)):
        yield f"{words}; `nnadapter calibrate` measures it."
    if words := run_words(report):
        yield f"{words[:1].upper()}{words[1:]}."


def _weight(group: RefusedGroup) -> tuple[float, int, int]:
    return (group.seconds or 0.0) + group.switching, group.flops, group.nodes


def _obstacle(group: RefusedGroup) -> str:
    details = [count(group.nodes, "node"), *filter(None, (group.cost, group.between))]
    return f"{group.op_type} ({group.reason}; {', '.join(details)})"
