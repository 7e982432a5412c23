"""Report of what-if: gains of missing device features as facts, text and Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf
from types import MappingProxyType
from typing import Any

from nnadapter.records import dataclass
from nnadapter.report.facts import NOTHING, plain, predicted_word, to_lines
from nnadapter.report.sections import code, count, duration, folded, omitted, table, titled, wrapped

SCHEMA_VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanTotals:
    """Totals over the plans of all models."""

    seconds: float | None
    """Predicted seconds for one run of each model."""
    segments: int
    nodes: float
    """Share of nodes off the CPU, from 0 to 1."""
    flops: float
    """Share of known FLOPs off the CPU; equal to `nodes` if no FLOPs are known."""
    unknown_flops_nodes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureFacts:
    """Feature that the device lacks, and its gain alone."""

    label: str
    reason: str
    op_type: str
    qualifier: str
    missing_in: str
    """`device`, or `converter` if no converter translates the operation."""
    nodes: int
    """Refused nodes that need this feature; some may need other features too."""
    models: int
    segments_saved: int
    seconds_saved: float | None
    """Predicted seconds saved; None if unknown or a plan could not run."""
    resulting_totals: PlanTotals
    example_model: str
    example_node: str
    example_detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RoadStep:
    """Step of the road map: one feature, or several that only help together."""

    labels: tuple[str, ...]
    segments_saved: int
    seconds_saved: float | None
    resulting_totals: PlanTotals


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Model that was analyzed."""

    name: str
    input_shapes: Mapping[str, tuple[int, ...]]
    current_totals: PlanTotals


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedModel:
    """Model that could not be read or placed."""

    name: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfFacts:
    """Ranked features that a device lacks for some models; `WhatIf` renders them."""

    device: str
    devices: tuple[str, ...]
    policy: str
    sources: Mapping[str, str]
    ranked_by: tuple[str, ...]
    current_totals: PlanTotals
    features: tuple[FeatureFacts, ...]
    road_map: tuple[RoadStep, ...]
    """Steps in greedy order. Gains of single features (`features`) do not add up."""
    models: tuple[ModelFacts, ...]
    failed: tuple[FailedModel, ...] = ()
    untried_features: int = 0
    notes: tuple[str, ...] = ()
    all_cpu_seconds: float | None = None
    """Predicted seconds on the CPU alone."""

    @property
    def is_timed(self) -> bool:
        return "assumed" not in self.sources.values()

    @property
    def word(self) -> str:
        return predicted_word(self.sources)

    def to_dict(self) -> dict[str, Any]:
        return {"schema_version": SCHEMA_VERSION, **plain(self)}


def supporting(facts: WhatIfFacts, feature: FeatureFacts) -> str:
    """Describe a feature's gain: `supporting Erf: 13 segments fewer, 61 -> 97 % of FLOPs, ...`."""
    gained = _change(facts.current_totals, feature.resulting_totals)
    parts = (segments(feature.segments_saved), gained, time(facts, feature.seconds_saved))
    return f"supporting {feature.label}: {listed(parts)}"


def saving(facts: WhatIfFacts, step: RoadStep) -> str:
    """Describe a step's savings."""
    return listed((segments(step.segments_saved), time(facts, step.seconds_saved)))


def listed(parts: Iterable[str]) -> str:
    """Join nonempty texts with commas."""
    return ", ".join(filter(None, parts))


def segments(saved: int) -> str:
    """Return `13 segments fewer` or `1 segment more`."""
    return (
        f"{count(abs(saved), 'segment')} {'fewer' if saved > 0 else 'more'}" if saved else "the same number of segments"
    )


def time(facts: WhatIfFacts, saved: float | None) -> str:
    """Return `predicted 3.10 ms faster`; empty if times are unknown."""
    if not facts.is_timed:
        return ""
    if saved is None:
        return "but a value cannot cross to another device"
    if abs(saved) < NOTHING:
        return f"{facts.word} the same time"
    return f"{facts.word} {duration(abs(saved))} {'faster' if saved > 0 else 'slower'}"


def predicted(facts: WhatIfFacts, totals: PlanTotals) -> str:
    """Return `predicted 12.0 ms`; empty if times are unknown."""
    if not facts.is_timed:
        return ""
    if totals.seconds is None:
        return "time not known: a value cannot cross to another device"
    return f"{facts.word} {duration(totals.seconds)}"


def totals_text(facts: WhatIfFacts, totals: PlanTotals) -> str:
    """Return `12 segments, 97.0 % of FLOPs, predicted 12.0 ms`."""
    return listed(
        (count(totals.segments, "segment"), f"{share(totals.flops)} of {flops_name(totals)}", predicted(facts, totals))
    )


def coverage(totals: PlanTotals) -> str:
    """Return `12 segments, 97.0 % of FLOPs and 90.0 % of nodes off the CPU`."""
    shares = f"{share(totals.flops)} of {flops_name(totals)} and {share(totals.nodes)} of nodes"
    return f"{count(totals.segments, 'segment')}, {shares} off the CPU"


def flops_name(totals: PlanTotals) -> str:
    """Return `FLOPs`, or `known FLOPs` if some are unknown."""
    return "known FLOPs" if totals.unknown_flops_nodes else "FLOPs"


def cpu_words(facts: WhatIfFacts) -> str:
    """Report that the CPU alone is better, and the first road map step that beats it."""
    cpu_seconds, current_seconds = facts.all_cpu_seconds, facts.current_totals.seconds
    if cpu_seconds is None or current_seconds is None or current_seconds - cpu_seconds < NOTHING:
        return ""
    text = (
        f"the CPU alone is faster: {facts.word} {duration(cpu_seconds)}, "
        f"{duration(current_seconds - cpu_seconds)} less than the current plans"
    )
    if not facts.road_map:
        return text
    faster_steps = (
        place for place, step in enumerate(facts.road_map, 1) if (step.resulting_totals.seconds or inf) < cpu_seconds
    )
    first = next(faster_steps, None)
    return f"{text}; " + (
        "even the entire road map does not change that"
        if first is None
        else f"from step {first} of the road map on, the devices are faster"
    )


