"""Sessions among faults that come by chance: how many results are right, how fast, and what happened.

    python benchmarks/chaos.py runs            # 10,000 runs on three devices, 5 % of the calls of each with a fault
    python benchmarks/chaos.py runs --count 500 --threads 4

    python benchmarks/chaos.py runs --rests    # devices that failed rest, as they do: the CPU has their steps meanwhile

Devices are fake_npu, acme_c (a driver in C, by the C compiler of this machine) and openvino, each with its share of the
nodes and `faulty` around it. Results are held to ONNX Runtime's. A run takes less than a millisecond and a rest a
second, so devices that rest would have few of the runs, and few faults.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
import nnadapter as nna
from benchmarks.chaos_model import NODES, are_right, feeds, model, right
from benchmarks.timing import table
from nnadapter.drivers.faulty import Fault, Script
from nnadapter.running import resting
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
"""Faults that are noticed, or cost time alone; each is as likely as another."""
_DIFFERENT = 50


def chaos(count: int, *, threads: int = 1, chance: float = 0.05, seed: int = 0, rests: bool = False) -> dict[str, Any]:
    """Run a session `count` times among faults, and return what came of it.

    Args:
        count: how many runs.
        threads: that run at once.
        chance: of a fault, for each run of each program.
        seed: of the faults.
        rests: devices that failed rest for a while.
    """
    first_pause, resting.FIRST_PAUSE = resting.FIRST_PAUSE, resting.FIRST_PAUSE if rests else 0.0
    try:
        return _chaos(count, threads, chance, seed)
    finally:
        resting.FIRST_PAUSE = first_pause


def _chaos(count: int, threads: int, chance: float, seed: int) -> dict[str, Any]:
    fed = feeds(_DIFFERENT)
    expected = right(fed)
    with tempfile.TemporaryDirectory() as folder, acme_among_devices(Path(folder)), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one for each cause; incidents are counted instead
        log = str(Path(folder, "log"))
        quiet = _timed(_devices("", 0.0, seed), fed, expected, count // 10, threads)
        noisy = _timed(_devices(log, chance, seed), fed, expected, count, threads)
        made = Counter(json.loads(line).get("kind", "") for line in Path(log).read_text().splitlines())
    del made[""]
    return {**noisy, "without faults": quiet["runs per second"], "faults": dict(made)}


def _devices(log: str, chance: float, seed: int) -> list[Any]:
    """Every device, with a script of its own."""
    faults = tuple(Fault(phase="run", probability=chance / len(_KINDS), **kind) for kind in _KINDS)
    script = Script(faults=faults, log=log).to_toml() if chance else ""
    return [(f"faulty:{name}", {"script": script, "seed": seed + place}) for place, name in enumerate(DEVICES)]


def _timed(devices: list[Any], fed: list[Any], expected: list[Any], count: int, threads: int) -> dict[str, Any]:
    pins = "".join(
        f'[[pin]]\ndevice = "faulty:{DEVICES[node * len(DEVICES) // NODES]}"\nname = "n{node}"\n'
        for node in range(NODES)
    )
    ran = Counter[str]()
    with nna.InferenceSession(model(), devices=devices, options=nna.Options(rules=pins)) as session:

        def run(number: int) -> bool:
            place = number % len(fed)
            results, provenance = session.run(None, fed[place]), session.provenance
            assert provenance is not None, "it ran"
            ran.update([step.device for step in provenance.steps])
            return are_right(results, expected[place], TOLERANCE)

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
        "ran": dict(ran),
    }


def main() -> None:
    """Print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["runs"])
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rests", action="store_true")
    arguments = parser.parse_args()
    came = chaos(arguments.count, threads=arguments.threads, seed=arguments.seed, rests=arguments.rests)
    for key in ("runs", "right", "runs per second", "without faults", "devices"):
        print(f"{key}: {came[key]}")
    print(table(["device", "steps that it ran"], sorted(came["ran"].items())))
    print(table(["fault", "made"], sorted(came["faults"].items())))
    print(table(["incident", "counted"], sorted(came["incidents"].items())))


if __name__ == "__main__":
    main()
