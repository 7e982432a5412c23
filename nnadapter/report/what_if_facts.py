"""What-if report: gains of missing device features as facts, text and Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from types import MappingProxyType
from typing import Any

from nnadapter.report.facts import NOTHING, plain, predicted_word, to_lines
from nnadapter.report.sections import code, count, duration, folded, table, wrapped

SCHEMA_VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTotals:
    """What the plans of all models are together."""

    seconds: float | None
    """Predicted, one run of each model; None where a value would have to cross a border that it cannot cross, or where
    costs are not known."""
    segments: int
    nodes: float
    """Share of the nodes that run off the CPU, from 0 to 1."""
    flops: float
    """Share of the known FLOPs off the CPU, from 0 to 1; the share of nodes where none are known."""
    unknown_flops_nodes: int = 0
    """Nodes whose FLOPs are not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureFacts:
    """A feature that the device lacks, and what it alone would be worth."""

    label: str
    """In a few words: `Erf`, `Pow of float64`."""
    reason: str
    """A code of `partition.Reason`."""
    op_type: str
    """Empty where the reason is about whole segments."""
    qualifier: str
    """The data type, rank, attribute or version; empty where the op alone says it."""
    missing_in: str
    """`device`, or `converter` where nnadapter cannot offer it to a device yet."""
    nodes: int
    """That are refused for lack of it, and may lack more."""
    models: int
    """In which there are such nodes."""
    segments_saved: int
    """Negative where there would be more."""
    seconds_saved: float | None
    """Predicted; negative where the plans would be slower, None where they could not run or costs are not known."""
    resulting_totals: PlanTotals
    """With this feature and no other one."""
    example_model: str
    example_node: str
    """The first such node."""
    example_detail: str
    """Its refusal in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoadStep:
    """What to add next: most often one feature, several where only together they are worth something."""

    labels: tuple[str, ...]
    segments_saved: int
    """By this step, those before it taken."""
    seconds_saved: float | None
    """By this step."""
    resulting_totals: PlanTotals
    """With all steps up to this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """One of the models."""

    name: str
    input_shapes: Mapping[str, tuple[int, ...]]
    current_totals: PlanTotals


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedModel:
    """A model that could not be read or placed."""

    name: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfFacts:
    """What a device lacks for some models, ranked; `WhatIf` adds the renderings."""

    device: str
    """The one that would learn."""
    devices: tuple[str, ...]
    """Of the plans, in order of preference."""
    policy: str
    sources: Mapping[str, str]
    """Device -> where its costs come from."""
    ranked_by: tuple[str, ...]
    """Fields by which features are ranked, the first one first."""
    current_totals: PlanTotals
    features: tuple[FeatureFacts, ...]
    """Each by itself, best first."""
    road_map: tuple[RoadStep, ...]
    """The best first, then the best given that one, and so on: features combine, so sums of `features` mislead."""
    models: tuple[ModelFacts, ...]
    failed: tuple[FailedModel, ...] = ()
    untried_features: int = 0
    """Features that were not tried: the least frequent ones, where there are very many."""
    notes: tuple[str, ...] = ()
    """What a person should know of the numbers, a sentence each."""
    all_cpu_seconds: float | None = None
    """Predicted, one run of each model with everything on the CPU; None where it refuses something, or costs are not
    known."""

    @property
    def is_timed(self) -> bool:
        """Whether times are told: somebody knows what every device costs."""
        return "assumed" not in self.sources.values()

    @property
    def word(self) -> str:
        """What times are: `predicted`, or `guessed` where the costs of a device are those that it declares."""
        return predicted_word(self.sources)

    def to_dict(self) -> dict[str, Any]:
        """As plain data: `schema_version` and the fields."""
        return {"schema_version": SCHEMA_VERSION, **plain(self)}


def supporting(facts: WhatIfFacts, feature: FeatureFacts) -> str:
    """What one feature would be worth: `supporting Erf: 13 segments fewer, 61 -> 97 % of FLOPs, ...`."""
    gained = _change(facts.current_totals, feature.resulting_totals)
    parts = (segments(feature.segments_saved), gained, time(facts, feature.seconds_saved))
    return f"supporting {feature.label}: {listed(parts)}"


def saving(facts: WhatIfFacts, step: RoadStep) -> str:
    """What one step saves."""
    return listed((segments(step.segments_saved), time(facts, step.seconds_saved)))


def listed(parts: Iterable[str]) -> str:
    """What there is to tell, with commas."""
    return ", ".join(filter(None, parts))


def segments(saved: int) -> str:
    """`13 segments fewer`, `1 segment more`."""
    return f"{count(abs(saved), 'segment')} {'fewer' if saved > 0 else 'more'}" if saved else "as many segments"


def time(facts: WhatIfFacts, saved: float | None) -> str:
    """`predicted 3.10 ms faster`, or `guessed`; empty where no times are known."""
    if not facts.is_timed:
        return ""
    if saved is None:
        return "and a value would cross that cannot"
    if abs(saved) < NOTHING:
        return f"{facts.word} as fast"
    return f"{facts.word} {duration(abs(saved))} {'faster' if saved > 0 else 'slower'}"


