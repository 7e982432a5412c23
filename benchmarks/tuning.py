"""Tuning of random networks on fake_npu's simulated clock: time, distance to the lower bound, and cost of the search.

No node may run on the CPU, because its real time cannot be compared with simulated time.

The gap is that of the additive model: the predicted time of the chosen configuration over the lower bound at the same
noise, in percent. Times are simulated, so they are the same on every machine; those of the search are real.
"""

from __future__ import annotations

import argparse
import statistics

import nnadapter as nna
from benchmarks.harness import Results
from benchmarks.models.generated_networks import generated_networks
from nnadapter.candidates.random_feeds import random_feed

_NOT_ON_THE_CPU = nna.Rules(bans=(nna.Ban(device="cpu", name="*"),))
_NPU = ("fake_npu", {"clock": "simulated", "peak_gflops": 20.0, "bandwidth_gbs": 500.0, "launch_us": 1.0})


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--networks", type=int, default=20, help="number of networks")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--samples", type=int, default=10)
    parser.add_argument("--sqnr", type=float, default=35.0, help="budget in dB")


def run(options: argparse.Namespace, results: Results) -> None:
    """Tune each network."""
    table, gaps = results.table(), []
    for name, make in generated_networks(options.seed, options.networks).items():
        model = make()
        data = [random_feed(model, seed=seed) for seed in range(options.samples)]
        try:
            report = nna.tune(model, [_NPU], data, max_drop=options.sqnr, rules=_NOT_ON_THE_CPU)
        except nna.errors.NNAdapterError as error:
            results.note(f"{name}: {error}")
            continue
        gaps.append(100 * report.gap)
        table.add(
            {
                "network": name,
                "units": len(report.units),
                "quantized": sum(unit.is_quantized for unit in report.units),
                "times as fast as float32": report.float_time / report.time,
                "SQNR dB": report.achieved,
                "gap %": gaps[-1],
                "evaluations": report.evaluations,
                "compiled": report.trials,
                "s": report.seconds,
            }
        )
    if gaps:
        results.note(f"gap: median {statistics.median(gaps):.1f} %, largest {max(gaps):.1f} %")
