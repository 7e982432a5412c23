"""Regret of policies: the time of a session over the better of ONNX Runtime alone and OpenVINO alone.

Twelve networks by default (`models/networks.py`), with `--others` ten that nothing was tuned to, and with `--seed`
twelve random ones (`models/generated_networks.py`). Each repetition has a cache folder of its own, so that policy
`measured` measures again. Policy `latency` uses calibrations of the CPU and of openvino, which are made once, first.

ONNX Runtime and OpenVINO have two sessions each in every repetition, one created before ours and one after, and their
mean counts: equal sessions differ by up to 10 %, depending on where their memory lies. OpenVINO computes in float32 and
for latency, as our device does, and reads its inputs without a copy. One session of each comes first and does not
count, because the first sessions of a process are slower.

Sessions of a repetition take turns in random order. A turn begins when the threads of the session before rest (ONNX
Runtime's spin for 25 ms). Its first run does not count, and its time is the median of the runs that fit into 20 ms. The
least of a session's turns counts, because a shared machine only adds time.

The first table has medians over repetitions. `control` is the slower session of ONNX Runtime over the mean of both;
`worst` is the largest ratio of a repetition. Nothing is dropped. The last table has the predictions of the calibrations
for the CPU and for openvino alone, over the time of their sessions.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from math import exp, log
from statistics import mean, median
from typing import Any

import onnx
import onnxruntime
import openvino

import nnadapter as nna
from benchmarks.harness import Results, random_feed, select
from benchmarks.models.generated_networks import generated_networks
from benchmarks.models.networks import networks, other_networks
from nnadapter.costs import Stopwatch, calibrate, keep_calibration

_DEVICE = "openvino:CPU"
_PEERS = {"cpu": "ONNX Runtime", "openvino": "OpenVINO"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--policies", default="measured,latency", help="separated by commas")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=(), metavar="NETWORK")
    networks_of = parser.add_mutually_exclusive_group()
    networks_of.add_argument("--others", action="store_true", help="ten networks that nothing was tuned to")
    networks_of.add_argument("--seed", type=int, help="of random networks")


def run(options: argparse.Namespace, results: Results) -> None:
    """Measure every network, one after the other."""
    warnings.simplefilter("ignore")
    policies = options.policies.split(",")
    makers = _makers(options)
    names = select(options.only, makers)
    calibrations = [calibrate(device) for device in ("cpu", _DEVICE)] if "latency" in policies else []
    _repeat(makers[names[0]](), [], [], 1)  # the first sessions of a process are slower
    table, repetitions_by_name = results.table(), {}
    for name in names:
        model = makers[name]()
        repetitions_by_name[name] = [
            _repeat(model, policies, calibrations, options.turns) for _ in range(options.repetitions)
        ]
        table.add(_row(name, repetitions_by_name[name], policies))
    for policy in policies:
        every = [regret for repetitions in repetitions_by_name.values() for regret in _regrets(repetitions, policy)]
        middle = exp(mean(map(log, every)))
        results.note(f"{policy}: geometric mean {middle:.3f}, median {median(every):.3f}, worst {max(every):.3f}")
    if "latency" in policies:
        table = results.table("Predicted over measured")
        for name, repetitions in repetitions_by_name.items():
            table.add({"network": name, **{peer: _predicted_over_measured(repetitions, peer) for peer in _PEERS}})


def _makers(options: argparse.Namespace) -> Mapping[str, Callable[[], onnx.ModelProto]]:
    if options.seed is not None:
        return generated_networks(options.seed)
    return other_networks() if options.others else networks()


def _repeat(model: onnx.ModelProto, policies: Sequence[str], calibrations: Sequence[Any], turns: int) -> dict[str, Any]:
    """Return the seconds of new sessions, and what each policy chose."""
    feed, contents = random_feed(model), model.SerializeToString()
    with ExitStack() as opened, tempfile.TemporaryDirectory() as folder:
        os.environ["NNADAPTER_CACHE_DIR"] = folder
        for calibration in calibrations:
            keep_calibration(calibration)
        runs: dict[str, Callable[[], object]] = {}
        sessions: dict[str, Any] = {}

        def add_peers(number: int) -> None:
            session = onnxruntime.InferenceSession(contents, providers=["CPUExecutionProvider"])
            runs[f"cpu {number}"] = partial(session.run, None, feed)
            runs[f"openvino {number}"] = partial(_compiled_by_openvino(contents), feed, share_inputs=True)

        add_peers(1)
        for policy in policies:
            options = nna.Options(policy=policy, fallback="allow", cache_dir=False)
            session = nna.InferenceSession(contents, devices=_DEVICE, options=options)
            sessions[policy] = opened.enter_context(session)
            runs[policy] = partial(session.run, None, feed)
            runs[policy]()
        add_peers(2)
        reports = {policy: session.report() for policy, session in sessions.items()}
        watch, generator = Stopwatch(), random.Random(0)
        durations: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(turns):
            for name in generator.sample(list(runs), len(runs)):
                durations[name].append(watch.turn(runs[name]))
    return {
        "seconds": {name: min(seconds) for name, seconds in durations.items()},
        "chosen": {
            name: "+".join({calibration.device: 0 for calibration in report.segments})
            for name, report in reports.items()
        },
        "predicted": _predictions(reports["latency"]) if "latency" in reports else {},
    }


def _compiled_by_openvino(contents: bytes) -> Any:
    engine = openvino.Core()
    hints = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    return engine.compile_model(engine.read_model(contents), "CPU", hints)


def _predictions(report: Any) -> dict[str, float]:
    """Return the predicted seconds of each device alone; `everything supported` is openvino alone if it takes all."""
    seconds = {candidate.name: candidate.seconds for candidate in report.cost.candidates}
    on_openvino = seconds.get(f"all on {_DEVICE}", seconds.get("everything supported"))
    return {"cpu": report.cost.all_cpu_predicted_seconds, "openvino": on_openvino}


def _predicted_over_measured(repetitions: Sequence[Any], peer: str) -> float | None:
    ratios = [
        repetition["predicted"][peer] / _peer_seconds(repetition, peer)
        for repetition in repetitions
        if repetition["predicted"].get(peer)
    ]
    return median(ratios) if ratios else None


def _peer_seconds(repetition: Any, peer: str) -> float:
    """Return the mean of both sessions of a peer."""
    return mean(repetition["seconds"][f"{peer} {number}"] for number in (1, 2))


def _regrets(repetitions: Sequence[Any], policy: str) -> list[float]:
    return [
        repetition["seconds"][policy] / min(_peer_seconds(repetition, peer) for peer in _PEERS)
        for repetition in repetitions
    ]


def _row(name: str, repetitions: Sequence[Any], policies: Sequence[str]) -> dict[str, Any]:
    control = median(
        max(repetition["seconds"][f"cpu {number}"] for number in (1, 2)) / _peer_seconds(repetition, "cpu")
        for repetition in repetitions
    )
    row: dict[str, Any] = {"network": name}
    for peer, title in _PEERS.items():
        row[f"{title} ms"] = 1e3 * median(_peer_seconds(repetition, peer) for repetition in repetitions)
    row["control"] = control
    for policy in policies:
        regrets, chosen = (
            _regrets(repetitions, policy),
            Counter(repetition["chosen"][policy] for repetition in repetitions),
        )
        row |= {policy: median(regrets), f"{policy} worst": max(regrets)}
        row[f"{policy} chose"] = ", ".join(f"{device} {times}" for device, times in chosen.items())
    return row
