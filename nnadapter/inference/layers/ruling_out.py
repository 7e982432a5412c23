"""The smallest set of pins found with which the outputs agree."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from nnadapter.accuracy.searching import first_true
from nnadapter.drivers.selection import CPU
from nnadapter.inference.layers.compared import ComparedRun
from nnadapter.inference.layers.findings import RuledOut
from nnadapter.inference.session import InferenceSession
from nnadapter.rules.reading import read_rules
from nnadapter.rules.values import Pin, Rules
from nnadapter.running.deviation import deviation

_MOST_REMOVALS = 64
"""Sets that are tried to leave pins out."""

Group = Sequence[str]
"""Nodes that are pinned together."""


def rule_out(path: Path, compared: ComparedRun, suspects: Sequence[Group]) -> RuledOut:
    """Write a file of rules with the fewest pins to the CPU found that make the outputs agree; the file is tried.

    1. None, where they agree already. Else the fewest of the first of `suspects`: twice as many each time, then
       bisecting between the last two.
    2. Then pins are left out, half of them at once, a quarter, and so on to single ones, as long as outputs agree.

    Args:
        path: the file.
        compared: what was run.
        suspects: groups of nodes to pin, the most likely first; all that run on devices.

    Raises:
        OSError: the file cannot be written.
    """
    trying = _Trying(compared)
    chosen: list[Group] = [] if compared.agrees else without_surplus(_fewest(suspects, trying.agrees), trying.agrees)
    names = tuple(dict.fromkeys(name for group in chosen for name in group))
    path.write_text(_text(names), encoding="utf-8")
    return RuledOut(
        path=str(path), pins=names, agrees=trying.agrees_by(read_rules(path)), compilations=trying.compilations
    )


def without_surplus(pins: list[Group], agrees: Callable[[Sequence[Group]], bool]) -> list[Group]:
    """Leave out what is not needed. Source: A. Zeller, R. Hildebrandt, Simplifying failure-inducing input, 2002."""
    size, budget = len(pins) // 2, _MOST_REMOVALS
    while size and budget > 0:
        start = 0
        while start < len(pins) and budget > 0:
            fewer = pins[:start] + pins[start + size :]
            budget -= 1
            if fewer and agrees(fewer):
                pins = fewer
            else:
                start += size
        size //= 2
    return pins


def _fewest(suspects: Sequence[Group], agrees: Callable[[Sequence[Group]], bool]) -> list[Group]:
    """The first of `suspects`, as many as it takes; all of them where nothing helps."""
    low, high = 0, 1
    while high < len(suspects) and not agrees(suspects[:high]):
        low, high = high, 2 * high
    high = min(high, len(suspects))
    return list(suspects[: first_true(low, high, lambda count: agrees(suspects[:count]))])


class _Trying:
    def __init__(self, compared: ComparedRun) -> None:
        self._compared = compared
        self._rules = Rules() if compared.options.rules is None else read_rules(compared.options.rules)
        self.compilations = 0

    def agrees(self, groups: Sequence[Group]) -> bool:
        """Whether the outputs do with these nodes on the CPU."""
        return self.agrees_by(Rules(pins=tuple(Pin(device=CPU, name=name) for group in groups for name in group)))

    def agrees_by(self, rules: Rules) -> bool:
        """Whether the outputs do with these rules beside the person's own."""
        self.compilations += 1
        compared, user_rules = self._compared, self._rules
        options = replace(
            compared.options, rules=replace(user_rules, pins=(*user_rules.pins, *rules.pins)), fallback="allow"
        )
        with InferenceSession(compared.model, devices=compared.requests, options=options) as session:
            got = session.run(list(compared.expected), compared.feed)
        pairs = zip(compared.expected.items(), got, strict=True)
        allowed = compared.tolerances.of
        return not any(deviation(name, actual, expected, allowed(name)).beyond for (name, expected), actual in pairs)


def _text(names: Sequence[str]) -> str:
    head = "# With these nodes on the CPU the outputs agree; found by `nnadapter compare --layers --rules-out`.\n"
    quoted = (json.dumps(name, ensure_ascii=False) for name in names)
    return head + "".join(f'\n[[pin]]\ndevice = "{CPU}"\nname = {name}\n' for name in quoted)
