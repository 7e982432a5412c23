"""Cost as lines of the text report."""

from __future__ import annotations

from collections.abc import Iterator

from nnadapter.drivers.selection import CPU
from nnadapter.reports.cost_facts import CandidateFacts, CostFacts
from nnadapter.reports.facts import ReportFacts
from nnadapter.reports.rendering.wrapping import wrapped
from nnadapter.reports.units import GUESS, duration, foretold

_INDENT = " " * 11
_FAR = 2.0
"""Times that differ by a larger factor are said to differ."""
_NAMES = 42
"""Characters of the column of names, at least."""


def cost_lines(report: ReportFacts) -> Iterator[str]:
    """What the plan costs, how far that is from the bound, what it rests on, and what else was weighed."""
    cost = report.cost
    if cost is None:
        if report.cost_note:
            yield from wrapped(report.cost_note, "cost       ")
        return
    yield from wrapped(cost_sentence(cost), "cost       ")
    if cost.sources:
        yield from wrapped(f"costs of {sources_words(cost)}", _INDENT)
    if cost.is_measured and cost.prediction_sources:
        yield from wrapped(prediction_words(cost), _INDENT)
    own = cpu_words(report, cost) or _all_cpu_words(cost)
    for words in (guess_words(cost), own, run_words(report), cost.note):
        yield from wrapped(words, _INDENT)
    if cost.candidates:
        yield ""
        width = max(_NAMES, *(len(candidate.name) + 1 for candidate in cost.candidates))
        yield f"{'weighed':<{width}}{'predicted':>12}{'measured':>12}"
        yield from (_candidate(candidate, width, bool(cost.guesses)) for candidate in cost.candidates)


def cost_sentence(cost: CostFacts) -> str:
    """Cost, bound and gap in one sentence."""
    text = f"{duration(cost.seconds)} {cost.word}"
    if cost.bound_seconds is not None:
        kind = f" ({cost.bound_kind})" if cost.bound_kind else ""
        text += f", at least {duration(cost.bound_seconds)} for {cost.bound_of}{kind}"
    return text + (f", gap {cost.gap:.1%}" if cost.gap is not None else "")


def sources_words(cost: CostFacts) -> str:
    """Each device with where its costs come from."""
    return ", ".join(f"{device}: {source}" for device, source in cost.sources.items())


def prediction_words(cost: CostFacts) -> str:
    """What predictions rest on, beside what was measured."""
    told = ", ".join(f"{device}: {source}" for device, source in cost.prediction_sources.items())
    return f"what is called predicted rests on other costs, of {told}"


def guess_words(cost: CostFacts) -> str:
    """What the mark of guesses means; empty where there are none."""
    names = ", ".join(name for name in cost.prediction_sources or cost.sources if name in cost.guesses)
    return f"{GUESS} marks a guess: nobody measured what {names} costs" if names else ""


def run_words(report: ReportFacts, best_seconds: float | None = None) -> str:
    """How far a run was from what had been predicted; empty within a factor of two, or where not known.

    Args:
        report: of the plan, with what its last run took.
        best_seconds: of its steps in the best of several runs, which counts instead: what is predicted is a run that
            nothing disturbs.
    """
    pairs = [(segment.seconds, segment.predicted_seconds) for segment in report.segments]
    known = [(took, said) for took, said in pairs if took is not None and said is not None]
    last, said = (sum(times) for times in zip(*known, strict=True)) if known else (0.0, 0.0)
    which, took = ("last", last) if best_seconds is None else ("best", best_seconds)
    if len(known) < len(pairs) or not took or not said or 1 / _FAR <= took / said <= _FAR:
        return ""
    word = report.cost.predicted_word if report.cost is not None else "predicted"
    run = f"the {which} run took {duration(took)}"
    if took > said:
        return f"{run}, {took / said:.1f} times the {duration(said)} {word}"
    return f"{run}, less than the {duration(said)} {word} by a factor of {said / took:.1f}"


def _all_cpu_words(cost: CostFacts) -> str:
    """What the CPU alone costs, where no table of candidates says so."""
    if cost.all_cpu_seconds is None or cost.candidates:
        return ""
    return f"all on the CPU: {duration(cost.all_cpu_seconds)} {cost.word}"


def cpu_words(report: ReportFacts, cost: CostFacts) -> str:
    """That the CPU alone is better, be it the plan or not; empty where it is not."""
    if len(cost.candidates) > 1 and all(segment.device == CPU for segment in report.segments):
        return "the CPU alone is better than every plan that was weighed"
    return _cpu_sentence(cost)


def _cpu_sentence(cost: CostFacts) -> str:
    """That the CPU alone is better, and by how much; empty where it is not."""
    if cost.against_cpu is None or not cost.cpu_is_better:
        return ""
    own, alone, word = cost.against_cpu
    of_this = "" if word == cost.word else f" than the {duration(own)} that are {word} of this plan"
    return f"the CPU alone is better: {duration(alone)} {word}, {duration(own - alone)} less{of_this}"


def _candidate(candidate: CandidateFacts, width: int, guessed: bool) -> str:
    predicted = "-" if candidate.seconds is None else foretold(candidate.seconds, guessed)
    measured = "-" if candidate.measured_seconds is None else duration(candidate.measured_seconds)
    return f"{candidate.name:<{width}}{predicted:>12}{measured:>12}"
