"""Sessions among random faults: how many results are right, how fast runs are, and which faults came.

10,000 runs by default, on three devices that share the nodes of a model: fake_npu, acme_c (a driver in C, compiled by
this machine's C compiler) and openvino. 5 % of the calls of each have a fault. Results are compared with ONNX
Runtime's. With `--rests`, a device rests after a failure, as it does by default, and the CPU runs its steps meanwhile.
A run takes less than a millisecond and a rest a second, so resting devices have few runs and few faults.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser

import nnadapter as nna
from benchmarks.harness import Results
from nnadapter.drivers.faulty import Fault, Script
from nnadapter.engine import plan_devices
from tests.c_compiler import acme_among_devices

DEVICES = ("fake_npu", "acme_c", "openvino")
TOLERANCE = 1e-4
_KINDS: tuple[dict[str, Any], ...] = (
    {"kind": "fail", "error": "TransientError"},
    {"kind": "fail"},
    {"kind": "raise", "error": "MemoryError"},
    {"kind": "out_of_memory"},
    {"kind": "device_lost", "seconds": 0.0},
    {"kind": "wrong_count"},
    {"kind": "wrong_shape"},
    {"kind": "wrong_dtype"},
    {"kind": "slow", "seconds": 0.001},
    {"kind": "hang", "seconds": 0.005},
)
"""Faults that are noticed or only cost time, all equally likely."""
_DIFFERENT = 50


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rests", action="store_true")


def run(options: argparse.Namespace, results: Results) -> None:
    """Run among faults."""
    outcome = chaos(options.count, threads=options.threads, seed=options.seed, rests=options.rests)
    columns = ("runs", "right", "runs per second", "runs per second without faults", "devices")
    results.table().add({column: outcome[column] for column in columns})
    for title, counts in (("device", "steps"), ("fault", "faults"), ("incident", "incidents")):
        table = results.table()
        for name, count in sorted(outcome[counts].items()):
            table.add({title: name, counts if counts == "steps" else "count": count})
    if outcome["right"] != outcome["runs"]:
        results.fail(f"{outcome['runs'] - outcome['right']} results are wrong")


def chaos(count: int, *, threads: int = 1, chance: float = 0.05, seed: int = 0, rests: bool = False) -> dict[str, Any]:
    """Run a session `count` times among faults, and return the outcome.

    Args:
        count: number of runs.
        threads: how many run at the same time.
        chance: probability of a fault, for each run of each program.
        seed: of the faults.
        rests: whether devices rest after a failure.
    """
    first_pause, plan_devices.FIRST_PAUSE = plan_devices.FIRST_PAUSE, plan_devices.FIRST_PAUSE if rests else 0.0
    try:
        return _chaos(count, threads, chance, seed)
    finally:
        plan_devices.FIRST_PAUSE = first_pause


def _chaos(count: int, threads: int, chance: float, seed: int) -> dict[str, Any]:
    fed = _feeds(_DIFFERENT)
    expected = _right(fed)
    with tempfile.TemporaryDirectory() as folder, acme_among_devices(Path(folder)), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # incidents are counted instead
        log = str(Path(folder, "log"))
        quiet = _timed(_devices("", 0.0, seed), fed, expected, count // 10, threads)
        noisy = _timed(_devices(log, chance, seed), fed, expected, count, threads)
        fault_counts = Counter(json.loads(line).get("kind", "") for line in Path(log).read_text().splitlines())
    del fault_counts[""]
    return {**noisy, "runs per second without faults": quiet["runs per second"], "faults": dict(fault_counts)}


def _devices(log: str, chance: float, seed: int) -> list[Any]:
    """Return every device with its own script."""
    faults = tuple(Fault(phase="run", probability=chance / len(_KINDS), **kind) for kind in _KINDS)
    script = Script(faults=faults, log=log).to_toml() if chance else ""
    return [(f"faulty:{name}", {"script": script, "seed": seed + place}) for place, name in enumerate(DEVICES)]


def _timed(devices: list[Any], fed: list[Any], expected: list[Any], count: int, threads: int) -> dict[str, Any]:
    pins = "".join(
        f'[[pin]]\ndevice = "faulty:{DEVICES[node * len(DEVICES) // _NODES]}"\nname = "n{node}"\n'
        for node in range(_NODES)
    )
    ran = Counter[str]()
    with nna.InferenceSession(_model(), devices=devices, options=nna.Options(rules=pins)) as session:

        def run(number: int) -> bool:
            place = number % len(fed)
            results, provenance = session.run(None, fed[place]), session.provenance
            assert provenance is not None, "it ran"
            ran.update([step.device for step in provenance.steps])
            return _are_right(results, expected[place], TOLERANCE)

        run(0)
        started = time.perf_counter()
        with ThreadPoolExecutor(threads) as pool:
            good = sum(pool.map(run, range(count)))
        seconds = time.perf_counter() - started
        report = session.report()
    on = sorted({segment.device for segment in report.segments})
    counts = {f"{device} {kind}": n for device, kinds in report.incident_counts.items() for kind, n in kinds.items()}
    return {
        "runs": count,
        "right": good,
        "runs per second": round(count / seconds),
        "devices": on,
        "incidents": counts,
        "steps": dict(ran),
    }


_MODEL = """<ir_version: 8, opset_import: ["": 17]>
chaos (float[8, 16] x) => (float[8, 16] y, float[8, 16] z) <float[16, 16] w = {VALUES}> {
    [n0] a = MatMul(x, w)
    [n1] b = Relu(a)
    [n2] c = Add(b, x)
    [n3] d = MatMul(c, w)
    [n4] e = Relu(d)
    [n5] f = Add(e, c)
    [n6] y = MatMul(f, w)
    [n7] z = Relu(f)
}"""
_NODES = 8


def _model() -> onnx.ModelProto:
    """Return two blocks and an end, of operations that every device takes."""
    values = np.random.default_rng(1).standard_normal(256) / 8
    return onnx.parser.parse_model(_MODEL.replace("VALUES", ", ".join(f"{value:.6f}" for value in values)))


def _feeds(count: int) -> list[dict[str, np.ndarray]]:
    """Return different feeds, the same each time."""
    random = np.random.default_rng(2)
    return [{"x": random.standard_normal((8, 16), np.float32)} for _ in range(count)]


def _right(fed: Sequence[dict[str, np.ndarray]]) -> list[list[np.ndarray]]:
    """Return the right results, by ONNX Runtime."""
    with nna.InferenceSession(_model(), devices="cpu") as session:
        return [session.run(None, feed) for feed in fed]


def _are_right(results: Sequence[np.ndarray], expected: Sequence[np.ndarray], tolerance: float) -> bool:
    """Return whether results are right within the precision of the devices."""
    return len(results) == len(expected) and all(
        got.shape == right.shape and np.allclose(got, right, rtol=tolerance, atol=tolerance)
        for got, right in zip(results, expected, strict=True)
    )
