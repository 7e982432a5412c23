"""Streams beside runs one after the other, over devices whose time is known, and how near policy `throughput` comes.

    python benchmarks/stream.py [--items 60] [--rounds 3]

The devices sleep for as long as they say (`tests/latency_driver.py`), one thing at a time, so that what is measured is
the pipeline and not the machine. First two devices with the same to do. Then ten generated pipelines on two and three
devices of different speeds, which take different operations: the bound is the least that the busiest device can have to
do, over all placements. Results are compared bit by bit with those of runs one after the other.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser

sys.path.insert(0, str(Path(__file__).parents[1]))

import nnadapter as nna
from benchmarks.timing import interleaved, table
from nnadapter.drivers import registry

OPERATIONS = {"RELU": "Relu", "NEG": "Neg", "ABS": "Abs", "SIGN": "Sign"}
Devices = list[tuple[str, dict[str, Any]]]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    offer_latency_driver()
    even: Devices = [
        (f"latency:{at}", {"operation_ms": 5.0, "only": only}) for at, only in enumerate((["RELU"], ["NEG"]))
    ]
    rows = [
        beside_runs(f"{blocks} segments", ["RELU", "NEG"] * (blocks // 2), even, arguments.items, arguments.rounds)
        for blocks in (2, 4)
    ]
    print(table(["two devices alike", "runs ms", "stream ms", "times as fast", "equal"], rows))
    print()
    rows = [beside_bound(seed, arguments.items) for seed in range(10)]
    print(table(["pipeline", "devices", "operations", "bound ms", "stream ms", "share of the bound", "equal"], rows))


def offer_latency_driver() -> None:
    """Have the driver of the tests among the devices, as one that is installed."""
    site = Path(tempfile.mkdtemp())
    folder = site / "latency-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: latency\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[nnadapter.drivers]\nlatency = tests.latency_driver:LatencyDriver\n")
    sys.path.insert(0, str(site))
    registry.refresh()


def beside_runs(name: str, operations: Sequence[str], devices: Devices, items: int, rounds: int) -> list[object]:
    """One row: medians per input, and how many times as fast a stream is."""
    feeds = feeds_of(items)
    with nna.InferenceSession(chain(operations), devices=devices) as session:
        serial = [session.run(None, feed)[0] for feed in feeds]
        streamed = [result for (result,) in session.stream(feeds)]
        runs: dict[str, Callable[[], object]] = {
            "runs": lambda: [session.run(None, feed) for feed in feeds],
            "stream": lambda: list(session.stream(feeds)),
        }
        taken = interleaved(runs, rounds)
    milliseconds = [f"{taken[each] / items * 1e3:.2f}" for each in ("runs", "stream")]
    return [name, *milliseconds, f"{taken['runs'] / taken['stream']:.2f}", alike(serial, streamed)]


def beside_bound(seed: int, items: int) -> list[object]:
    """One row: what a stream by policy `throughput` takes per input, and the least that the longest stage can take."""
    chance = random.Random(seed)
    operations = chance.choices(list(OPERATIONS), k=chance.randint(7, 10))
    devices: Devices = []
    for at in range(chance.choice((2, 3))):
        only = [] if at == 0 else chance.sample(list(OPERATIONS), k=3)  # one takes everything
        devices.append((f"latency:{at}", {"operation_ms": float(chance.randint(2, 6)), "only": only}))
    bound = least_load(operations, devices)
    feeds = feeds_of(items)
    options = nna.Options(policy="throughput", fallback="forbid")
    with nna.InferenceSession(chain(operations), devices=devices, options=options) as session:
        serial = [session.run(None, feed)[0] for feed in feeds]
        started = time.perf_counter()
        streamed = [result for (result,) in session.stream(feeds)]
        seconds = (time.perf_counter() - started) / items
    said = ", ".join(f"{options['operation_ms']:g} ms" for _, options in devices)
    found = [f"{bound * 1e3:.2f}", f"{seconds * 1e3:.2f}", f"{bound / seconds:.2f}", alike(serial, streamed)]
    return [seed, said, len(operations), *found]


def least_load(operations: Sequence[str], devices: Devices) -> float:
    """Seconds of the busiest device in the best of all placements."""
    able = [
        [at for at, (_, options) in enumerate(devices) if not options["only"] or each in options["only"]]
        for each in operations
    ]
    seconds = np.array([options["operation_ms"] / 1e3 for _, options in devices])
    placements = np.array(list(product(*able)))
    loads = np.stack([(placements == at).sum(axis=1) * seconds[at] for at in range(len(devices))])
    return float(loads.max(axis=0).min())


def chain(operations: Sequence[str]) -> onnx.ModelProto:
    """The operations one after the other."""
    lines = " ".join(f"v{at + 1} = {OPERATIONS[each]} (v{at})" for at, each in enumerate(operations))
    shape = "float[8, 8]"
    head = '<ir_version: 10, opset_import: ["" : 17]>'
    model: onnx.ModelProto = onnx.parser.parse_model(
        f"{head} g ({shape} v0) => ({shape} v{len(operations)}) {{ {lines} }}"
    )
    return model


def feeds_of(count: int) -> list[dict[str, Any]]:
    """Inputs by seed."""
    return [{"v0": np.random.default_rng(seed).standard_normal((8, 8)).astype(np.float32)} for seed in range(count)]


def alike(serial: Sequence[Any], streamed: Sequence[Any]) -> str:
    """Whether all results are equal, bit by bit."""
    return "yes" if all(map(np.array_equal, serial, streamed)) and len(serial) == len(streamed) else "NO"


if __name__ == "__main__":
    main()