def share(part: float) -> str:
    """Format a share: `61.2 %`."""
    return f"{100 * part:.1f} %"


def _change(baseline: PlanTotals, improved: PlanTotals) -> str:
    if share(baseline.flops) == share(improved.flops) and share(baseline.nodes) != share(improved.nodes):
        return f"{_shares(baseline.nodes, improved.nodes)} of nodes"
    return f"{_shares(baseline.flops, improved.flops)} of {flops_name(improved)}"


def _shares(baseline: float, improved: float) -> str:
    digits = 0 if round(100 * baseline) != round(100 * improved) else 1
    return f"{100 * baseline:.{digits}f} -> {100 * improved:.{digits}f} %"


_SHOWN = 20


def to_text(facts: WhatIfFacts) -> str:
    """Return the report as text."""
    return "\n".join(line for part in (_summary, _features, _road_map, _models, _notes) for line in part(facts))


def _summary(facts: WhatIfFacts) -> Iterator[str]:
    sources = ", ".join(f"{name} {source}" for name, source in facts.sources.items())
    yield (f"what if    {facts.device} supported more, with devices {', '.join(facts.devices)} (policy {facts.policy})")
    yield f"models     {len(facts.models)}" + (f", and {len(facts.failed)} that failed" if facts.failed else "")
    yield f"now        {coverage(facts.current_totals)}"
    times = predicted(facts, facts.current_totals) or "no times, because costs are not known"
    yield from wrapped(f"{times} (costs: {sources})", " " * 11)
    yield from wrapped(cpu_words(facts), " " * 11)


def _features(facts: WhatIfFacts) -> Iterator[str]:
    yield ""
    if not facts.features:
        yield f"{facts.device} lacks nothing for these models"
        return
    yield (f"each feature alone, by {facts.word + ' ' if facts.is_timed else ''}{_ORDERS[facts.ranked_by[0]]}")
    for place, feature in enumerate(facts.features[:_SHOWN], 1):
        yield from wrapped(supporting(facts, feature), f"{place:>3}. ")
        where = f"{count(feature.nodes, 'node')} in {feature.models} of {count(len(facts.models), 'model')}"
        by = ", missing in nnadapter's converters" if feature.missing_in == "converter" else ""
        example = (
            f"{feature.example_node} of {feature.example_model}" if len(facts.models) > 1 else feature.example_node
        )
        yield from wrapped(f"{where}, {feature.reason}{by}; for example {example}: {feature.example_detail}", " " * 7)
    yield from omitted(len(facts.features), _SHOWN, "     ")


def _road_map(facts: WhatIfFacts) -> Iterator[str]:
    if not facts.features:
        return
    yield ""
    yield "road map, each step in addition to the earlier ones"
    for place, step in enumerate(facts.road_map, 1):
        yield from wrapped(
            f"{' and '.join(step.labels)}: {saving(facts, step)}; then {totals_text(facts, step.resulting_totals)}",
            f"{place:>3}. ",
        )
    if not facts.road_map:
        yield "     none: no feature and no pair of features helps"


def _models(facts: WhatIfFacts) -> Iterator[str]:
    if len(facts.models) + len(facts.failed) < 2:
        return
    yield ""
    yield "models"
    for model in facts.models[:_SHOWN]:
        yield from wrapped(f"{model.name}: {totals_text(facts, model.current_totals)}", "  ")
    yield from omitted(len(facts.models), _SHOWN, "  ")
    for failed in facts.failed:
        yield from wrapped(f"{failed.name}: failed: {failed.error}", "  ")


def _notes(facts: WhatIfFacts) -> Iterator[str]:
    return titled("notes", facts.notes)


_ORDERS = {"seconds_saved": "time saved", "flops": "FLOPs, because costs are not known"}


def to_markdown(facts: WhatIfFacts) -> str:
    """Return the report as Markdown."""
    parts = [
        f"### What if {code(facts.device)} supported more",
        f"{count(len(facts.models), 'model')}, policy {facts.policy}: "
        f"{listed((coverage(facts.current_totals), predicted(facts, facts.current_totals)))} "
        f"({', '.join(f'{code(name)} {source}' for name, source in facts.sources.items())})",
    ]
    if cpu_words(facts):
        parts.append(f"**{cpu_words(facts)}**")
    if facts.features:
        parts += ["Each feature alone:", _feature_table(facts), "Road map, each step in addition to the earlier ones:"]
        parts.append(_road_map_table(facts) if facts.road_map else "None of them helps.")
    else:
        parts.append("It lacks nothing for these models.")
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
    columns = [place for place, head in enumerate(heads) if head != "time" or facts.is_timed]
    return table([heads[place] for place in columns], [[row[place] for place in columns] for row in rows], total)


RENDERERS: Mapping[str, Callable[[WhatIfFacts], str]] = MappingProxyType(
    {"text": to_text, "json": lambda facts: to_lines(facts.to_dict()), "md": to_markdown}
)


class WhatIf(WhatIfFacts):
    """Ranked features that a device lacks. See `nnadapter.what_if`."""

    def to_json(self) -> str:
        return RENDERERS["json"](self)

    def to_markdown(self) -> str:
        return RENDERERS["md"](self)

    def __str__(self) -> str:
        return RENDERERS["text"](self)
