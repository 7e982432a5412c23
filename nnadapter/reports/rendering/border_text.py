"""The borders of a plan in words, for every rendering that is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from nnadapter.planning.border_steps import BoundaryOperation
from nnadapter.reports.facts import ReportFacts
from nnadapter.reports.units import count, duration, quantity

_SHOWN_STEPS = 8
_KINDS = {
    "transfer": ("transfer", "transfers"),
    "cast": ("cast", "casts"),
    "layout": ("change of layout", "changes of layout"),
}


def boundary_sentences(report: ReportFacts) -> list[str]:
    """Return what happens to values between segments, what stays, and what the last run copied; empty if nothing does.

    1. How many steps of each kind with bytes and predicted time, and the largest transfers.
    2. What stays on its device.
    3. What is under way at once, and where the host waits for it.
    4. The copies of the last run.
    """
    return [*_planned(report), *_staying(report), *_waiting(report), *_ran(report)]


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
    largest = sorted((step for step in steps if step.kind == "transfer"), key=lambda step: -(step.nbytes or 0))[
        :_SHOWN_STEPS
    ]
    more = f" and {kinds['transfer'] - _SHOWN_STEPS} more" if kinds["transfer"] > _SHOWN_STEPS else ""
    yield f"transferred: {', '.join(map(_transfer, largest))}{more}"


def _transfer(step: BoundaryOperation) -> str:
    size = "size not known" if step.nbytes is None else quantity(step.nbytes, "B")
    return f"{step.value} to {step.target.target}:{step.target.device_id} ({size})"


def _staying(report: ReportFacts) -> Iterator[str]:
    stay = report.borders.stay
    if stay:
        shown = ", ".join(
            f"{resident_value.value} on {resident_value.device}" for resident_value in stay[:_SHOWN_STEPS]
        )
        more = f" and {len(stay) - _SHOWN_STEPS} more" if len(stay) > _SHOWN_STEPS else ""
        held = quantity(sum(resident_value.nbytes or 0 for resident_value in stay), "B")
        yield f"{count(len(stay), 'value stays', 'values stay')} ({held}): {shown}{more}"


def _waiting(report: ReportFacts) -> Iterator[str]:
    borders = report.borders
    for segments, how in (
        (borders.enqueued, "enqueued one behind the other"),
        (borders.alongside, "run beside others"),
    ):
        if segments:
            yield f"{count(len(segments), 'segment is', 'segments are')} {how}: {_numbers(segments)}"
    if borders.waits:
        shown = ", ".join(
            f"for {wait.segment} {'at the end' if wait.before is None else f'before {wait.before}'}"
            for wait in borders.waits[:_SHOWN_STEPS]
        )
        more = f" and {len(borders.waits) - _SHOWN_STEPS} more" if len(borders.waits) > _SHOWN_STEPS else ""
        yield f"a run waits {count(len(borders.waits), 'time', 'times')} for them: {shown}{more}"


def _numbers(segments: Sequence[int]) -> str:
    more = f" and {len(segments) - _SHOWN_STEPS} more" if len(segments) > _SHOWN_STEPS else ""
    return ", ".join(map(str, segments[:_SHOWN_STEPS])) + more


def _ran(report: ReportFacts) -> Iterator[str]:
    ran = report.transfers
    if ran is not None:
        yield (
            f"the last run copied {count(ran.into, 'tensor')} to devices ({quantity(ran.bytes_into, 'B')}) and "
            f"{ran.out} from them ({quantity(ran.bytes_out, 'B')}) in {duration(ran.seconds)}; "
            f"{ran.returned} went back to where they were made"
        )
