"""Limits: which segments are not worth what a person asks of a segment.

Pure functions over candidates. The caller gives up what is returned, places and cuts again, and asks again, until
nothing is returned. Every round gives up at least one segment of one device, so this ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from nnadapter.errors import RulesError
from nnadapter.rules.applying import RuleEffect
from nnadapter.rules.values import Limits, Rules
from partition.segments import Segment
from partition.verdict import Reason, Unsupported, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentCandidate:
    """A segment, and what it is worth."""

    segment: Segment
    accelerated: bool
    """Its device accelerates; it is not the host's."""
    nodes: int
    """How many nodes it holds."""
    flops: float | None = None
    """Floating-point operations; None if not known."""
    benefit: float | None = None
    """Seconds that are saved by having it on its device; None if costs are not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenUp:
    """What one round gives up."""

    segments: Mapping[int, Unsupported]
    """Position of the candidate -> why its device does not get it; empty where every limit is kept."""
    effects: tuple[RuleEffect, ...]
    """What each limit did in this round."""


Verdicts = Mapping[str, Sequence[Verdict]]


def segments_to_drop(rules: Rules, candidates: Sequence[SegmentCandidate], verdicts: Verdicts) -> GivenUp:
    """Return the segments that the limits have given up in this round.

    1. `whole_graph`: unless one segment holds everything, segments of devices that refuse some atom go, then those
       of all devices but the first that takes everything.
    2. `min_nodes`, `min_flops`, `min_benefit_ms`: segments below go. One whose FLOPs are not known stays.
    3. `max_segments`: of those that are too many, the half of the smallest benefit goes; the graph is cut again
       before more does, since what is left may fall together. Without costs FLOPs decide, which the effect says.
    4. A segment with an atom that no other device takes, because it is pinned or refused everywhere else, stays
       where a minimum would have it go; the effects of the last round say so.

    Args:
        rules: what a person says.
        candidates: all segments, those of the CPU included.
        verdicts: per device its verdict on every atom, after rules and earlier rounds.

    Raises:
        RulesError: `min_benefit_ms` is given and costs are not known, or `whole_graph` or `max_segments` cannot be
            kept because of segments that must stay.
    """
    limiter = _Limiter(rules, candidates, verdicts)
    for step in (limiter.whole_graph, limiter.minima, limiter.at_most):
        outcome = step()
        if outcome.segments:
            return outcome
    return GivenUp(segments={}, effects=tuple(limiter.staying()))


_NOTHING = GivenUp(segments={}, effects=())


@dataclass(frozen=True, slots=True)
class _Limiter:
    rules: Rules
    candidates: Sequence[SegmentCandidate]
    verdicts: Verdicts

    @property
    def limits(self) -> Limits:
        """The limits."""
        return self.rules.limits

    @property
    def away(self) -> list[int]:
        """Positions of the segments that are not the CPU's."""
        return [at for at, candidate in enumerate(self.candidates) if candidate.accelerated]

    def whole_graph(self) -> GivenUp:
        """See `segments_to_drop`, 1."""
        away = self.away
        if not self.limits.whole_graph or not away or len(self.candidates) == 1:
            return _NOTHING
        devices = dict.fromkeys(self.candidates[at].segment.device for at in away)
        capable_devices = [device for device in devices if all(self.verdicts[device])]
        chosen_device = capable_devices[0] if capable_devices and len(devices) > 1 else None
        drop = [at for at in away if self.candidates[at].segment.device != chosen_device]
        self._refuse_stuck("whole_graph", drop)
        return self._given_up("whole_graph", "whole_graph = true", drop, "asks for one segment of one device or none")

    def minima(self) -> GivenUp:
        """See `segments_to_drop`, 2."""
        segments: dict[int, Unsupported] = {}
        effects: list[RuleEffect] = []
        for name, rule, below in self._below():
            drop = [at for at in below if at not in segments and self._stuck(at) is None]
            if drop:
                outcome = self._given_up(name, rule, drop, "is not reached")
                segments.update(outcome.segments)
                effects.extend(outcome.effects)
        return GivenUp(segments=segments, effects=tuple(effects))

    def staying(self) -> Iterator[RuleEffect]:
        """See `segments_to_drop`, 4."""
        for name, rule, below in self._below():
            if below:
                note = f"{_counted(len(below))} below it, no other device taking all of it"
                yield RuleEffect(rule=rule, source=self.rules.limit_place(name), nodes=0, note=note)

    def at_most(self) -> GivenUp:
        """See `segments_to_drop`, 3."""
        most, away = self.limits.max_segments, self.away
        if most is None or len(away) <= most:
            return _NOTHING
        free = [at for at in away if self._stuck(at) is None]
        excess = len(away) - most
        if len(free) < excess:
            self._refuse_stuck("max_segments", away)
        costs_known = all(self.candidates[at].benefit is not None for at in away)
        score = _benefit if costs_known else _flops
        free.sort(key=lambda at: (score(self.candidates[at]) or 0, self.candidates[at].nodes, -at))
        by = "by benefit" if costs_known else "by FLOPs, since costs are not known"
        return self._given_up("max_segments", f"max_segments = {most}", free[: (excess + 1) // 2], f"is exceeded; {by}")

    def _below(self) -> Iterator[tuple[str, str, list[int]]]:
        """Each minimum that is given: its name, the rule in words, and the segments that do not reach it."""
        for name, measure, units in _MINIMA:
            least = getattr(self.limits, name)
            if least is not None:
                below = [at for at in self.away if self._is_below(name, measure(self.candidates[at]), least / units)]
                yield name, f"{name} = {least:g}", below

    def _is_below(self, name: str, value: float | None, least: float) -> bool:
        if value is None and name == "min_benefit_ms":
            devices = dict.fromkeys(
                candidate.segment.device
                for candidate in self.candidates
                if candidate.benefit is None and candidate.accelerated
            )
            raise RulesError(
                f"{self.rules.limit_place(name)} needs costs, and those of {', '.join(map(repr, devices))} are not "
                f"known; run `nnadapter calibrate {next(iter(devices))}`, or leave the limit out",
                file=self.rules.source,
                entry="limits",
                key=name,
            )
        return value is not None and value < least

    def _stuck(self, position: int) -> tuple[int, str] | None:
        """An atom that no other device takes, and what the others say; None where every atom has another."""
        segment = self.candidates[position].segment
        other_verdicts = [
            device_verdicts for device, device_verdicts in self.verdicts.items() if device != segment.device
        ]
        for atom in segment.atoms:
            if not any(device_verdicts[atom] for device_verdicts in other_verdicts):
                return atom, "; ".join(dict.fromkeys(str(device_verdicts[atom]) for device_verdicts in other_verdicts))
        return None

    def _refuse_stuck(self, name: str, positions: Sequence[int]) -> None:
        """Raise where one of these segments must stay."""
        for position in positions:
            stuck = self._stuck(position)
            if stuck is not None:
                device = self.candidates[position].segment.device
                raise RulesError(
                    f"{self.rules.limit_place(name)} cannot be kept: a segment on {device!r} has to stay there, as "
                    f"other devices refuse a part of it ({stuck[1]}); change the limit or what keeps it there",
                    file=self.rules.source,
                    entry="limits",
                    key=name,
                )

    def _given_up(self, name: str, rule: str, drop: Sequence[int], reason: str) -> GivenUp:
        place = self.rules.limit_place(name)
        effect = RuleEffect(
            rule=rule,
            source=place,
            nodes=sum(self.candidates[at].nodes for at in drop),
            note=f"{_counted(len(drop))} given up: the limit {reason}",
        )
        refusal = Unsupported(Reason.RULE, f"{place}: {rule} {reason}")
        return GivenUp(segments=dict.fromkeys(drop, refusal), effects=(effect,))


def _counted(segments: int) -> str:
    return "1 segment" if segments == 1 else f"{segments} segments"


def _benefit(candidate: SegmentCandidate) -> float | None:
    return candidate.benefit


def _flops(candidate: SegmentCandidate) -> float | None:
    return candidate.flops


_MINIMA: tuple[tuple[str, Callable[[SegmentCandidate], float | None], float], ...] = (
    ("min_nodes", lambda candidate: candidate.nodes, 1),
    ("min_flops", _flops, 1),
    ("min_benefit_ms", _benefit, 1e3),
)
"""Limit, what it limits, and how many of its units one of those is."""
