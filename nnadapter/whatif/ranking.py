"""Which features are worth how much, each by itself and one after the other, over some models."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, islice
from math import inf, isfinite

from nnadapter.whatif.features import Feature
from nnadapter.whatif.situation import PlanOutcome, Situation

MOST_FEATURES = 50
"""Tried at most, the most frequent ones."""
_MOST_STEPS = 8
"""Of a road map."""
_PAIRED = 8
"""Of so many features pairs are tried, where none by itself is worth anything."""
_TOGETHER = 8
"""Features that a region may need to count as one step."""
_NOISE = 1e-12
"""Seconds below which a difference is rounding."""

Features = frozenset[Feature]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """What features save."""

    seconds: float
    """Minus infinity where a plan could not run."""
    segments: int
    flops: int
    """That move off the CPU."""
    features: int = 1
    """How many have to be added for it."""


Order = Callable[[Gain], tuple[float, ...]]
"""What makes a gain larger than another one; zeros, or less, are worth nothing."""


def by_time(gain: Gain) -> tuple[float, ...]:
    """What counts where costs are known, first things first."""
    return _rounded(gain.seconds), gain.segments, gain.flops


def by_flops(total_flops: int) -> Order:
    """What counts where no costs are known, for each feature that has to be added: percents of FLOPs, then segments."""

    def order(gain: Gain) -> tuple[float, ...]:
        share = 100 * gain.flops / total_flops if total_flops else 0.0
        return round(share / gain.features), gain.segments / gain.features, share / gain.features

    return order


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureValue:
    """What features would be worth."""

    features: Features
    gain: Gain
    outcome: PlanOutcome
    """With them, over all models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Features of some models, ranked."""

    now: PlanOutcome
    features: tuple[FeatureValue, ...]
    """One feature each, best first."""
    road_map: tuple[FeatureValue, ...]
    """Each step given those before it; its outcome is that of all up to it."""
    left_out: int
    """Features that were not tried."""


def rank(situations: Sequence[Situation], order: Order, *, regions: bool = False) -> Ranking:
    """Return what missing features are worth.

    1. The `MOST_FEATURES` most frequent ones are tried, each by itself.
    2. The road map begins with the best, goes on with the best given that one, and ends where nothing is worth anything
       any more, or after `_MOST_STEPS`. Features that some atom needs together may be one step, and with `regions`
       those that a region needs together; where no step is worth anything, so may every two of the most frequent ones.

    Every trial is linear in the model by order of devices; see `Situation`.

    Args:
        situations: one per model.
        order: what makes one gain better than another.
        regions: ask what regions need, which takes longer.
    """
    baseline = _total(situations, frozenset())
    frequency = Counter[Feature]()
    for situation in situations:
        frequency.update(situation.frequency)
    frequent = [feature for feature, _ in sorted(frequency.items(), key=lambda item: (-item[1], item[0]))]
    tried = frequent[:MOST_FEATURES]
    singles = sorted(
        (_worth(situations, frozenset(), frozenset((feature,))) for feature in tried),
        key=lambda feature_value: order(feature_value.gain),
        reverse=True,
    )
    return Ranking(
        now=baseline,
        features=tuple(singles),
        road_map=tuple(islice(_road(situations, tried, order, regions), _MOST_STEPS)),
        left_out=len(frequent) - len(tried),
    )


def _total(situations: Iterable[Situation], features: Features) -> PlanOutcome:
    """Return the outcome over all models, if the device had these features."""
    return sum((situation.with_features(features) for situation in situations), start=PlanOutcome())


def _road(
    situations: Sequence[Situation], tried: Sequence[Feature], order: Order, regions: bool
) -> Iterator[FeatureValue]:
    bundles = _bundles(situations, frozenset(tried))
    adopted_features: Features = frozenset()
    while True:
        remaining_features = [feature for feature in tried if feature not in adopted_features]
        singles = [frozenset((feature,)) for feature in remaining_features]
        together = _of_regions(situations, adopted_features, frozenset(remaining_features)) if regions else ()
        step = _best(
            situations,
            adopted_features,
            [*singles, *(bundle - adopted_features for bundle in bundles), *together],
            order,
        )
        if step is None:
            pairs = (frozenset(pair) for pair in combinations(remaining_features[:_PAIRED], 2))
            step = _best(situations, adopted_features, pairs, order)
        if step is None:
            return
        adopted_features |= step.features
        yield step


def _best(
    situations: Sequence[Situation], adopted_features: Features, candidates: Iterable[Features], order: Order
) -> FeatureValue | None:
    """The best of the candidates, the first of several; None if none is worth anything."""
    distinct = dict.fromkeys(filter(None, candidates))
    tried = map(partial(_worth, situations, adopted_features), distinct)
    best = max(tried, key=lambda feature_value: order(feature_value.gain), default=None)
    return best if best is not None and order(best.gain) > (0, 0, 0) else None


def _bundles(situations: Sequence[Situation], tried: Features) -> Sequence[Features]:
    """What atoms need together, the most frequent first."""
    counts = Counter[Features]()
    for situation in situations:
        counts.update(needs for needs in situation.missing.needs if needs and len(needs) > 1 and needs <= tried)
    return [needs for needs, _ in counts.most_common(MOST_FEATURES)]


def _of_regions(
    situations: Sequence[Situation], adopted_features: Features, remaining_features: Features
) -> Sequence[Features]:
    """What regions that the device would not get need together, the most frequent first."""
    counts = Counter[Features]()
    for situation in situations:
        counts.update(
            needs
            for needs in situation.regions(adopted_features)
            if 1 < len(needs) <= _TOGETHER and needs <= remaining_features
        )
    return [needs for needs, _ in counts.most_common(MOST_FEATURES)]


def _worth(situations: Sequence[Situation], adopted_features: Features, more: Features) -> FeatureValue:
    both = adopted_features | more
    seconds, segments, flops = 0.0, 0, 0
    for situation in situations:
        baseline, improved = situation.with_features(adopted_features), situation.with_features(both)
        seconds += _difference(baseline.seconds, improved.seconds)
        segments += baseline.segments - improved.segments
        flops += improved.flops - baseline.flops
    gain = Gain(seconds=seconds, segments=segments, flops=flops, features=len(more))
    return FeatureValue(features=more, gain=gain, outcome=_total(situations, both))


def _difference(baseline: float, improved: float) -> float:
    if isfinite(baseline):
        return baseline - improved
    return 0.0 if not isfinite(improved) else inf


def _rounded(seconds: float) -> float:
    return round(seconds / _NOISE) * _NOISE if isfinite(seconds) else seconds
