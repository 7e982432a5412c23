"""Regret of policies: what a session takes over the better of ONNX Runtime alone and OpenVINO alone.

    python benchmarks/policies.py [--policies measured,latency] [--repetitions 5] [--turns 5] [--only NAME...]
        [--others | --seed N] [--json FILE] [--told FILE...]

Twelve networks (`benchmarks/networks.py`), with `--others` ten more, of other kinds (`benchmarks/other_networks.py`),
with `--seed` twelve that are drawn by chance (`benchmarks/generated_networks.py`). What was written to files by
`--json`, a few networks at a time, `--told` sums up without measuring anything.
Each repetition has a cache folder of its own, so `measured` measures anew; `latency` goes by calibrations of the CPU
and of openvino, which are made once for all, first.

Of ONNX Runtime and of OpenVINO there are two sessions each in every repetition, one made before ours and one behind,
and their mean counts: two sessions made alike differ by up to 10 %, by where their memory came to lie. OpenVINO
computes in float32 and for latency, as our device does, and gets its inputs without a copy. One session of each, which
does not count, comes before everything: the first ones of a process are slower.

Sessions of a repetition take turns in an order drawn by chance. A turn begins when the threads of the one before rest
(ONNX Runtime's spin for 25 ms), its first run does not count, and its figure is the median of the runs that fit into 20
ms. The least of a session's turns counts: a shared machine only adds time.

The table has medians over repetitions; `control` is the slower session of ONNX Runtime over both; `worst` is
the greatest quotient of a repetition. Nothing is dropped. Behind it stands what the calibrations predict of the CPU and
of openvino alone, over what their sessions took.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from math import exp, log
from pathlib import Path
from statistics import mean, median
from typing import Any

import onnx
import onnxruntime
import openvino

sys.path.insert(0, str(Path(__file__).parents[1]))

import nnadapter as nna
from benchmarks.choosing import named
from benchmarks.models.generated_networks import generated_networks
from benchmarks.models.networks import networks, other_networks
from benchmarks.timing import table
from nnadapter.costs.calibrating import calibrate
from nnadapter.costs.calibration_files import keep_calibration
from nnadapter.costs.stopwatch import Stopwatch
from nnadapter.offering.feeds import random_feed

_DEVICE = "openvino:CPU"
_ALONE = ("cpu", "openvino")
_Makers = Mapping[str, Callable[[], onnx.ModelProto]]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", help="with commas (default: measured,latency; with --told, those there)")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--others", action="store_true")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--told", type=Path, nargs="*")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    policies = arguments.policies.split(",") if arguments.policies else []
    if arguments.told:
        rows = [row for file in arguments.told for row in json.loads(file.read_text())]
        kept = [each["chosen"] for row in rows for each in row["repetitions"]]
        if not kept:
            parser.error("the files that --told names hold no rows")
        _print(rows, named(parser, policies, [policy for policy in kept[0] if all(policy in each for each in kept)]))
        return
    policies = policies or ["measured", "latency"]
    makers = _networks(arguments.others, arguments.seed)
    chosen = {name: makers[name] for name in named(parser, arguments.only or (), makers)}
    rows = _measured(chosen, policies, arguments)
    _print(rows, policies)


def _networks(others: bool, seed: int | None) -> _Makers:
    if seed is not None:
        return generated_networks(seed)
    return other_networks() if others else networks()


def _measured(makers: _Makers, policies: Sequence[str], arguments: argparse.Namespace) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    calibrations = [calibrate(device) for device in ("cpu", _DEVICE)] if "latency" in policies else []
    for name, make in makers.items():
        model = make()
        if not rows:
            repetition(model, [], [], 1)
        found = [repetition(model, policies, calibrations, arguments.turns) for _ in range(arguments.repetitions)]
        rows.append({"model": name, "repetitions": found})
        print(rows[-1]["model"], [_regrets(found, policy) for policy in policies], file=sys.stderr, flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(rows, indent=2))
    return rows


def _print(rows: Sequence[Any], policies: Sequence[str]) -> None:
    head = ["model", "ONNX Runtime ms", "control", "OpenVINO ms"]
    print(table([*head, *(f"{policy}{of}" for policy in policies for of in ("", " worst", " chose"))], [
        _cells(row, policies) for row in rows
    ]))  # fmt: skip
    for policy in policies:
        every = [each for row in rows for each in _regrets(row["repetitions"], policy)]
        middle = exp(mean(map(log, every)))
        print(f"{policy}: geometric mean {middle:.3f}, median {median(every):.3f}, worst {max(every):.3f}")
    if "latency" in policies:
        print(table(["model", "cpu: predicted over measured", "openvino: predicted over measured"], _predicted(rows)))


def repetition(model: onnx.ModelProto, policies: Sequence[str], calibrations: Sequence[Any], turns: int) -> Any:
    """Return seconds of every session, made anew, and what each policy chose."""
    feed, contents = random_feed(model), model.SerializeToString()
    with ExitStack() as opened, tempfile.TemporaryDirectory() as folder:
        os.environ["NNADAPTER_CACHE_DIR"] = folder
        for each in calibrations:
            keep_calibration(each)
        runs: dict[str, Callable[[], object]] = {}
        sessions: dict[str, Any] = {}

        def peers(number: int) -> None:
            session = onnxruntime.InferenceSession(contents, providers=["CPUExecutionProvider"])
            runs[f"cpu {number}"] = partial(session.run, None, feed)
            runs[f"openvino {number}"] = partial(_compiled(contents), feed, share_inputs=True)

        peers(1)
        for policy in policies:
            options = nna.Options(policy=policy, fallback="allow", cache_dir=False)
            session = nna.InferenceSession(contents, devices=_DEVICE, options=options)
            sessions[policy] = opened.enter_context(session)
            runs[policy] = partial(session.run, None, feed)
            runs[policy]()
        peers(2)
        reports = {policy: session.report() for policy, session in sessions.items()}
        watch, chance = Stopwatch(), random.Random(0)
        taken: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(turns):
            for name in chance.sample(list(runs), len(runs)):
                taken[name].append(watch.turn(runs[name]))
    return {
        "seconds": {name: min(seconds) for name, seconds in taken.items()},
        "chosen": {name: "+".join({each.device: 0 for each in report.segments}) for name, report in reports.items()},
        "predicted": _predictions(reports["latency"]) if "latency" in reports else {},
    }


def _compiled(contents: bytes) -> Any:
    engine = openvino.Core()
    hints = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    return engine.compile_model(engine.read_model(contents), "CPU", hints)


def _predictions(report: Any) -> dict[str, float]:
    """What a report predicts of each device alone; everything supported is openvino alone where nothing is refused."""
    seconds = {each.name: each.seconds for each in report.cost.candidates}
    whole = seconds.get(f"all on {_DEVICE}", seconds.get("everything supported"))
    return {"cpu": report.cost.all_cpu_predicted_seconds, "openvino": whole}


def _predicted(rows: Sequence[Any]) -> list[list[str]]:
    return [
        [row["model"], *(_quotient(row["repetitions"], name) for name in ("cpu", "openvino"))] for row in rows
    ]  # fmt: skip


def _quotient(found: Sequence[Any], name: str) -> str:
    quotients = [each["predicted"][name] / _typical(each, name) for each in found if each["predicted"].get(name)]
    return f"{median(quotients):.2f}" if quotients else ""


def _typical(each: Any, name: str) -> float:
    """The mean of both sessions of a peer."""
    return mean(each["seconds"][f"{name} {number}"] for number in (1, 2))


def _regrets(found: Sequence[Any], policy: str) -> list[float]:
    return [round(each["seconds"][policy] / min(_typical(each, name) for name in _ALONE), 3) for each in found]


def _cells(row: Any, policies: Sequence[str]) -> list[str]:
    found = row["repetitions"]
    middle = {name: median(_typical(each, name) for each in found) for name in _ALONE}
    control = median(
        max(each["seconds"][f"cpu {number}"] for number in (1, 2)) / _typical(each, "cpu") for each in found
    )
    cells = [row["model"], f"{middle['cpu'] * 1e3:.3f}", f"{control:.3f}", f"{middle['openvino'] * 1e3:.3f}"]
    for policy in policies:
        regrets, chosen = _regrets(found, policy), Counter(each["chosen"][policy] for each in found)
        cells += [f"{median(regrets):.3f}", f"{max(regrets):.3f}"]
        cells.append(", ".join(f"{device} {times}" for device, times in chosen.items()))
    return cells


if __name__ == "__main__":
    main()