def predicted(facts: WhatIfFacts, standing: PlanTotals) -> str:
    """`predicted 12.0 ms`, or `guessed`; empty where no times are known."""
    if not facts.is_timed:
        return ""
    if standing.seconds is None:
        return "time not known: a value cannot cross"
    return f"{facts.word} {duration(standing.seconds)}"


def totals_text(facts: WhatIfFacts, then: PlanTotals) -> str:
    """`12 segments, 97.0 % of FLOPs, predicted 12.0 ms`."""
    return listed(
        (count(then.segments, "segment"), f"{share(then.flops)} of {flops_name(then)}", predicted(facts, then))
    )


def coverage(totals: PlanTotals) -> str:
    """`12 segments, 97.0 % of FLOPs and 90.0 % of nodes off the CPU`."""
    shares = f"{share(totals.flops)} of {flops_name(totals)} and {share(totals.nodes)} of nodes"
    return f"{count(totals.segments, 'segment')}, {shares} off the CPU"


def flops_name(of: PlanTotals) -> str:
    """What FLOPs are shared out: all, or those that are known."""
    return "known FLOPs" if of.unknown_flops_nodes else "FLOPs"


def cpu_words(facts: WhatIfFacts) -> str:
    """Where the CPU alone is better: than what is now, and from which step of the road map on it is not any more.

    Empty where it is not better, or where no times are known.
    """
    cpu_seconds, current_seconds = facts.all_cpu_seconds, facts.current_totals.seconds
    if cpu_seconds is None or current_seconds is None or current_seconds - cpu_seconds < NOTHING:
        return ""
    text = (
        f"the CPU alone is better: {facts.word} {duration(cpu_seconds)}, {duration(current_seconds - cpu_seconds)} less"
    )
    if not facts.road_map:
        return text
    faster_steps = (
        place for place, step in enumerate(facts.road_map, 1) if (step.resulting_totals.seconds or inf) < cpu_seconds
    )
    first = next(faster_steps, None)
    return f"{text}; " + (
        "so it is after every step of the road map"
        if first is None
        else f"step {first} of the road map is the first below"
    )


def share(part: float) -> str:
    """`61.2 %`."""
    return f"{100 * part:.1f} %"


def _change(baseline: PlanTotals, improved: PlanTotals) -> str:
    """Coverage, of nodes where that of FLOPs is about the same, with digits only where they tell something."""
    if share(baseline.flops) == share(improved.flops) and share(baseline.nodes) != share(improved.nodes):
        return f"{_shares(baseline.nodes, improved.nodes)} of nodes"
    return f"{_shares(baseline.flops, improved.flops)} of {flops_name(improved)}"


def _shares(baseline: float, improved: float) -> str:
    digits = 0 if round(100 * baseline) != round(100 * improved) else 1
    return f"{100 * baseline:.{digits}f} -> {100 * improved:.{digits}f} %"


_SHOWN = 20


def to_text(facts: WhatIfFacts) -> str:
    """Return what-if as lines of text.

    1. Where things stand: models, segments, coverage, predicted time and where costs come from.
    2. The features, each by itself, best first, with why nodes are refused without it.
    3. The road map: what to add one after the other.
    4. The models, where there are several, and those that failed.
    5. Notes.
    """
    return "\n".join(line for part in (_summary, _features, _road_map, _models, _notes) for line in part(facts))


def _summary(facts: WhatIfFacts) -> Iterator[str]:
    sources = ", ".join(f"{name} {source}" for name, source in facts.sources.items())
    yield f"what if    {facts.device} took more, of {', '.join(facts.devices)} (policy {facts.policy})"
    yield f"models     {len(facts.models)}" + (f", and {len(facts.failed)} that failed" if facts.failed else "")
    yield f"now        {coverage(facts.current_totals)}"
    times = predicted(facts, facts.current_totals) or "no times, as costs are not known"
    yield from wrapped(f"{times}; costs: {sources}", " " * 11)
    yield from wrapped(cpu_words(facts), " " * 11)


def _features(facts: WhatIfFacts) -> Iterator[str]:
    yield ""
    if not facts.features:
        yield f"{facts.device} lacks nothing that these models need"
        return
    yield f"each feature by itself, by {facts.word + ' ' if facts.is_timed else ''}{_ORDERS[facts.ranked_by[0]]}"
    for place, feature in enumerate(facts.features[:_SHOWN], 1):
        yield from wrapped(supporting(facts, feature), f"{place:>3}. ")
        where = f"{count(feature.nodes, 'node')} in {feature.models} of {count(len(facts.models), 'model')}"
        by = ", no converter offers it" if feature.missing_in == "converter" else ""
        example = (
            f"{feature.example_node} of {feature.example_model}" if len(facts.models) > 1 else feature.example_node
        )
        yield from wrapped(f"{where}, {feature.reason}{by}; as {example}: {feature.example_detail}", " " * 7)
    if len(facts.features) > _SHOWN:
        yield f"     ... and {len(facts.features) - _SHOWN} more; the JSON form has them all"


