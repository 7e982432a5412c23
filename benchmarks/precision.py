"""Networks with trained weights in lower precision, as OpenVINO, ONNX Runtime, NNCF and nnadapter make them.

All ways get the same samples for calibration; tuning gets those of the metric. Times are of one sample, in turns. The
drop is of the network's metric from float32 in ONNX Runtime, in points; a way keeps the budget if its drop is at most
`--max-drop`. SQNR compares the outputs of the first samples with float32, in dB. The last table has the fastest way
within the budget. Ways of NNCF are left out if it is not installed.
"""

from __future__ import annotations

import argparse
import logging
import math
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import openvino
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantFormat, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

import nnadapter as nna
from benchmarks.harness import Results, UsageError, interleaved, seconds_of, select
from benchmarks.models.trained import NAMES, Array, Feed, Outputs, Trained, in_onnxruntime, packages_of, trained

_SQNR_SAMPLES = 16
_PAUSE = 0.01
_TRANSFORMERS = ("minilm", "digits-vit")
"""Networks that NNCF is told to be transformers."""
Run = Callable[[Feed], Outputs]
Quantizer = Callable[[Trained], Any]
"""A function that returns a model of ONNX or OpenVINO."""


class _Way(NamedTuple):
    quantizer: Quantizer
    engine: Callable[[Any], Run]
    needs: str = ""
    """A package that may not be installed."""


