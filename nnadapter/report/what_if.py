"""Ranking of missing device features by their gain over some models: `nnadapter.what_if`."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple
from functools import partial
from itertools import combinations, islice
from math import inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnadapter.costs.cost_model import Source
from nnadapter.drivers.selection import DeviceRequest
from nnadapter.engine.branches import select_branches
from nnadapter.errors import DeviceNotFoundError, InvalidModelError, InvalidOptionError, ModelFileError, NNAdapterError
from nnadapter.onnx.files import load_model
from nnadapter.onnx.preparation.default_sizes import default_shapes
from nnadapter.optional_parts import optional_part
from nnadapter.options import Options, default_devices, options_from
from nnadapter.planning.planner import Planner, prepare_for
from nnadapter.planning.setting import SessionDevice, Setting, open_setting
from nnadapter.policies import POLICIES
from nnadapter.records import dataclass
from nnadapter.report.facts import GUESSES
from nnadapter.report.missing_features import Feature, PlanOutcome, Situation, situation_of
from nnadapter.report.what_if_facts import FailedModel, FeatureFacts, ModelFacts, PlanTotals, RoadStep, WhatIf

if TYPE_CHECKING:
    import onnx


def model_sources(models: Any) -> list[tuple[str, Any]]:
    """Return name and source of every model, each file once. Raises ModelFileError if there is none.

    A folder means every `*.onnx` below it. Files are named relative to their common folder.
    """
    sources = [models] if isinstance(models, (str, bytes, os.PathLike)) or not isinstance(models, Sequence) else models
    if not sources:
        raise ModelFileError("what-if got no model; give the path of one, or of a folder with models")
    named_sources: dict[object, tuple[str, Any]] = {}
    for position, source in enumerate(sources):
        if isinstance(source, (str, os.PathLike)):
            named_sources.update((_place(path), (str(path), path)) for path in _files(Path(source)))
        else:
            graph_name = getattr(getattr(source, "graph", None), "name", "")
            named_sources[position] = graph_name or f"model {position + 1}", source
    files = [path for path in named_sources if isinstance(path, Path)]
    shared = Path(os.path.commonpath([path.parent for path in files])) if files else Path()
    return [
        (str(at.relative_to(shared)) if isinstance(at, Path) else name, source)
        for at, (name, source) in named_sources.items()
    ]


def _files(path: Path) -> Sequence[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(file for file in path.rglob("*.onnx") if file.is_file() or _leads_nowhere(file))
    if not files:
        raise ModelFileError(f"folder {str(path)!r} has no *.onnx file; give a folder with models")
    return files


def _place(path: Path) -> Path:
    return path.absolute() if _leads_nowhere(path) else path.resolve()


def _leads_nowhere(path: Path) -> bool:
    return path.is_symlink() and not path.exists()


MOST_FEATURES = 50
_MOST_STEPS = 8
_PAIRED = 8
_TOGETHER = 8
_NOISE = 1e-12

Features = frozenset[Feature]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """Savings over all models from additional features."""

    seconds: float
    """Seconds saved; minus infinity if a plan could not run with the features."""
    segments: int
    flops: int
    features: int = 1


Order = Callable[[Gain], tuple[float, ...]]
"""Function that returns a gain's sort key. A key of (0, 0, 0) or less means no gain."""


def by_time(gain: Gain) -> tuple[float, ...]:
    """Return the sort key: seconds saved, then segments and FLOPs."""
    return _rounded(gain.seconds), gain.segments, gain.flops


