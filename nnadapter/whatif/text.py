"""What-if as text, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from nnadapter.reports.rendering.wrapping import wrapped
from nnadapter.reports.units import count
from nnadapter.whatif.facts import WhatIfFacts
from nnadapter.whatif.words import coverage, cpu_words, predicted, saving, standing, supporting

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
    yield f"now        {coverage(facts.now)}"
    times = predicted(facts, facts.now) or "no times, as costs are not known"
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
        by = ", no converter offers it" if feature.where == "converter" else ""
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
            f"{' and '.join(step.labels)}: {saving(facts, step)}; then {standing(facts, step.then)}", f"{place:>3}. "
        )
    if not facts.road_map:
        yield "     none: no feature, and no two together, are worth anything"


def _models(facts: WhatIfFacts) -> Iterator[str]:
    if len(facts.models) + len(facts.failed) < 2:
        return
    yield ""
    yield "models"
    for model in facts.models[:_SHOWN]:
        yield from wrapped(f"{model.name}: {standing(facts, model.now)}", "  ")
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
