"""What operations take in company: lines of chains, scaled so that small networks of mixed operations come out right.

A chain has one operation again and again, with caches full of it and in the layout that suits it. In a network it
stands between others: values change their layout, fusion finds more or less. How much of a line is left there is the
same for all of a kind, as far as that is known: one factor per kind, near 1 unless networks say otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from msgspec.structs import replace as replace_line

from nnadapter.costs.fitting import fit
from nnadapter.costs.launches import Launches
from nnadapter.costs.lines import Lines, seconds_by_kind
from nnadapter.costs.riding import Kind
from nnadapter.costs.roofline import Line
from nnadapter.costs.timing import ProgramTiming

_SLACK = 3.0
"""How far a factor may be from 1, beside how far a network may be off, relatively."""
_MOST = 4.0
"""A factor, at most; and one over it at least."""
_FEWEST = 6
"""Networks that tell something; of fewer ones lines stay as they are."""


@dataclass(frozen=True, slots=True)
class NetworkScaledCosts:
    """Lines and launches as networks have them."""

    lines: Lines
    launches: Launches
    predicted: Mapping[str, float]
    """Seconds of each network, by factors that the others alone gave: how far new ones will be off."""


def scale_to_networks(lines: Lines, launches: Launches, networks: Mapping[str, ProgramTiming]) -> NetworkScaledCosts:
    """Return lines and launches scaled by what networks took, all of which were everything that ran.

    1. Of each network it is known what each kind takes by its line, and what the launch does.
    2. Factors of kinds and of the launch, none negative, give the seconds of networks: least squares of relative
       differences, in which what is far off counts less (`fit`), and a factor costs what it is away from 1.
    3. The same without each network in turn says how far off that one would have been.
    """
    kinds = list(lines)
    rows = {name: _network_row(lines, launches, kinds, timed) for name, timed in networks.items()}
    if len(rows) < _FEWEST:
        return NetworkScaledCosts(lines, launches, {name: sum(row) for name, row in rows.items()})
    factors = _factors(list(rows.values()), [timed.seconds for timed in networks.values()])
    scaled = {kind: _scaled(lines[kind], factor) for kind, factor in zip(kinds, factors, strict=False)}
    predicted = {}
    for name, row in rows.items():
        training_names = [other for other in rows if other != name]
        without = _factors(
            [rows[other] for other in training_names], [networks[other].seconds for other in training_names]
        )
        predicted[name] = _sum(row, without)
    return NetworkScaledCosts(scaled, replace(launches, alone=launches.alone * factors[-1]), predicted)


def _network_row(lines: Lines, launches: Launches, kinds: Sequence[Kind], timed: ProgramTiming) -> list[float]:
    """Seconds of each kind, and of the launch and what crosses."""
    by_kind = seconds_by_kind(lines, timed.model)
    return [*(by_kind.get(kind, 0.0) for kind in kinds), launches.alone + launches.crossing(timed)]


def _factors(rows: Sequence[Sequence[float]], seconds: Sequence[float]) -> list[float]:
    """A factor for each column."""
    ones = [[float(row == column) for column in range(len(rows[0]))] for row in range(len(rows[0]))]
    least = [0.0] * len(rows) + [_SLACK] * len(ones)
    factors = fit([*rows, *ones], [*seconds, *[1.0] * len(ones)], least)
    return [min(max(float(factor), 1 / _MOST), _MOST) for factor in factors]


def _sum(row: Sequence[float], factors: Sequence[float]) -> float:
    return sum(seconds * factor for seconds, factor in zip(row, factors, strict=True))


def _scaled(line: Line, factor: float) -> Line:
    return replace_line(
        line,
        seconds=line.seconds * factor,
        seconds_per_flop=line.seconds_per_flop * factor,
        seconds_per_byte=line.seconds_per_byte * factor,
    )
