"""What-if as Markdown: two tables, details folded."""

from __future__ import annotations

from collections.abc import Sequence

from nnadapter.reports.rendering.markdown_cells import code, folded, table
from nnadapter.reports.units import count
from nnadapter.whatif.facts import WhatIfFacts
from nnadapter.whatif.text import _SHOWN
from nnadapter.whatif.words import coverage, cpu_words, flops_name, listed, predicted, segments, share, standing, time


def to_markdown(facts: WhatIfFacts) -> str:
    """Return what-if as GitHub-flavored Markdown: where things stand, the features, the road map, models and notes."""
    parts = [
        f"### What if {code(facts.device)} took more",
        f"{count(len(facts.models), 'model')}, policy {facts.policy}: "
        f"{listed((coverage(facts.now), predicted(facts, facts.now)))} "
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
            share(feature.then.flops),
            time(facts, feature.seconds_saved),
            f"{feature.nodes} in {count(feature.models, 'model')}",
            feature.reason if feature.where == "device" else f"{feature.reason} ({feature.where})",
            code(feature.example_detail),
        ]
        for place, feature in enumerate(facts.features[:_SHOWN], 1)
    ]
    heads = ("", "supporting", "segments", f"{flops_name(facts.now)} then", "time", "nodes", "reason", "for example")
    return _table(facts, heads, rows, len(facts.features))


def _road_map_table(facts: WhatIfFacts) -> str:
    rows = [
        [
            str(place),
            " and ".join(code(label) for label in step.labels),
            segments(step.segments_saved),
            time(facts, step.seconds_saved),
            standing(facts, step.then),
        ]
        for place, step in enumerate(facts.road_map, 1)
    ]
    return _table(facts, ("", "add", "segments", "time", "then"), rows)


def _model_table(facts: WhatIfFacts) -> str:
    rows = [
        [code(model.name), str(model.now.segments), share(model.now.flops), predicted(facts, model.now)]
        for model in facts.models
    ]
    rows += [[code(failed.name), "", "", f"failed: {code(failed.error)}"] for failed in facts.failed]
    return table(("model", "segments", f"{flops_name(facts.now)} off the CPU", "time"), rows)


def _table(facts: WhatIfFacts, heads: Sequence[str], rows: Sequence[Sequence[str]], total: int | None = None) -> str:
    """A table; without its column of times where none are known."""
    columns = [place for place, head in enumerate(heads) if head != "time" or facts.is_timed]
    return table([heads[place] for place in columns], [[row[place] for place in columns] for row in rows], total)
