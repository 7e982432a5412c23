"""What-if as text, for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from nnadapter.reports.rendering.wrapping import wrapped
from nnadapter.reports.units import count
from nnadapter.whatif.facts import WhatIfFacts
from nnadapter.whatif.words import coverage, cpu_words, predicted, saving, standing, supporting

_SHOWN = 20


def to_text(found: WhatIfFacts) -> str:
    """Return what-if as lines of text.

    1. Where things stand: models, segments, coverage, predicted time and where costs come from.
    2. The features, each by itself, best first, with why nodes are refused without it.
    3. The road map: what to add one after the other.
    4. The models, where there are several, and those that failed.
    5. Notes.
    """
    return "\n".join(line for part in (_summary, _features, _road_map, _models, _notes) for line in part(found))


def _summary(found: WhatIfFacts) -> Iterator[str]:
    sources = ", ".join(f"{name} {source}" for name, source in found.sources.items())
    yield f"what if    {found.device} took more, of {', '.join(found.devices)} (policy {found.policy})"
    yield f"models     {len(found.models)}" + (f", and {len(found.failed)} that failed" if found.failed else "")
    yield f"now        {coverage(found.now)}"
    times = predicted(found, found.now) or "no times, as costs are not known"
    yield from wrapped(f"{times}; costs: {sources}", " " * 11)
    yield from wrapped(cpu_words(found), " " * 11)


def _features(found: WhatIfFacts) -> Iterator[str]:
    yield ""
    if not found.features:
        yield f"{found.device} lacks nothing that these models need"
        return
    yield f"each feature by itself, by {found.word + ' ' if found.is_timed else ''}{_ORDERS[found.ranked_by[0]]}"
    for place, each in enumerate(found.features[:_SHOWN], 1):
        yield from wrapped(supporting(found, each), f"{place:>3}. ")
        where = f"{count(each.nodes, 'node')} in {each.models} of {count(len(found.models), 'model')}"
        by = ", no converter offers it" if each.where == "converter" else ""
        example = f"{each.example_node} of {each.example_model}" if len(found.models) > 1 else each.example_node
        yield from wrapped(f"{where}, {each.reason}{by}; as {example}: {each.example_detail}", " " * 7)
    if len(found.features) > _SHOWN:
        yield f"     ... and {len(found.features) - _SHOWN} more; the JSON form has them all"


def _road_map(found: WhatIfFacts) -> Iterator[str]:
    if not found.features:
        return
    yield ""
    yield "road map, each step on top of those before it"
    for place, step in enumerate(found.road_map, 1):
        yield from wrapped(
            f"{' and '.join(step.labels)}: {saving(found, step)}; then {standing(found, step.then)}", f"{place:>3}. "
        )
    if not found.road_map:
        yield "     none: no feature, and no two together, are worth anything"


def _models(found: WhatIfFacts) -> Iterator[str]:
    if len(found.models) + len(found.failed) < 2:
        return
    yield ""
    yield "models"
    for each in found.models[:_SHOWN]:
        yield from wrapped(f"{each.name}: {standing(found, each.now)}", "  ")
    if len(found.models) > _SHOWN:
        yield f"  ... and {len(found.models) - _SHOWN} more; the JSON form has them all"
    for failed in found.failed:
        yield from wrapped(f"{failed.name}: failed: {failed.error}", "  ")


def _notes(found: WhatIfFacts) -> Iterator[str]:
    yield ""
    yield "notes"
    for note in found.notes:
        yield from wrapped(note, "  ")


_ORDERS = {"seconds_saved": "time saved", "flops": "FLOPs, as costs are not known"}
