"""The score card as text."""

from __future__ import annotations

from collections.abc import Iterator

from nnadapter.testing.commands import repeat_command
from nnadapter.testing.score import ScoreCard

MOST_SHOWN = 40
"""Failures that are listed; the JSON form has them all."""


def score_to_text(card: ScoreCard) -> str:
    """Return the card as lines: the verdict, a row per group, failures, and what was claimed in vain."""
    return "\n".join(_lines(card))


def _lines(card: ScoreCard) -> Iterator[str]:
    yield headline(card)
    yield ""
    width = max((len(name) for name in card.groups), default=0)
    yield f"{'':<{width}}  passed  failed  not for this device"
    for name, tally in card.groups.items():
        yield f"{name:<{width}}  {tally.passed:>6}  {tally.failed:>6}  {tally.skipped:>6}"
    if card.failures:
        yield from ("", "kinds of failure")
        yield from (f"  {count:>5}  {kind.value}" for kind, count in card.kinds.items())
        yield from ("", "failures")
        for row, failed in card.failures[:MOST_SHOWN]:
            yield f"  {row.name}: {failed.kind.value}: {failed.detail}"
        yield from _left_out(len(card.failures))
        yield from ("", f"one of them again: {repeat_command(card.settings, card.failures[0][0].name)}")
    if card.claimed_in_vain:
        yield from ("", "said to be supported, and not compiled")
        yield from (f"  {name}" for name in card.claimed_in_vain[:MOST_SHOWN])
        yield from _left_out(len(card.claimed_in_vain))


def headline(card: ScoreCard) -> str:
    """One line that says how it went."""
    passed = sum(tally.passed for tally in card.groups.values())
    if card.full_marks:
        verdict = "full marks"
    elif not card.failures:
        verdict = "nothing was tested: the device took none of the cases"
    else:
        verdict = f"{len(card.failures)} failures"
    ran = passed + len(card.failures)
    return f"{card.settings.device}: {verdict}; {passed} of {ran} cases passed in {card.seconds:.0f} s"


def _left_out(count: int) -> Iterator[str]:
    if count > MOST_SHOWN:
        yield f"  ... and {count - MOST_SHOWN} more; the JSON form has them all"