class _Candidate(NamedTuple):
    run: Run
    seconds: float
    """To quantize."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--ways", help=f"some of {', '.join(_NAMES)}, with commas")
    parser.add_argument("--samples", type=int, help="at most as many samples for the metric")
    parser.add_argument("--calibration", type=int, default=16, help="at most as many samples for calibration")
    parser.add_argument("--max-drop", type=float, default=0.5, help="budget in points of the metric")
    parser.add_argument("--tune-seconds", type=float, default=240, help="limit of tuning")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--turn", type=float, default=0.1, help="seconds of a turn")
    parser.add_argument("--folder", type=Path, help="where trained weights are cached")


def run(options: argparse.Namespace, results: Results) -> None:
    """Measure every way on every network."""
    logging.disable(logging.WARNING)  # advice of quantizers
    precisions = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    bits = "8" if _has_vnni() else "7, as this processor has no VNNI"
    results.note(f"OpenVINO's CPU computes in {', '.join(precisions)}; bits of weights by ONNX Runtime: {bits}")
    best = []
    for name in select(options.networks, NAMES):
        missing = [package for package in packages_of(name) if find_spec(package) is None]
        if missing:
            results.note(f"{name} is left out: {missing[0]} is not installed")
            continue
        network = trained(name, options.folder, options.samples)
        rows = list(_rows(network, _chosen_ways(options), options, results))
        table = results.table(name)
        for row in rows:
            table.add(row)
        best += [{"network": name, **row} for row in _fastest(rows)]
    table = results.table("Fastest within the budget")
    for row in best:
        table.add(row)


def _chosen_ways(options: argparse.Namespace) -> dict[str, _Way]:
    """Return the ways that are asked for and whose packages are installed."""
    every = _ways(options.max_drop, options.tune_seconds)
    chosen = select(options.ways.split(",") if options.ways else [], every)
    ways = {name: every[name] for name in chosen if not every[name].needs or find_spec(every[name].needs)}
    if not ways:
        raise UsageError(f"{', '.join(chosen)}: {every[chosen[0]].needs} is not installed")
    return ways


def _rows(
    network: Trained, ways: Mapping[str, _Way], options: argparse.Namespace, results: Results
) -> Iterator[dict[str, Any]]:
    """Yield the time, the metric and the distance to float32 of each way; ways that raise are notes."""
    reference = in_onnxruntime(network.model)
    expected = [reference(feed) for feed in network.samples[:_SQNR_SAMPLES]]
    baseline = network.evaluate(reference)
    candidates = _candidates(network, ways, options.calibration, results)
    feed = network.samples[0]
    calls = {name: partial(candidate.run, feed) for name, candidate in candidates.items()}
    seconds = interleaved(calls, options.rounds, _PAUSE, options.turn)
    slowest = seconds.get(_BASELINE)
    for name, candidate in candidates.items():
        metric = network.evaluate(candidate.run)
        outputs = [candidate.run(feed) for feed in network.samples[:_SQNR_SAMPLES]]
        yield {
            "way": name,
            "ms": 1e3 * seconds[name],
            "times as fast as float32": slowest and slowest / seconds[name],
            "metric": metric,
            "drop": baseline - metric,
            "in budget": baseline - metric <= options.max_drop,
            "SQNR dB": _sqnr(outputs, expected),
            "s to quantize": candidate.seconds,
        }


def _candidates(
    network: Trained, ways: Mapping[str, _Way], calibration: int, results: Results
) -> dict[str, _Candidate]:
    """Return a way to run the network for each that works; a quantized model is made once for all engines."""
    network = network.calibrated_with(calibration)
    models: dict[Quantizer, tuple[Any, float]] = {}
    candidates = {}
    for name, way in ways.items():
        try:
            if way.quantizer not in models:
                made: list[Any] = []
                with warnings.catch_warnings(), redirect_stdout(sys.stderr):  # progress of quantizers
                    warnings.simplefilter("ignore")
                    seconds = seconds_of(lambda way=way, made=made: made.append(way.quantizer(network)))
                models[way.quantizer] = made[0], seconds
            model, seconds = models[way.quantizer]
            runner = way.engine(model)
            runner(network.samples[0])
            candidates[name] = _Candidate(runner, seconds)
        except Exception as error:  # noqa: BLE001 - quantizers raise whatever they like
            results.note(f"{network.name}, {name}: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
    return candidates


def _fastest(rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    valid = [row for row in rows if row["in budget"]]
    if valid:
        row = min(valid, key=lambda row: row["ms"])
        yield {key: row[key] for key in ("way", "ms", "times as fast as float32", "drop")}


def _sqnr(outputs: Sequence[Outputs], expected: Sequence[Outputs]) -> float | str | None:
    """Return the ratio of the power of the right outputs to that of their error in dB; None without an error."""
    signal = noise = 0.0
    for arrays, rights in zip(outputs, expected, strict=True):
        for array, right in zip(arrays, rights, strict=True):
            signal += float((right.astype(np.float64) ** 2).sum())
            noise += float(((array.astype(np.float64) - right) ** 2).sum())
    if not math.isfinite(noise):
        return "not finite"
    return 10 * math.log10(signal / noise) if noise else None


def _unchanged(network: Trained) -> onnx.ModelProto:
    return network.model


class _Reader(CalibrationDataReader):
    def __init__(self, feeds: Sequence[Feed]) -> None:
        self._feeds = iter(feeds)

    def get_next(self) -> Any:
        return next(self._feeds, None)


def _by_onnxruntime(network: Trained, method: CalibrationMethod) -> onnx.ModelProto:
    """Return a model as ONNX Runtime's static quantizer writes it, with a scale per channel of weights."""
    with tempfile.TemporaryDirectory() as folder:
        original, source, target = (Path(folder) / f"{name}.onnx" for name in ("original", "source", "target"))
        onnx.save(network.model, original)  # a model in memory would be changed
        quant_pre_process(original, source, skip_symbolic_shape=True)
        quantize_static(
            source,
            target,
            _Reader(network.calibration),
            quant_format=QuantFormat.QDQ,
            calibrate_method=method,
            per_channel=True,
            reduce_range=not _has_vnni(),
        )
        return onnx.load(target)


@cache
def _has_vnni() -> bool:
    """Return whether 8-bit products are exact; otherwise two are added in 16 bits, and weights should have 7 bits."""
    flags = Path("/proc/cpuinfo")
    return flags.exists() and "vnni" in flags.read_text(encoding="utf-8")


