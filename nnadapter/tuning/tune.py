"""`nnadapter.tune`: device, precision and quantization per unit, under an accuracy budget."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnadapter.drivers.selection import CPU, DeviceRequest
from nnadapter.errors import InvalidOptionError
from nnadapter.files.atomic_files import check_writable
from nnadapter.onnx.files import save_model
from nnadapter.options import default_devices
from nnadapter.process.packages import require_extra
from nnadapter.quantization.products import read_float_model
from nnadapter.quantization.quantize import MOST_SAMPLES, signature_of
from nnadapter.quantization.samples import Data, Sample, held_out, read_samples
from nnadapter.records import replace
from nnadapter.rules import Rules, read_rules
from nnadapter.session.ahead_of_time import compile as compile_model
from nnadapter.session.ahead_of_time import partition_report
from nnadapter.session.session import InferenceSession
from nnadapter.tuning.budget import Metric, Outputs, read_budget, signal_to_noise
from nnadapter.tuning.configurations import Configuration, Workshop, lanes_of, run_seconds, simulated_seconds
from nnadapter.tuning.report import ParetoPoint, TunedUnit, TuneReport
from nnadapter.tuning.search import Found, Measured, Search

if TYPE_CHECKING:
    import onnx

_CALIBRATION = 32
_FINALISTS = 5
_SHARE_TO_SEARCH = 0.85
"""Part of the time limit for the search; the comparison in turns gets the rest."""
_MOST_SHAPES = 8


def tune(
    model: str | os.PathLike[str] | bytes | onnx.ModelProto,
    devices: DeviceRequest | Sequence[DeviceRequest] | None = None,
    data: Data | None = None,
    metric: Metric | None = None,
    max_drop: float | str | None = None,
    out: str | os.PathLike[str] | None = None,
    max_evaluations: int | None = None,
    seconds: float | None = None,
    *,
    search_on: DeviceRequest | None = None,
    rules: Rules | str | os.PathLike[str] | None = None,
    max_samples: int = MOST_SAMPLES,
    progress: Callable[[str], None] = lambda text: None,
) -> TuneReport:
    """Find the fastest way to run a model on devices within an accuracy budget, by measurement.

    Every part of the model gets a device, a floating precision, and possibly a way to be quantized. The result is never
    slower than float32 on the CPU, and within the budget on the data.

    Args:
        model: float model: path, bytes or `onnx.ModelProto`, or path of a Paddle model.
        devices: as in `InferenceSession`; every floating precision of each is tried unless an option chooses one.
        data: sample inputs, as in `nnadapter.quantize`. With 10 or more, every fifth one is held out of the search.
        metric: function of outputs (one list of arrays per sample) and of the items of the data, that returns a number
            or one per sample; larger is better. None: the distance to the float32 outputs.
        max_drop: largest drop of the metric: a number, or a text such as `0.5%` of the baseline; by default 1 %.
            Without a metric, the least SQNR of the worst output in dB; by default 20.
        out: file to write: `.onnx` for the QDQ model with a plan file `.plan.json`, otherwise a compiled model.
        max_evaluations: maximum number of computations of the metric.
        seconds: time limit; the search then ends with the best configuration so far. Ctrl-C does the same.
        search_on: device to search on instead of slow `devices` such as emulators, for instance `("fake_npu", {"clock":
            "simulated"})`. The fastest results are then verified on `devices`. Times are of the search, and the gain of
            integers is assumed.
        rules: pins and bans of devices and precisions, as in `Options`, for the nodes of the model after ONNX Runtime's
            basic optimizations.
        max_samples: maximum number of samples to use.
        progress: called with a text before each measurement.

    Raises:
        CalibrationDataError: there is no sample, or one does not fit.
        MetricError: the metric raised, or returned no finite number.
        BudgetError: rules exclude float32 on the CPU, and nothing else is within the budget.
        RulesError: rules cannot be read, select nothing, or permit nothing for a node.
        InvalidOptionError: a limit or an option is not valid.
        MissingExtraError: scipy is not installed.
        InvalidModelError, DeviceNotFoundError, DeviceUnavailableError: as in `InferenceSession`.
    """
    started = time.perf_counter()
    budget = read_budget(metric, max_drop)
    _check_limits(max_evaluations, seconds, max_samples)
    require_extra("latency", "tuning")
    target = None if out is None else Path(out)
    if target is not None:
        check_writable(target)
    if data is None:
        raise InvalidOptionError("tuning needs sample inputs; pass data, such as a list of feeds or a folder")
    requests = default_devices() if devices is None else devices
    float_model = read_float_model(model)
    samples = read_samples(data, signature_of(float_model), max_samples)
    used, outside = (_at(samples, positions) for positions in held_out(len(samples)))
    lanes = lanes_of(requests, search_on, has_matrices=any(row.op_type == "MatMul" for row in float_model.products))
    feeds = [sample.feed for sample in used]
    chosen_rules = Rules() if rules is None else read_rules(rules)
    workshop = Workshop(float_model, lanes, feeds, feeds[:: -(-len(feeds) // _CALIBRATION)], chosen_rules)
    progress("float32 on the CPU")
    with InferenceSession(float_model.model, devices=CPU) as host:
        reference = [host.run(None, feed) for feed in feeds]
        items = [sample.item for sample in used]
        baseline = math.inf if metric is None else budget.score(reference, reference, items)
        search = Search(
            workshop=workshop, budget=budget, items=items, reference=reference, baseline=baseline, host=host,
            max_evaluations=max_evaluations, deadline=None if seconds is None else started + _SHARE_TO_SEARCH * seconds,
            report=progress,
        )  # fmt: skip
        search.measure_baseline()
        found = search.run()
        progress("comparing the fastest in turns")
        final = _Final(search, found, outside)
    report = final.report(time.perf_counter() - started, len(samples))
    if target is None:
        return report
    progress("writing")
    return replace(report, output=_written(report, target, feeds))


def _check_limits(max_evaluations: int | None, seconds: float | None, max_samples: int) -> None:
    for name, value in (("max_evaluations", max_evaluations), ("max_samples", max_samples)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise InvalidOptionError(f"{name} must be an integer of at least 1, got {value!r}")
    is_number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool)
    if seconds is not None and (not is_number or not math.isfinite(seconds) or seconds <= 0):
        raise InvalidOptionError(f"seconds must be a number above 0, got {seconds!r}")


def _at(samples: Sequence[Sample], positions: Sequence[int]) -> list[Sample]:
    return [samples[at] for at in positions]


class _Final:
    """Comparison of the fastest allowed configurations by times in turns, and on held-out samples."""

    def __init__(self, search: Search, found: Found, outside: Sequence[Sample]) -> None:
        self._search, self._found, self._outside = search, found, outside
        self._workshop, self._budget = search.workshop, search.budget
        self._outside_reference: Outputs = [search.host.run(None, sample.feed) for sample in outside]
        self._times = self._timed()
        self._outside_scores: dict[Configuration | None, float] = {}
        self._verified: dict[Configuration, Measured] = {}

    def report(self, seconds: float, samples: int) -> TuneReport:
        """Return the report on the fastest configuration that keeps the accuracy budget.

        Held-out samples must keep it too.
        """
        search, found, workshop = self._search, self._found, self._workshop
        times, on_host = self._times, search.on_host
        permitted = {each.configuration: each.score for each in search.allowed()}
        order = sorted((each for each in times if each in permitted), key=times.__getitem__)
        best = next(filter(self._is_within, order), max(permitted, key=permitted.__getitem__))
        best = best if best == order[0] else self._quieter(order[0], best)
        measured = self._measured(best)
        model = workshop.quantized(best)
        predicted = found.predicted_seconds(measured)
        bound = min(found.bound, predicted)  # without a model, nothing faster is known
        has_bound = 0 < bound < math.inf
        floats = (times[each] for each in times if each != on_host and self._is_float(each))
        return TuneReport(
            budget=str(self._budget), baseline=search.baseline, achieved=measured.score, drop=self._drop(measured),
            held_out_baseline=self._outside_score(None) if self._outside else None, held_out=self._outside_score(best),
            time=times[best], cpu_time=times[on_host], float_time=min(floats, default=times[on_host]),
            bound=times[best] * (bound / predicted) if has_bound else times[best],
            gap=predicted / bound - 1 if has_bound else 0.0,
            evaluations=search.evaluations, trials=search.trials, seconds=seconds, samples=samples,
            devices=workshop.device_names(best), units=tuple(self._units(best)), pareto=tuple(self._pareto(best)),
            stopped=found.stopped,
            failures=tuple(dict.fromkeys(each.failure for each in search.measured.values() if each.failure)),
            model=model, requests=workshop.requests(best), options=workshop.options(best, model),
        )  # fmt: skip

    def _measured(self, configuration: Configuration) -> Measured:
        return self._verified.get(configuration, self._search.measured[configuration])

    def _timed(self) -> dict[Configuration, float]:
        fastest = [each.configuration for each in self._search.allowed()[:_FINALISTS]]
        floats = [each.configuration for each in self._search.allowed() if self._is_float(each.configuration)]
        chosen = list(dict.fromkeys([self._search.on_host, *fastest, *floats]))
        if any(lane.stand_in is not None for lane in self._workshop.lanes):
            return {each: self._search.measured[each].seconds for each in chosen}
        sessions: list[InferenceSession] = []
        try:
            sessions += [self._workshop.open(each) for each in chosen]
            feeds = self._workshop.feeds
            clocks = [simulated_seconds(session, feeds) for session in sessions]
            times = run_seconds(sessions, feeds)
        except KeyboardInterrupt:
            return {each: self._search.measured[each].seconds for each in chosen}
        finally:
            for session in sessions:
                session.close()
        pairs = zip(clocks, times, strict=True)
        return dict(zip(chosen, (wall if clock is None else clock for clock, wall in pairs), strict=True))

    def _is_float(self, configuration: Configuration) -> bool:
        chosen = {self._workshop.alternatives[at] for at in configuration}
        return all(each.way is None and self._workshop.lanes[each.lane].precision == "float32" for each in chosen)

    def _is_within(self, configuration: Configuration) -> bool:
        if configuration == self._search.on_host:
            return True
        if self._workshop.has_stand_in(configuration):
            self._verified[configuration] = self._search.verify(configuration)
            if not self._verified[configuration].allowed:
                return False
        if not self._outside:
            return True
        baseline, score = self._outside_score(None), self._outside_score(configuration)
        if baseline is None or score is None:
            return True
        if self._budget.metric is None:
            return self._budget.allows(baseline, score)
        inside, outside = len(self._search.items), len(self._outside)
        total = self._search.baseline * inside + baseline * outside
        achieved = self._measured(configuration).score * inside + score * outside
        return self._budget.allows(total / (inside + outside), achieved / (inside + outside))

    def _quieter(self, rejected: Configuration, best: Configuration) -> Configuration:
        """Return a faster configuration than `best` with less noise than one that held-out samples reject."""
        found = self._found
        for measured, bound in self._search.quieter(rejected, found):
            if measured.seconds >= self._times[best]:
                break
            if measured.allowed and self._is_within(measured.configuration):
                self._times[measured.configuration], found.bound = measured.seconds, bound
                return measured.configuration
        return best

    def _outside_score(self, configuration: Configuration | None) -> float | None:
        """Return a configuration's (None: float32's) score on held-out samples; None without samples or evaluations."""
        if configuration in self._outside_scores:
            return self._outside_scores[configuration]
        if configuration is None and self._budget.metric is None:
            return math.inf
        if not self._outside or not self._search.has_evaluations(reserved=0):
            return None
        self._search.evaluations += 1
        outputs = self._outside_reference
        if configuration is not None:
            feeds = [sample.feed for sample in self._outside]
            with self._workshop.open(configuration, on_stand_in=False) as session:
                outputs = [session.run(None, feed) for feed in feeds]
        score = self._budget.score(outputs, self._outside_reference, [sample.item for sample in self._outside])
        self._outside_scores[configuration] = score
        return score

    def _drop(self, measured: Measured) -> float:
        if self._budget.metric is None:
            return 0.0 if math.isinf(measured.score) else math.inf
        return self._budget.drop(self._search.baseline, measured.score)

    def _units(self, best: Configuration) -> Iterator[TunedUnit]:
        workshop, found = self._workshop, self._found
        for unit, (facts, at) in enumerate(zip(workshop.units, best, strict=True)):
            alternative = workshop.alternatives[at]
            floating = workshop.floating(at)
            alone, in_place = found.damage_of(unit, at), found.damage_in_place.get(unit)
            if alternative.way is not None:
                reason = ""
            elif not facts.products:
                reason = "nothing to quantize"
            elif alone is None or not found.gains(unit, floating):
                reason = "it would be no faster"
            elif not math.isfinite(alone):
                reason = "the outputs would not be finite, or the device fails"
            else:
                reason = f"it alone lowers the SQNR to {signal_to_noise(alone):.1f} dB"
            yield TunedUnit(
                name=facts.name, nodes=facts.nodes, reason=reason,
                device=workshop.lanes[alternative.lane].name, precision=workshop.text(alternative),
                damage_alone_db=None if alone is None else signal_to_noise(alone),
                damage_in_place_db=None if in_place is None else signal_to_noise(in_place),
                saved_seconds=found.saved_seconds(unit, floating, at),
            )  # fmt: skip

    def _pareto(self, best: Configuration) -> Iterator[ParetoPoint]:
        workshop, highest = self._workshop, -math.inf
        finite = [each for each in self._search.measured.values() if math.isfinite(each.seconds)]
        for each in sorted(finite, key=lambda each: each.seconds):
            precisions = dict.fromkeys(workshop.text(workshop.alternatives[at]) for at in each.configuration)
            yield ParetoPoint(
                seconds=self._times.get(each.configuration, each.seconds), score=each.score, drop=self._drop(each),
                sqnr_db=signal_to_noise(each.noise), allowed=each.allowed,
                device=", ".join(workshop.device_names(each.configuration)),
                precision=", ".join(precisions),
                is_best=each.configuration == best, on_front=each.score > highest,
            )  # fmt: skip
            highest = max(highest, each.score)


def _written(report: TuneReport, target: Path, feeds: Sequence[Mapping[str, Any]]) -> str:
    if target.suffix == ".onnx":
        save_model(report.model, target)
        plan = target.with_suffix(".plan.json")
        sizes = {name: array.shape for name, array in feeds[0].items()}
        partition_report(report.model, report.requests, sizes, report.options, save_plan=plan)
        return f"{target} and {plan}"
    shapes = [{name: array.shape for name, array in feed.items()} for feed in feeds]
    distinct = list({tuple(sorted(each.items())): each for each in shapes}.values())[:_MOST_SHAPES]
    compile_model(
        report.model, target, devices=report.requests, input_shapes=distinct, options=report.options,
        dynamic_shapes=len(distinct) > 1,
    )  # fmt: skip
    return str(target)
