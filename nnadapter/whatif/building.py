"""Facts of a ranking."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isfinite

from nnadapter.costs.device_costs import Source
from nnadapter.policies import POLICIES
from nnadapter.whatif.facts import FailedModel, FeatureFacts, ModelFacts, RoadStep, Standing
from nnadapter.whatif.ranking import FeatureValue, by_flops, by_time, rank
from nnadapter.whatif.report import WhatIf
from nnadapter.whatif.situation import PlanOutcome, Situation

_BY_TIME = ("seconds_saved", "segments_saved", "flops")
_BY_FLOPS = ("flops", "segments_saved")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Whole:
    """All that runs, of which shares are told."""

    nodes: int
    flops: int
    uncounted: int
    """Nodes whose FLOPs are not known."""
    timed: bool
    """Somebody knows what every device costs."""

    @classmethod
    def of(cls, situations: Sequence[Situation]) -> _Whole:
        return cls(
            timed=all(situation.is_timed for situation in situations),
            nodes=sum(len(situation.graph.nodes) for situation in situations),
            flops=sum(int(situation.flops.sum()) for situation in situations),
            uncounted=sum(situation.uncounted for situation in situations),
        )

    def standing(self, outcome: PlanOutcome) -> Standing:
        nodes = outcome.nodes / self.nodes if self.nodes else 0.0
        return Standing(
            seconds=self.seconds(outcome.seconds),
            segments=outcome.segments,
            nodes=nodes,
            flops=outcome.flops / self.flops if self.flops else nodes,
            uncounted=self.uncounted,
        )

    def seconds(self, predicted_seconds: float) -> float | None:
        """Seconds that are told: finite ones, and none where a device's costs are assumed."""
        return predicted_seconds if self.timed and isfinite(predicted_seconds) else None


def facts_of(situations: Sequence[Situation], device: str, policy: str, failed: Sequence[FailedModel]) -> WhatIf:
    """Return what-if over some models.

    Features are ranked by predicted time, then by segments and FLOPs; where nobody knows the costs of a device, by
    FLOPs, then by segments, and no times are told.

    Args:
        situations: at least one, all of the same devices.
        device: the one that would learn.
        policy: by which nodes are placed.
        failed: models that are left out.
    """
    sources = {name: str(source) for situation in situations for name, source in situation.sources.items()}
    assumed = [name for name, source in sources.items() if source == Source.ASSUMED]
    workload = _Whole.of(situations)
    ranking = rank(situations, by_time if workload.timed else by_flops(workload.flops), regions=not workload.timed)
    return WhatIf(
        device=device,
        devices=tuple(dict.fromkeys(name for situation in situations for name in situation.verdicts)),
        policy=policy,
        sources=sources,
        ranked_by=_BY_TIME if workload.timed else _BY_FLOPS,
        now=workload.standing(ranking.now),
        features=tuple(_feature(situations, feature_value, workload) for feature_value in ranking.features),
        road_map=tuple(_step(feature_value, workload) for feature_value in ranking.road_map),
        models=tuple(_model(situation) for situation in situations),
        failed=tuple(failed),
        left_out=ranking.left_out,
        all_cpu_seconds=workload.seconds(sum(situation.on_cpu for situation in situations)),
        notes=tuple(_notes(situations, device, policy, assumed, ranking.left_out)),
    )


def _feature(situations: Sequence[Situation], feature_value: FeatureValue, workload: _Whole) -> FeatureFacts:
    (feature,) = feature_value.features
    having = [situation for situation in situations if feature in situation.features]
    example = having[0].features[feature]
    return FeatureFacts(
        label=feature.label,
        reason=feature.reason,
        op_type=feature.op_type,
        what=feature.what,
        where=feature.where.value,
        nodes=sum(situation.frequency[feature] for situation in having),
        models=len(having),
        segments_saved=feature_value.gain.segments,
        seconds_saved=workload.seconds(feature_value.gain.seconds),
        then=workload.standing(feature_value.outcome),
        example_model=having[0].name,
        example_node=example.node,
        example_detail=example.detail,
    )


def _step(feature_value: FeatureValue, workload: _Whole) -> RoadStep:
    return RoadStep(
        labels=tuple(sorted(feature.label for feature in feature_value.features)),
        segments_saved=feature_value.gain.segments,
        seconds_saved=workload.seconds(feature_value.gain.seconds),
        then=workload.standing(feature_value.outcome),
    )


def _model(situation: Situation) -> ModelFacts:
    baseline = _Whole.of([situation]).standing(situation.with_features())
    return ModelFacts(name=situation.name, input_shapes=situation.shapes, now=baseline)


def _notes(
    situations: Sequence[Situation], device: str, policy: str, assumed: Sequence[str], left_out: int
) -> Iterator[str]:
    if assumed:
        yield (
            f"costs of {', '.join(assumed)} are not known, so features are ranked by FLOPs and segments, and no times "
            f"are told; `nnadapter calibrate {assumed[0]}` measures them"
        )
    if POLICIES[policy].times:
        yield f"nothing was timed: by policy {policy!r} it is what costs predict"
    beyond = sum(
        len(nodes)
        for situation in situations
        for nodes, needs in zip(situation.graph.atoms, situation.missing.needs, strict=True)
        if needs is None
    )
    if beyond:
        yield f"no feature brings {beyond} nodes to {device}: rules keep them away, or they contradict themselves"
    planned, counted = (
        sum(situation.planned for situation in situations),
        sum(situation.with_features().segments for situation in situations),
    )
    if planned != counted:
        yield (
            f"plans have {planned} segments, some of them halved to fit a device; what-if counts {counted}, none halved"
        )
    if left_out:
        yield f"{left_out} less frequent features were not tried"
    yield (
        f"what {device} would take newly is priced as one where devices most often run it as one, else alone; a "
        "refusal that hides behind another one is not seen"
    )