def _nncf_options(network: Trained) -> dict[str, Any]:
    import nncf

    is_transformer = network.name in _TRANSFORMERS
    return {
        "calibration_dataset": nncf.Dataset(network.calibration),
        "subset_size": len(network.calibration),
        "model_type": nncf.ModelType.TRANSFORMER if is_transformer else None,
    }


def _by_nncf(network: Trained) -> openvino.Model:
    import nncf

    return nncf.quantize(_openvino_model(network.model), **_nncf_options(network))


def _by_nncf_on_onnx(network: Trained) -> onnx.ModelProto:
    import nncf

    model = onnx.load_from_string(network.model.SerializeToString())  # it would be changed
    return nncf.quantize(model, **_nncf_options(network))


def _weights_by_nncf(network: Trained) -> openvino.Model:
    import nncf

    return nncf.compress_weights(_openvino_model(network.model))


def _by_quantize(network: Trained) -> onnx.ModelProto:
    return nna.quantize(network.model, network.calibration, reduced=not _has_vnni())


def _by_tune(network: Trained, max_drop: float, seconds: float) -> nna.TuneReport:
    """Return a tuned model for OpenVINO, with the samples and the metric of the network."""
    feeds, metric = list(network.samples), network.metric_of_feeds
    return nna.tune(network.model, "openvino", feeds, metric=metric, max_drop=max_drop, seconds=seconds)


def _in_session(report: nna.TuneReport) -> Run:
    session = report.session()
    return lambda feed: session.run(None, dict(feed))


def _openvino_model(model: Any) -> openvino.Model:
    is_onnx = isinstance(model, onnx.ModelProto)
    return openvino.Core().read_model(model.SerializeToString()) if is_onnx else model


def _in_openvino(model: Any, precision: str | None = None) -> Run:
    """Return a function that runs a model of ONNX or OpenVINO, at OpenVINO's default precision or another one."""
    settings = {"PERFORMANCE_HINT": "LATENCY", **({"INFERENCE_PRECISION_HINT": precision} if precision else {})}
    request = openvino.Core().compile_model(_openvino_model(model), "CPU", settings).create_infer_request()

    def run_once(feed: Feed) -> list[Array]:
        results = request.infer(dict(feed), share_inputs=True)
        return [results[number] for number in range(len(results))]

    return run_once


_BASELINE = "OpenVINO float32"
_FLOAT32_IN_OPENVINO = partial(_in_openvino, precision="f32")
_METHODS: dict[str, Quantizer] = {
    name: partial(_by_onnxruntime, method=method)
    for name, method in {
        "min-max": CalibrationMethod.MinMax,
        "entropy": CalibrationMethod.Entropy,
        "percentile": CalibrationMethod.Percentile,
    }.items()
}


def _ways(max_drop: float, seconds: float) -> dict[str, _Way]:
    """Return all ways; `max_drop` and `seconds` limit tuning."""
    return {
        "ONNX Runtime float32": _Way(_unchanged, in_onnxruntime),
        _BASELINE: _Way(_unchanged, _FLOAT32_IN_OPENVINO),
        "OpenVINO default": _Way(_unchanged, _in_openvino),
        **{f"ONNX Runtime {name}": _Way(quantizer, in_onnxruntime) for name, quantizer in _METHODS.items()},
        **{f"ONNX Runtime {name} in OpenVINO": _Way(quantizer, _in_openvino) for name, quantizer in _METHODS.items()},
        "NNCF int8": _Way(_by_nncf, _in_openvino, "nncf"),
        "NNCF int8 on ONNX": _Way(_by_nncf_on_onnx, _in_openvino, "nncf"),
        "NNCF 8-bit weights": _Way(_weights_by_nncf, _in_openvino, "nncf"),
        "nnadapter quantize in ONNX Runtime": _Way(_by_quantize, in_onnxruntime),
        "nnadapter quantize in OpenVINO": _Way(_by_quantize, _in_openvino),
        "nnadapter tune": _Way(partial(_by_tune, max_drop=max_drop, seconds=seconds), _in_session),
    }


_NAMES = tuple(_ways(0, 0))
