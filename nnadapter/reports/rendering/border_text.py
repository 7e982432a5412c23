"""The borders of a plan in words, for every rendering that is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from nnadapter.planning.border_steps import BorderStep
from nnadapter.reports.facts import ReportFacts
from nnadapter.reports.units import count, duration, quantity

_SHOWN = 8
_KINDS = {
    "transfer": ("transfer", "transfers"),
    "cast": ("cast", "casts"),
    "layout": ("change of layout", "changes of layout"),
}


def border_words(report: ReportFacts) -> list[str]:
    """Return what happens to values between segments, what stays, and what the last run copied; empty if nothing does.

    1. How many steps of each kind with bytes and predicted time, and the largest transfers.
    2. What stays on its device.
    3. The copies of the last run.
    """
    return [*_planned(report), *_staying(report), *_ran(report)]


def _planned(report: ReportFacts) -> Iterator[str]:
    steps = report.borders.steps
    if not steps:
        return
    kinds = Counter(step.kind for step in steps)
    held = {kind: sum(step.nbytes or 0 for step in steps if step.kind == kind) for kind in kinds}
    parts = [f"{count(number, *_KINDS[kind])} of {quantity(held[kind], 'B')}" for kind, number in kinds.items()]
    seconds = [step.seconds for step in steps if step.seconds is not None]
    priced = f", predicted {duration(sum(seconds))}" if len(seconds) == len(steps) else ""
    yield f"{', '.join(parts)}{priced}"
    largest = sorted((step for step in steps if step.kind == "transfer"), key=lambda step: -(step.nbytes or 0))[:_SHOWN]
    more = f" and {kinds['transfer'] - _SHOWN} more" if kinds["transfer"] > _SHOWN else ""
    yield f"transferred: {', '.join(map(_transfer, largest))}{more}"


def _transfer(step: BorderStep) -> str:
    size = "size not known" if step.nbytes is None else quantity(step.nbytes, "B")
    return f"{step.value} to {step.target.target}:{step.target.device_id} ({size})"


def _staying(report: ReportFacts) -> Iterator[str]:
    stay = report.borders.stay
    if stay:
        shown = ", ".join(f"{each.value} on {each.device}" for each in stay[:_SHOWN])
        more = f" and {len(stay) - _SHOWN} more" if len(stay) > _SHOWN else ""
        held = quantity(sum(each.nbytes or 0 for each in stay), "B")
        yield f"{count(len(stay), 'value stays', 'values stay')} ({held}): {shown}{more}"


def _ran(report: ReportFacts) -> Iterator[str]:
    ran = report.transfers
    if ran is not None:
        yield (
            f"the last run copied {count(ran.into, 'tensor')} to devices ({quantity(ran.bytes_into, 'B')}) and "
            f"{ran.out} from them ({quantity(ran.bytes_out, 'B')}) in {duration(ran.seconds)}; "
            f"{ran.returned} went back to where they were made"
        )
