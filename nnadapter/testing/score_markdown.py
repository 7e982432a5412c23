"""The score card as Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from nnadapter.reports.rendering.markdown_cells import code, table
from nnadapter.testing.commands import repeat_command
from nnadapter.testing.score import ScoreCard
from nnadapter.testing.score_text import MOST_SHOWN, headline


def to_markdown(card: ScoreCard) -> str:
    """Return the card as headings and tables."""
    return "\n\n".join(_blocks(card)) + "\n"


def _blocks(card: ScoreCard) -> Iterator[str]:
    yield f"# Conformance of {code(card.settings.device)}"
    yield f"{headline(card)}."
    yield table(
        ("group", "passed", "failed", "not for this device"),
        [(name, str(tally.passed), str(tally.failed), str(tally.skipped)) for name, tally in card.groups.items()],
    )
    if card.failures:
        yield "## Failures"
        yield table(
            ("case", "what", "detail"),
            [(code(row.name), failed.kind.value, code(failed.detail)) for row, failed in card.failures[:MOST_SHOWN]],
            len(card.failures),
        )
        yield f"One of them again: {code(repeat_command(card.settings, card.failures[0][0].name))}"
    if card.claimed_in_vain:
        yield "## Said to be supported, and not compiled"
        yield table(("case",), [(code(name),) for name in card.claimed_in_vain[:MOST_SHOWN]], len(card.claimed_in_vain))
