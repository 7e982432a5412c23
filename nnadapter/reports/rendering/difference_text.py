"""What changed between two reports, as text and as Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from nnadapter.reports.difference_facts import DifferenceFacts, Figure, RefusalChange
from nnadapter.reports.rendering.markdown_cells import code, folded, table
from nnadapter.reports.rendering.wrapping import wrapped
from nnadapter.reports.units import count, duration, quantity

_UNLIKE = "the two reports were not made alike"
_SHOWN = 20
_SHOWN_FOLDED = 100


def difference_text(difference: DifferenceFacts) -> str:
    """Return what changed, as lines of text.

    1. What differs in how the two were made.
    2. The figures of both, the moved nodes, those of one report alone, and refusals whose number changed.
    """
    return "\n".join(line for part in (_conditions, _figures, _moved, _alone, _refusals) for line in part(difference))


def difference_markdown(difference: DifferenceFacts) -> str:
    """Return the same as Markdown: a table of figures, details folded."""
    rows = [
        (figure.name, shown(figure.before, figure.unit), shown(figure.after, figure.unit), _verdict(figure))
        for figure in difference.figures
    ]
    blocks = [f"### {_headline(difference)}"]
    if difference.conditions:
        made = [(condition.name, code(condition.before), code(condition.after)) for condition in difference.conditions]
        blocks += [f"**{_UNLIKE}**", table(("", "before", "after"), made)]
    blocks.append(table(("", "before", "after", ""), rows))
    if difference.moved:
        moved = [
            (code(node.name), code(node.op_type), code(node.before), code(node.after))
            for node in difference.moved[:_SHOWN_FOLDED]
        ]
        body = table(("node", "op type", "before", "after"), moved, len(difference.moved))
        blocks.append(folded(f"{count(len(difference.moved), 'node')} moved", body))
    if difference.refusals:
        changes = [
            (code(change.op_type), code(change.device), code(change.reason), str(change.before), str(change.after))
            for change in difference.refusals[:_SHOWN_FOLDED]
        ]
        body = table(("op type", "by", "reason", "before", "after"), changes, len(difference.refusals))
        blocks.append(folded("refusals that changed", body))
    for words, names in (("new", difference.appeared), ("gone", difference.vanished)):
        if names:
            body = table(("node",), [(code(name),) for name in names[:_SHOWN_FOLDED]], len(names))
            blocks.append(folded(f"{count(len(names), 'node')} {words}", body))
    return "\n\n".join(blocks) + "\n"


def shown(value: float | None, unit: str) -> str:
    """A figure as a person reads it; a dash where it is not known."""
    if value is None:
        return "-"
    if unit == "share":
        return f"{value:.1%}"
    return duration(value) if unit == "s" else quantity(value, "B") if unit == "B" else f"{value:.0f}"


def _headline(difference: DifferenceFacts) -> str:
    changed = [figure for figure in difference.figures if _verdict(figure)]
    if not (
        changed
        or difference.conditions
        or difference.moved
        or difference.appeared
        or difference.vanished
        or difference.refusals
    ):
        return "Nothing changed"
    return f"{count(len(difference.moved), 'node')} moved, {count(len(changed), 'figure')} changed"


def _verdict(figure: Figure) -> str:
    """`better`, `worse`, `changed`, or nothing where it did not change."""
    if figure.before == figure.after:
        return ""
    if figure.before is None or figure.after is None or not figure.better:
        return "changed"
    return "better" if (figure.after - figure.before) * figure.better > 0 else "worse"


def _conditions(difference: DifferenceFacts) -> Iterator[str]:
    if difference.conditions:
        yield _UNLIKE
        for condition in difference.conditions:
            yield from wrapped(f"{condition.name}: {condition.before} -> {condition.after}", "  ")
        yield ""


def _figures(difference: DifferenceFacts) -> Iterator[str]:
    yield f"{'compared':<20}{'before':>12}{'after':>12}"
    for figure in difference.figures:
        before, after = shown(figure.before, figure.unit), shown(figure.after, figure.unit)
        yield f"{figure.name:<20}{before:>12}{after:>12}  {_verdict(figure)}".rstrip()


def _moved(difference: DifferenceFacts) -> Iterator[str]:
    yield ""
    if not difference.moved:
        yield "no node moved"
        return
    yield f"{count(len(difference.moved), 'node')} moved"
    ways = Counter((node.before, node.after) for node in difference.moved)
    for (before, after), number in ways.most_common():
        yield f"  {before} -> {after}: {number}"
    for node in difference.moved[:_SHOWN]:
        yield from wrapped(f"{node.name} ({node.op_type}): {node.before} -> {node.after}", "    ")
    yield from _left_out(len(difference.moved))


def _alone(difference: DifferenceFacts) -> Iterator[str]:
    for words, names in (("new", difference.appeared), ("gone", difference.vanished)):
        if names:
            yield f"{count(len(names), 'node')} {words}"
            yield from (line for name in names[:_SHOWN] for line in wrapped(name, "    "))
            yield from _left_out(len(names))


def _refusals(difference: DifferenceFacts) -> Iterator[str]:
    if difference.refusals:
        yield ""
        yield "refusals that changed"
        yield from (_refusal(change) for change in difference.refusals[:_SHOWN])
        yield from _left_out(len(difference.refusals))


def _refusal(change: RefusalChange) -> str:
    word = "new" if not change.before else "gone" if not change.after else "changed"
    return f"  {change.device}: {change.op_type} {change.reason}  {change.before} -> {change.after}  {word}"


def _left_out(whole: int) -> Iterator[str]:
    if whole > _SHOWN:
        yield f"    ... and {whole - _SHOWN} more; the JSON form has them all"