def _road_map(facts: WhatIfFacts) -> Iterator[str]:
    if not facts.features:
        return
    yield ""
    yield "road map, each step on top of those before it"
    for place, step in enumerate(facts.road_map, 1):
        yield from wrapped(
            f"{' and '.join(step.labels)}: {saving(facts, step)}; then {totals_text(facts, step.resulting_totals)}",
            f"{place:>3}. ",
        )
    if not facts.road_map:
        yield "     none: no feature, and no two together, are worth anything"


def _models(facts: WhatIfFacts) -> Iterator[str]:
    if len(facts.models) + len(facts.failed) < 2:
        return
    yield ""
    yield "models"
    for model in facts.models[:_SHOWN]:
        yield from wrapped(f"{model.name}: {totals_text(facts, model.current_totals)}", "  ")
    if len(facts.models) > _SHOWN:
        yield f"  ... and {len(facts.models) - _SHOWN} more; the JSON form has them all"
    for failed in facts.failed:
        yield from wrapped(f"{failed.name}: failed: {failed.error}", "  ")


def _notes(facts: WhatIfFacts) -> Iterator[str]:
    yield ""
    yield "notes"
    for note in facts.notes:
        yield from wrapped(note, "  ")


_ORDERS = {"seconds_saved": "time saved", "flops": "FLOPs, as costs are not known"}


def to_markdown(facts: WhatIfFacts) -> str:
    """Return what-if as GitHub-flavored Markdown: where things stand, the features, the road map, models and notes."""
    parts = [
        f"### What if {code(facts.device)} took more",
        f"{count(len(facts.models), 'model')}, policy {facts.policy}: "
        f"{listed((coverage(facts.current_totals), predicted(facts, facts.current_totals)))} "
        f"({', '.join(f'{code(name)} {source}' for name, source in facts.sources.items())})",
    ]
    if cpu_words(facts):
        parts.append(f"**{cpu_words(facts)}**")
    if facts.features:
        parts += ["Each feature by itself:", _feature_table(facts), "Road map, each step on top of those before it:"]
        parts.append(_road_map_table(facts) if facts.road_map else "None is worth anything.")
    else:
        parts.append("It lacks nothing that these models need.")
    parts.append(folded("Models", _model_table(facts)))
    parts.append("\n".join(f"- {note}" for note in facts.notes))
    return "\n\n".join(parts) + "\n"


def _feature_table(facts: WhatIfFacts) -> str:
    rows = [
        [
            str(place),
            code(feature.label),
            segments(feature.segments_saved),
            share(feature.resulting_totals.flops),
            time(facts, feature.seconds_saved),
            f"{feature.nodes} in {count(feature.models, 'model')}",
            feature.reason if feature.missing_in == "device" else f"{feature.reason} ({feature.missing_in})",
            code(feature.example_detail),
        ]
        for place, feature in enumerate(facts.features[:_SHOWN], 1)
    ]
    heads = (
        "",
        "supporting",
        "segments",
        f"{flops_name(facts.current_totals)} then",
        "time",
        "nodes",
        "reason",
        "for example",
    )
    return _table(facts, heads, rows, len(facts.features))


def _road_map_table(facts: WhatIfFacts) -> str:
    rows = [
        [
            str(place),
            " and ".join(code(label) for label in step.labels),
            segments(step.segments_saved),
            time(facts, step.seconds_saved),
            totals_text(facts, step.resulting_totals),
        ]
        for place, step in enumerate(facts.road_map, 1)
    ]
    return _table(facts, ("", "add", "segments", "time", "then"), rows)


def _model_table(facts: WhatIfFacts) -> str:
    rows = [
        [
            code(model.name),
            str(model.current_totals.segments),
            share(model.current_totals.flops),
            predicted(facts, model.current_totals),
        ]
        for model in facts.models
    ]
    rows += [[code(failed.name), "", "", f"failed: {code(failed.error)}"] for failed in facts.failed]
    return table(("model", "segments", f"{flops_name(facts.current_totals)} off the CPU", "time"), rows)


def _table(facts: WhatIfFacts, heads: Sequence[str], rows: Sequence[Sequence[str]], total: int | None = None) -> str:
    """A table; without its column of times where none are known."""
    columns = [place for place, head in enumerate(heads) if head != "time" or facts.is_timed]
    return table([heads[place] for place in columns], [[row[place] for place in columns] for row in rows], total)


RENDERERS: Mapping[str, Callable[[WhatIfFacts], str]] = MappingProxyType(
    {"text": to_text, "json": lambda facts: to_lines(facts.to_dict()), "md": to_markdown}
)
"""By format, see `nnadapter.report.report`."""


class WhatIf(WhatIfFacts):
    """What a device lacks for some models, ranked. See `nnadapter.what_if`."""

    def to_json(self) -> str:
        """As JSON text, a feature on each line."""
        return RENDERERS["json"](self)

    def to_markdown(self) -> str:
        """As Markdown."""
        return RENDERERS["md"](self)

    def __str__(self) -> str:
        """As text for a terminal."""
        return RENDERERS["text"](self)
