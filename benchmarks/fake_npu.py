"""Whole networks on fake_npu beside ONNX Runtime with the same threads: nets that onnx ships, and RapidOCR's.

    python benchmarks/fake_npu.py [--rounds 20] [--only NAME] [--json FILE]
    python benchmarks/fake_npu.py --profile NAME
    python benchmarks/fake_npu.py --callers 4

With `--callers` so many threads share one session, beside one thread that runs as often, and results are compared. At
most they reach as many times what a session with one BLAS thread does as there are processors, or callers where these
are fewer: nobody disturbs anybody.
The floor is what numpy's BLAS takes for the same matrix products, in order and with nothing between them. The weights
of onnx's light nets are constant, which makes no difference to the kernels measured here.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx.backend.test
import onnxruntime
import rapidocr
from threadpoolctl import threadpool_info

sys.path.insert(0, str(Path(__file__).parents[1]))

import nnadapter as nna
from benchmarks.timing import interleaved, table
from nnadapter.drivers.fake_npu.kernels import FAMILIES, KERNELS
from nnadapter.offering.feeds import random_feed
from nnadapter.process.processors import usable

LIGHT = Path(onnx.backend.test.__file__).parent / "data" / "light"
OCR = Path(rapidocr.__file__).parent / "models"
SHAPES = {"det": {"x": (1, 3, 480, 640)}, "rec": {"x": (1, 3, 48, 320)}, "cls": {"x": (1, 3, 48, 192)}}
PAUSE = 0.05
"""Seconds before each run: for a while, OpenBLAS has its threads wait for more work, on the others' processors."""

IN_BLAS = " in BLAS"

_TURN_SECONDS = 0.2
"""How long one thread runs in a turn of `--callers`."""

Feed = Mapping[str, Any]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", default="", metavar="NAME", help="the models whose names contain this")
    other = parser.add_mutually_exclusive_group()
    other.add_argument("--profile", metavar="NAME", help="where the time of these models goes, by kernel")
    other.add_argument("--callers", type=int, metavar="N", help="so many threads on one session, beside one")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    measured = by_kernel if arguments.profile else beside_onnxruntime
    if arguments.callers:
        measured = partial(in_company, callers=arguments.callers)
    rows = [
        row
        for path, feed in networks(arguments.profile or arguments.only)
        for row in measured(path, feed, arguments.rounds)
    ]
    if not rows:
        parser.error(f"no model's name contains {arguments.profile or arguments.only!r}")
    print(f"{blas()}\n")
    print(table(list(rows[0]), [[shown(value) for value in row.values()] for row in rows]))
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2))


def blas() -> str:
    """What both sides compute with."""
    libraries = [library for library in threadpool_info() if library["user_api"] == "blas"]
    named = ", ".join(f"{each['internal_api']} {each['version']} for {each.get('architecture')}" for each in libraries)
    return f"numpy's BLAS: {named}; {threads()} threads there and in ONNX Runtime"


