"""Streams and parallel branches compared with sequential runs, over devices with a known time.

The devices sleep for a set time per operation (`tests/latency_driver.py`), one operation at a time, so that the figures
are about the pipeline and not the machine. Results are compared bit by bit with plain runs.

- Two devices with the same work: a stream compared with runs.
- Ten generated pipelines on two and three devices of different speeds, which take different operations, with policy
  `throughput`. The bound is the least work of the busiest device over all placements.
- Two branches on two devices, which run at the same time if the plan expects a gain.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser

import nnadapter as nna
from benchmarks.harness import Results, interleaved, seconds_of

OPERATIONS = {"RELU": "Relu", "NEG": "Neg", "ABS": "Abs", "SIGN": "Sign"}
Devices = list[tuple[str, dict[str, Any]]]


_BRANCHES = """<ir_version: 10, opset_import: ["" : 17]> g (float[8, 8] x) => (float[8, 8] y) {
    a = Relu(x) b = Neg(x) y = Sub(a, b)
}"""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--items", type=int, default=60, help="inputs of a stream")
    parser.add_argument("--rounds", type=int, default=3, help="of the first table")
    parser.add_argument("--runs", type=int, default=30, help="of each pair of branches")


def run(options: argparse.Namespace, results: Results) -> None:
    """Compare streams with runs, streams with the bound, and measure branches."""
    _add_latency_driver()
    equal: Devices = [
        (f"latency:{at}", {"operation_ms": 5.0, "only": only}) for at, only in enumerate((["RELU"], ["NEG"]))
    ]
    table = results.table("Two equal devices")
    for segments in (2, 4):
        operations = ["RELU", "NEG"] * (segments // 2)
        table.add({"segments": segments, **_beside_runs(operations, equal, options.items, options.rounds)})
    table = results.table("Generated pipelines")
    for seed in range(10):
        table.add({"pipeline": seed, **_beside_bound(seed, options.items)})
    table = results.table("Two branches")
    for first, second in ((5.0, 5.0), (5.0, 2.0), (1.0, 1.0), (0.1, 0.1), (0.0, 5.0)):
        table.add(_branches(first, second, options.runs))


def _add_latency_driver() -> None:
    """Add the driver of the tests to the devices, as an installed package would."""
    site = Path(tempfile.mkdtemp())
    folder = site / "latency-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: latency\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[nnadapter.drivers]\nlatency = tests.latency_driver:LatencyDriver\n")
    sys.path.insert(0, str(site))


def _beside_runs(operations: Sequence[str], devices: Devices, items: int, rounds: int) -> dict[str, Any]:
    """Return the medians per input of runs and of a stream."""
    feeds = _feeds(items)
    with nna.InferenceSession(_chain(operations), devices=devices) as session:
        serial = [session.run(None, feed)[0] for feed in feeds]
        streamed = [result for (result,) in session.stream(feeds)]
        candidates: dict[str, Callable[[], object]] = {
            "runs": lambda: [session.run(None, feed) for feed in feeds],
            "stream": lambda: list(session.stream(feeds)),
        }
        durations = interleaved(candidates, rounds)
    return {
        "runs ms": 1e3 * durations["runs"] / items,
        "stream ms": 1e3 * durations["stream"] / items,
        "ratio": durations["runs"] / durations["stream"],
        "equal": _are_equal(serial, streamed),
    }


def _beside_bound(seed: int, items: int) -> dict[str, Any]:
    """Return the time per input of a stream with policy `throughput`, and the bound of the longest stage."""
    generator = random.Random(seed)
    operations = generator.choices(list(OPERATIONS), k=generator.randint(7, 10))
    devices: Devices = []
    for at in range(generator.choice((2, 3))):
        only = [] if at == 0 else generator.sample(list(OPERATIONS), k=3)  # the first takes everything
        devices.append((f"latency:{at}", {"operation_ms": float(generator.randint(2, 6)), "only": only}))
    bound = _least_load(operations, devices)
    feeds = _feeds(items)
    options = nna.Options(policy="throughput", fallback="forbid")
    with nna.InferenceSession(_chain(operations), devices=devices, options=options) as session:
        serial = [session.run(None, feed)[0] for feed in feeds]
        streamed: list[Any] = []
        seconds = seconds_of(lambda: streamed.extend(result for (result,) in session.stream(feeds))) / items
    return {
        "devices": ", ".join(f"{options['operation_ms']:g} ms" for _, options in devices),
        "operations": len(operations),
        "bound ms": 1e3 * bound,
        "stream ms": 1e3 * seconds,
        "share of the bound": bound / seconds,
        "equal": _are_equal(serial, streamed),
    }


def _branches(first: float, second: float, runs: int) -> dict[str, Any]:
    """Return medians of runs of two branches that take so many milliseconds."""
    devices = [
        ("latency:0", {"operation_ms": first, "only": ["RELU"]}),
        ("latency:1", {"operation_ms": second, "only": ["NEG"]}),
    ]
    model = onnx.parser.parse_model(_BRANCHES)
    feed = {"x": np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)}
    (expected,) = nna.InferenceSession(model, devices="cpu").run(None, feed)
    with nna.InferenceSession(model, devices=devices) as session:
        (result,) = session.run(None, feed)
        entire, steps = [], []
        for _ in range(runs):
            entire.append(seconds_of(lambda: session.run(None, feed)))
            steps.append([step.seconds for step in session.provenance.steps])
        is_parallel = bool(session.report().boundaries.threaded_segments)
    return {
        "branches": f"{first:g} and {second:g} ms",
        "sum of steps ms": 1e3 * float(np.median([sum(pair) for pair in steps])),
        "longer branch ms": 1e3 * float(np.median([max(pair) for pair in steps])),
        "run ms": 1e3 * float(np.median(entire)),
        "at the same time": is_parallel,
        "equal": np.array_equal(result, expected),
    }


def _least_load(operations: Sequence[str], devices: Devices) -> float:
    """Return the seconds of the busiest device in the best of all placements."""
    able = [
        [at for at, (_, options) in enumerate(devices) if not options["only"] or operation in options["only"]]
        for operation in operations
    ]
    seconds = np.array([options["operation_ms"] / 1e3 for _, options in devices])
    placements = np.array(list(product(*able)))
    loads = np.stack([(placements == at).sum(axis=1) * seconds[at] for at in range(len(devices))])
    return float(loads.max(axis=0).min())


def _chain(operations: Sequence[str]) -> onnx.ModelProto:
    """Return a model with the operations one after the other."""
    lines = " ".join(f"v{at + 1} = {OPERATIONS[operation]} (v{at})" for at, operation in enumerate(operations))
    shape = "float[8, 8]"
    head = '<ir_version: 10, opset_import: ["" : 17]>'
    model: onnx.ModelProto = onnx.parser.parse_model(
        f"{head} g ({shape} v0) => ({shape} v{len(operations)}) {{ {lines} }}"
    )
    return model


def _feeds(count: int) -> list[dict[str, Any]]:
    """Return inputs by seed."""
    return [{"v0": np.random.default_rng(seed).standard_normal((8, 8)).astype(np.float32)} for seed in range(count)]


def _are_equal(serial: Sequence[Any], streamed: Sequence[Any]) -> bool:
    """Return whether all results are equal, bit by bit."""
    return len(serial) == len(streamed) and all(map(np.array_equal, serial, streamed))