def by_flops(total_flops: int) -> Order:
    """Return an `Order` by FLOPs, then by segments, each divided by the number of added features."""

    def order(gain: Gain) -> tuple[float, ...]:
        share = 100 * gain.flops / total_flops if total_flops else 0.0
        return round(share / gain.features), gain.segments / gain.features, share / gain.features

    return order


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureValue:
    """Features that the device lacks, with their estimated gain."""

    features: Features
    gain: Gain
    outcome: PlanOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Ranked features of some models."""

    current_totals: PlanOutcome
    features: tuple[FeatureValue, ...]
    road_map: tuple[FeatureValue, ...]
    """Steps that each assume the earlier ones."""
    untried_features: int


def rank(situations: Sequence[Situation], order: Order, *, regions: bool = False) -> Ranking:
    """Rank missing features by estimated gain.

    1. Try each of the `MOST_FEATURES` most frequent features alone.
    2. Build the road map greedily until no step has a gain. A step adds one feature, or all features that one atom
       requires (with `regions`, one connected region of atoms). If no such step has a gain, feature pairs are tried.
    """
    baseline = _total(situations, frozenset())
    frequency = Counter[Feature]()
    for situation in situations:
        frequency.update(situation.frequency)
    frequent = [feature for feature, _ in sorted(frequency.items(), key=lambda item: (-item[1], astuple(item[0])))]
    tried = frequent[:MOST_FEATURES]
    singles = sorted(
        (_evaluate(situations, frozenset(), frozenset((feature,))) for feature in tried),
        key=lambda feature_value: order(feature_value.gain),
        reverse=True,
    )
    return Ranking(
        current_totals=baseline,
        features=tuple(singles),
        road_map=tuple(islice(_road(situations, tried, order, regions), _MOST_STEPS)),
        untried_features=len(frequent) - len(tried),
    )


def _total(situations: Iterable[Situation], features: Features) -> PlanOutcome:
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
    distinct = dict.fromkeys(filter(None, candidates))
    tried = map(partial(_evaluate, situations, adopted_features), distinct)
    best = max(tried, key=lambda feature_value: order(feature_value.gain), default=None)
    return best if best is not None and order(best.gain) > (0, 0, 0) else None


def _bundles(situations: Sequence[Situation], tried: Features) -> Sequence[Features]:
    counts = Counter[Features]()
    for situation in situations:
        counts.update(needs for needs in situation.missing.needs if needs and len(needs) > 1 and needs <= tried)
    return [needs for needs, _ in counts.most_common(MOST_FEATURES)]


def _of_regions(
    situations: Sequence[Situation], adopted_features: Features, remaining_features: Features
) -> Sequence[Features]:
    counts = Counter[Features]()
    for situation in situations:
        counts.update(
            needs
            for needs in situation.regions(adopted_features)
            if 1 < len(needs) <= _TOGETHER and needs <= remaining_features
        )
    return [needs for needs, _ in counts.most_common(MOST_FEATURES)]


def _evaluate(situations: Sequence[Situation], adopted_features: Features, more: Features) -> FeatureValue:
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


_BY_TIME = ("seconds_saved", "segments_saved", "flops")
_BY_FLOPS = ("flops", "segments_saved")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Workload:
    nodes: int
    flops: int
    unknown_flops_nodes: int
    timed: bool

    @classmethod
    def of(cls, situations: Sequence[Situation]) -> _Workload:
        return cls(
            timed=all(situation.is_timed for situation in situations),
            nodes=sum(len(situation.graph.nodes) for situation in situations),
            flops=sum(int(situation.flops.sum()) for situation in situations),
            unknown_flops_nodes=sum(situation.unknown_flops_nodes for situation in situations),
        )

    def totals(self, outcome: PlanOutcome) -> PlanTotals:
        nodes = outcome.nodes / self.nodes if self.nodes else 0.0
        return PlanTotals(
            seconds=self.seconds(outcome.seconds),
            segments=outcome.segments,
            nodes=nodes,
            flops=outcome.flops / self.flops if self.flops else nodes,
            unknown_flops_nodes=self.unknown_flops_nodes,
        )

    def seconds(self, predicted_seconds: float) -> float | None:
        return predicted_seconds if self.timed and isfinite(predicted_seconds) else None


def facts_of(situations: Sequence[Situation], device: str, policy: str, failed: Sequence[FailedModel]) -> WhatIf:
    """Return the what-if report."""
    sources = {name: str(source) for situation in situations for name, source in situation.sources.items()}
    workload = _Workload.of(situations)
    ranking = rank(situations, by_time if workload.timed else by_flops(workload.flops), regions=not workload.timed)
    return WhatIf(
        device=device,
        devices=tuple(dict.fromkeys(name for situation in situations for name in situation.verdicts)),
        policy=policy,
        sources=sources,
        ranked_by=_BY_TIME if workload.timed else _BY_FLOPS,
        current_totals=workload.totals(ranking.current_totals),
        features=tuple(_feature(situations, feature_value, workload) for feature_value in ranking.features),
        road_map=tuple(_step(feature_value, workload) for feature_value in ranking.road_map),
        models=tuple(_model(situation) for situation in situations),
        failed=tuple(failed),
        untried_features=ranking.untried_features,
        all_cpu_seconds=workload.seconds(sum(situation.all_cpu_seconds for situation in situations)),
        notes=tuple(_notes(situations, device, policy, sources, ranking.untried_features)),
    )


def _feature(situations: Sequence[Situation], feature_value: FeatureValue, workload: _Workload) -> FeatureFacts:
    (feature,) = feature_value.features
    having = [situation for situation in situations if feature in situation.features]
    example = having[0].features[feature]
    return FeatureFacts(
        label=feature.label,
        reason=feature.reason,
        op_type=feature.op_type,
        qualifier=feature.qualifier,
        missing_in=feature.missing_in.value,
        nodes=sum(situation.frequency[feature] for situation in having),
        models=len(having),
        segments_saved=feature_value.gain.segments,
        seconds_saved=workload.seconds(feature_value.gain.seconds),
        resulting_totals=workload.totals(feature_value.outcome),
        example_model=having[0].name,
        example_node=example.node,
        example_detail=example.detail,
    )


def _step(feature_value: FeatureValue, workload: _Workload) -> RoadStep:
    return RoadStep(
        labels=tuple(sorted(feature.label for feature in feature_value.features)),
        segments_saved=feature_value.gain.segments,
        seconds_saved=workload.seconds(feature_value.gain.seconds),
        resulting_totals=workload.totals(feature_value.outcome),
    )


def _model(situation: Situation) -> ModelFacts:
    baseline = _Workload.of([situation]).totals(situation.with_features())
    return ModelFacts(name=situation.name, input_shapes=situation.input_shapes, current_totals=baseline)


def _notes(
    situations: Sequence[Situation], device: str, policy: str, sources: Mapping[str, str], left_out: int
) -> Iterator[str]:
    assumed = [name for name, source in sources.items() if source == Source.ASSUMED]
    guesses = [name for name, source in sources.items() if source in GUESSES]
    if assumed:
        yield (
            f"costs of {', '.join(assumed)} are not known, so features are ranked by FLOPs and segments, "
            f"without times; `nnadapter calibrate {assumed[0]}` measures them"
        )
    elif guesses:
        yield (
            f"times are guesses, because costs of {', '.join(guesses)} are not measured; `nnadapter calibrate "
            f"{guesses[0]}` measures them"
        )
    if POLICIES[policy].times:
        yield f"nothing was timed: for policy {policy!r}, times are predictions"
    beyond = sum(
        len(nodes)
        for situation in situations
        for nodes, needs in zip(situation.graph.atoms, situation.missing.needs, strict=True)
        if needs is None
    )
    if beyond:
        yield f"no feature moves {beyond} nodes to {device}: rules forbid it, or the nodes are not valid"
    planned = sum(situation.planned_segments for situation in situations)
    counted = sum(situation.with_features().segments for situation in situations)
    if planned != counted:
        yield (
            f"plans have {planned} segments, some of them halved to fit a device; what-if counts "
            f"{counted}, without halving"
        )
    if left_out:
        yield f"{left_out} less frequent features were not tried"
    if not assumed:
        yield f"times assume that {device} fuses newly supported nodes as devices commonly do"
    yield f"{device} gives one reason for each refused node; others may appear once that feature is supported"


ProgressCallback = Callable[[str, NNAdapterError | None], None]


def what_if(
    models: str | os.PathLike[str] | bytes | onnx.ModelProto | Sequence[Any],
    devices: DeviceRequest | Sequence[DeviceRequest] | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    options: Options | Mapping[str, Any] | None = None,
    *,
    device: str | None = None,
    on_model: ProgressCallback | None = None,
) -> WhatIf:
    """Return the features that a device lacks for some models, with estimated gains and the best order to add them.

    The models are placed, cut and priced with added features, without compiling. Failed models are listed in `failed`.

    Args:
        models: a path, a folder (every `*.onnx` below it), bytes, `onnx.ModelProto`, or a list of these.
        devices: as in `InferenceSession`.
        input_shapes: input name -> shape; with several models, each ignores unknown names.
        options: `Options`, or a mapping of its fields. Policy `measured` uses predicted costs.
        device: device that would gain features; default: the first accelerator.
        on_model: called after each model with its name, and its error or None.

    Raises:
        ModelFileError, InvalidModelError: no model can be read.
        InvalidInputError: `input_shapes` do not fit the only model.
        DeviceNotFoundError, DeviceUnavailableError: as in `InferenceSession`.
        InvalidOptionError: no accelerator is named, or a plan file fixes the placement.
    """
    chosen = options_from(options)
    if chosen.plan is not None:
        raise InvalidOptionError(f"plan {os.fspath(chosen.plan)!r} fixes the placement; run what-if without a plan")
    sources = model_sources(models)
    setting = open_setting(default_devices() if devices is None else devices, chosen)
    try:
        target = _learner(setting, device)
        situations: list[Situation] = []
        failed: list[FailedModel] = []
        for name, source in sources:
            error: NNAdapterError | None = None
            try:
                situations.append(
                    _situation(name, source, input_shapes or {}, setting, target, is_single=len(sources) == 1)
                )
            except NNAdapterError as caught:
                error = caught
                failed.append(FailedModel(name=name, error=str(error)))
            if on_model is not None:
                on_model(name, error)
            if error is not None and len(sources) == 1:
                raise error
    finally:
        setting.close()
    if not situations:
        raise InvalidModelError(f"none of the {len(sources)} models could be read; the first error: {failed[0].error}")
    return facts_of(situations, target.name, chosen.policy, failed)


def _learner(setting: Setting, name: str | None) -> SessionDevice:
    able = [device for device in setting.devices if device.accelerates]
    if not able:
        raise InvalidOptionError("what-if needs a device other than the CPU; add -d DEVICE")
    for device in able:
        if name in (None, device.name):
            return device
    raise DeviceNotFoundError(
        f"device {name!r} is none of the accelerators {', '.join(device.name for device in able)}; name one"
    )


def _situation(
    name: str,
    source: Any,
    shapes: Mapping[str, Sequence[int]],
    setting: Setting,
    target: SessionDevice,
    *,
    is_single: bool,
) -> Situation:
    prepared = prepare_for(load_model(optional_part("paddle_model_as_onnx")(source)), setting)
    input_shapes = {
        input_name: tuple(int(size) for size in shape)
        for input_name, shape in shapes.items()
        if is_single or input_name in prepared.graph.inputs
    }
    usual = default_shapes(prepared, input_shapes)
    chosen, _ = select_branches(prepared, usual, {})
    planner = Planner(chosen, setting)
    shapes = usual if chosen is prepared else default_shapes(chosen, input_shapes)
    return situation_of(name, planner.settle(planner.judge(shapes)), target)