def threads() -> int:
    """How many threads numpy's BLAS has."""
    return max(library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas")


def shown(value: object) -> str:
    """A table's cell."""
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def networks(name: str) -> Iterator[tuple[Path, Feed]]:
    """The models whose names contain `name`, and inputs for each."""
    for path in [*sorted(LIGHT.glob("*.onnx")), *sorted(OCR.glob("*.onnx"))]:
        if name in path.stem:
            shapes = next((shapes for kind, shapes in SHAPES.items() if kind in path.stem), None)
            yield path, random_feed(path, shapes if path.parent == OCR else None)


def beside_onnxruntime(path: Path, feed: Feed, rounds: int) -> Iterator[dict[str, object]]:
    """One row: both medians, how many times the one is the other, and the floor."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # it would disturb its neighbor
    options.log_severity_level = 3
    options.intra_op_num_threads = threads()
    theirs = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    with nna.InferenceSession(path, devices="fake_npu") as ours:
        runs: dict[str, Callable[[], object]] = {
            "ours": partial(ours.run, None, feed),
            "theirs": partial(theirs.run, None, feed),
            "floor": partial(_multiply, matrix_products(path, feed)),
        }
        taken = interleaved(runs, rounds, PAUSE)
    yield {
        "model": path.stem,
        "fake_npu ms": taken["ours"] * 1e3,
        "ONNX Runtime ms": taken["theirs"] * 1e3,
        "times": taken["ours"] / taken["theirs"],
        "BLAS floor ms": taken["floor"] * 1e3,
    }


def in_company(path: Path, feed: Feed, rounds: int, *, callers: int) -> Iterator[dict[str, object]]:
    """One row: runs a second of one thread and of several, each of which runs as often as the one."""
    single = nna.InferenceSession(path, devices=[("fake_npu", {"threads": 1})])
    with single, nna.InferenceSession(path, devices="fake_npu") as session, ThreadPoolExecutor(callers) as pool:
        expected = session.run(None, feed)
        repeats = max(1, int(_TURN_SECONDS / _seconds_of(partial(session.run, None, feed))))
        results: list[list[Any]] = []

        def work(session: nna.InferenceSession) -> None:
            for _ in range(repeats):
                results.append(session.run(None, feed))

        candidates: dict[str, Callable[[], object]] = {
            "one": partial(work, session),
            "several": lambda: list(pool.map(work, [session] * callers)),
            "single": partial(work, single),
        }
        taken = interleaved(candidates, rounds, PAUSE)
    one, several, most = repeats / taken["one"], callers * repeats / taken["several"], repeats / taken["single"]
    alike = all(np.array_equal(*pair) for result in results for pair in zip(result, expected, strict=True))
    yield {
        "model": path.stem,
        "one thread, runs/s": one,
        f"{callers} threads, runs/s": several,
        "times": several / one,
        "at most": min(callers, usable()) * most / one,
        "equal": "yes" if alike else "NO",
    }


def _seconds_of(run: Callable[[], object]) -> float:
    run()
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def _multiply(products: list[tuple[Any, ...]]) -> None:
    # The arrays are what a run left in the arena, and products of products grow.
    with np.errstate(all="ignore"):
        for arrays in products:
            np.matmul(*arrays)


def matrix_products(path: Path, feed: Feed) -> list[tuple[Any, ...]]:
    """The arguments of every matrix product of one run, in order; their arrays are those of a session of its own."""
    found: list[tuple[Any, ...]] = []
    real = np.matmul

    def recorded(*arrays: Any) -> Any:
        found.append(arrays)
        return real(*arrays)

    with patch.object(np, "matmul", recorded), nna.InferenceSession(path, devices="fake_npu") as session:
        session.run(None, feed)
        found.clear()
        session.run(None, feed)
        return list(found)


def by_kernel(path: Path, feed: Feed, rounds: int) -> Iterator[dict[str, object]]:
    """One row per kernel, with and without a fused activation: how many calls, their time, BLAS's part, its share."""
    seconds: dict[str, float] = defaultdict(float)
    calls: Counter[str] = Counter()
    with timed_kernels(seconds, calls), nna.InferenceSession(path, devices="fake_npu") as session:
        session.run(None, feed)
        taken: dict[str, list[float]] = defaultdict(list)
        for _ in range(rounds):
            seconds.clear()
            calls.clear()
            session.run(None, feed)
            for name, spent in seconds.items():
                taken[name].append(spent)
    medians = {name: statistics.median(values) for name, values in taken.items()}
    products = {name.removesuffix(IN_BLAS): medians.pop(name) for name in list(medians) if name.endswith(IN_BLAS)}
    whole = sum(medians.values())
    for name, median in sorted(medians.items(), key=lambda item: -item[1]):
        within = products.get(name, 0.0) * 1e3
        share = f"{median / whole:.0%}"
        yield {"kernel": name, "calls": calls[name], "ms": median * 1e3, "of it BLAS ms": within, "share": share}
    yield {
        "kernel": f"all of {path.stem}",
        "calls": sum(calls.values()),
        "ms": whole * 1e3,
        "of it BLAS ms": sum(products.values()) * 1e3,
        "share": "100%",
    }


@contextmanager
def timed_kernels(seconds: dict[str, float], calls: Counter[str]) -> Iterator[None]:
    """While it is open, programs are bound to kernels that add their time to `seconds`, and their products' time."""
    current = [""]
    multiply = np.matmul

    def product(*arrays: Any) -> Any:
        started = time.perf_counter()
        result = multiply(*arrays)
        seconds[current[0] + IN_BLAS] += time.perf_counter() - started
        return result

    def timed(name: str, bind: Callable[..., Callable[[], object]]) -> Callable[..., Callable[[], object]]:
        def bind_timed(call: Any) -> Callable[[], object]:
            bound, label = bind(call), name if call.finish is None else f"{name} with activation"

            def run() -> None:
                current[0] = label
                started = time.perf_counter()
                bound()
                seconds[label] += time.perf_counter() - started
                calls[label] += 1

            return run

        return bind_timed

    names = [name for family in FAMILIES.values() for name in family.split()]
    kernels = {name: KERNELS[name]._replace(bind=timed(name, KERNELS[name].bind)) for name in names}
    with patch.dict(KERNELS, kernels), patch.object(np, "matmul", product):
        yield


if __name__ == "__main__":
    main()
