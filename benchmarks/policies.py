"""Regret of policies: what a session takes over the better of ONNX Runtime alone and OpenVINO alone.

    python benchmarks/policies.py [--policies measured,latency] [--repetitions 5] [--turns 5] [--only NAME...]
        [--json FILE]

Twelve networks (`benchmarks/networks.py`). Each repetition has a cache folder of its own, so `measured` measures anew;
`latency` goes by calibrations of the CPU and of openvino, which are made once for all, first. Sessions of a repetition
take turns in an order drawn by chance. A turn begins when the threads of the one before rest (ONNX Runtime's spin for
25 ms), its first run does not count, and its figure is the median of the runs that fit into 20 ms. The least of a
repetition's turns counts: a shared machine only adds time. `control` is a second session of ONNX Runtime alone.

The table has medians over repetitions; `worst` is the greatest quotient of a repetition. Nothing is dropped.
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
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from math import exp, log
from pathlib import Path
from statistics import mean, median
from typing import Any

import onnx
import onnxruntime

sys.path.insert(0, str(Path(__file__).parents[1]))  # before this script's folder, which holds a partition.py too

import nnadapter as nna
from benchmarks.networks import networks
from benchmarks.timing import table
from nnadapter.costs.calibrating import calibrate
from nnadapter.costs.calibration_files import keep_calibration
from nnadapter.costs.stopwatch import Stopwatch
from nnadapter.offering.feeds import random_feed

_DEVICE = "openvino:CPU"
_ALONE = ("cpu", "openvino")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", default="measured,latency")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    policies, rows = arguments.policies.split(","), []
    calibrations = [calibrate(device) for device in ("cpu", _DEVICE)] if "latency" in policies else []
    for name, make in networks().items():
        if arguments.only and name not in arguments.only:
            continue
        model = make()
        found = [repetition(model, policies, calibrations, arguments.turns) for _ in range(arguments.repetitions)]
        rows.append({"model": name, "repetitions": found})
        print(rows[-1]["model"], [_regrets(found, policy) for policy in policies], file=sys.stderr, flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(rows, indent=2))
    head = ["model", "ONNX Runtime ms", "control", "OpenVINO ms"]
    print(table([*head, *(f"{policy}{of}" for policy in policies for of in ("", " worst", " chose"))], [
        _cells(row, policies) for row in rows
    ]))  # fmt: skip
    for policy in policies:
        every = [each for row in rows for each in _regrets(row["repetitions"], policy)]
        middle = exp(mean(map(log, every)))
        print(f"{policy}: geometric mean {middle:.3f}, median {median(every):.3f}, worst {max(every):.3f}")


def repetition(model: onnx.ModelProto, policies: Sequence[str], calibrations: Sequence[Any], turns: int) -> Any:
    """Return seconds of every session, made anew, and what each policy chose."""
    feed, contents = random_feed(model), model.SerializeToString()
    with ExitStack() as opened, tempfile.TemporaryDirectory() as folder:
        os.environ["NNADAPTER_CACHE_DIR"] = folder
        for each in calibrations:
            keep_calibration(each)
        sessions: dict[str, Any] = {
            name: onnxruntime.InferenceSession(contents, providers=["CPUExecutionProvider"])
            for name in ("cpu", "control")
        }
        for name, policy in (("openvino", "priority"), *((each, each) for each in policies)):
            options = nna.Options(policy=policy, fallback="allow")
            session = nna.InferenceSession(contents, devices=_DEVICE, options=options)
            sessions[name] = opened.enter_context(session)
            session.run(None, feed)
        chosen = {policy: sessions[policy].report() for policy in policies}
        watch, chance = Stopwatch(), random.Random(0)
        taken: dict[str, list[float]] = {name: [] for name in sessions}
        for _ in range(turns):
            for name in chance.sample(list(sessions), len(sessions)):
                taken[name].append(watch.turn(partial(sessions[name].run, None, feed)))
    return {
        "seconds": {name: min(seconds) for name, seconds in taken.items()},
        "chosen": {name: "+".join({each.device: 0 for each in report.segments}) for name, report in chosen.items()},
    }


def _regrets(found: Sequence[Any], policy: str) -> list[float]:
    return [
        round(each["seconds"][policy] / min(each["seconds"][name] for name in _ALONE), 3) for each in found
    ]  # fmt: skip


def _cells(row: Any, policies: Sequence[str]) -> list[str]:
    found = row["repetitions"]
    middle = {name: median(each["seconds"][name] for each in found) for name in found[0]["seconds"]}
    cells = [row["model"], f"{middle['cpu'] * 1e3:.3f}", f"{middle['control'] / middle['cpu']:.3f}"]
    cells.append(f"{middle['openvino'] * 1e3:.3f}")
    for policy in policies:
        regrets, chosen = _regrets(found, policy), Counter(each["chosen"][policy] for each in found)
        cells += [f"{median(regrets):.3f}", f"{max(regrets):.3f}"]
        cells.append(", ".join(f"{device} {times}" for device, times in chosen.items()))
    return cells


if __name__ == "__main__":
    main()
