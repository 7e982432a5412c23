"""Entire networks on fake_npu compared with ONNX Runtime with as many threads: networks of onnx, and RapidOCR's.

The floor is the time of numpy's BLAS for the same matrix products, in order and with nothing between them. The weights
of onnx's light networks are constant, which makes no difference to the kernels measured here.

With `--profile` the table shows the time of each kernel instead. With `--callers` that many threads share one session,
compared with one thread that runs as often, and results are compared. The last bound is for callers that do not disturb
each other: as many times the rate of a session with one BLAS thread as there are processors or callers.
"""

from __future__ import annotations

import argparse
import statistics
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

import nnadapter as nna
from benchmarks.harness import Results, UsageError, interleaved, processors, random_feed, seconds_of
from nnadapter.drivers.fake_npu.kernels import FAMILIES, KERNELS

_LIGHT = Path(onnx.backend.test.__file__).parent / "data" / "light"
_OCR = Path(rapidocr.__file__).parent / "models"
_SHAPES = {"det": {"x": (1, 3, 480, 640)}, "rec": {"x": (1, 3, 48, 320)}, "cls": {"x": (1, 3, 48, 192)}}
_PAUSE = 0.05
"""Seconds before each run: OpenBLAS's threads spin for a while, on the processors of the others."""

_IN_BLAS = " in BLAS"

_TURN_SECONDS = 0.2
"""Seconds of one thread in a turn of `--callers`."""

Feed = Mapping[str, Any]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--only", default="", metavar="NAME", help="the models whose names contain this")
    other = parser.add_mutually_exclusive_group()
    other.add_argument("--profile", metavar="NAME", help="time by kernel, of the models whose names contain this")
    other.add_argument("--callers", type=int, metavar="N", help="so many threads on one session, beside one")


def run(options: argparse.Namespace, results: Results) -> None:
    """Measure the chosen models."""
    measure = _by_kernel if options.profile else _beside_onnxruntime
    if options.callers:
        measure = partial(_with_callers, callers=options.callers)
    chosen = list(_networks(options.profile or options.only))
    if not chosen:
        raise UsageError(f"no model's name contains {options.profile or options.only!r}")
    results.note(_blas())
    table = results.table()
    for path, shapes in chosen:
        for row in measure(path, random_feed(path, shapes), options.rounds):
            table.add(row)


def _blas() -> str:
    """Return the BLAS library of numpy and its threads."""
    libraries = [library for library in threadpool_info() if library["user_api"] == "blas"]
    named = ", ".join(
        f"{entry['internal_api']} {entry['version']} for {entry.get('architecture')}" for entry in libraries
    )
    return f"numpy's BLAS: {named}; {_threads()} threads there and in ONNX Runtime"


def _threads() -> int:
    """Return how many threads numpy's BLAS has."""
    return max(library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas")


def _networks(name: str) -> Iterator[tuple[Path, Mapping[str, tuple[int, ...]] | None]]:
    """Yield the models whose names contain `name`, each with shapes for its inputs."""
    for path in [*sorted(_LIGHT.glob("*.onnx")), *sorted(_OCR.glob("*.onnx"))]:
        if name in path.stem:
            shapes = next((shapes for kind, shapes in _SHAPES.items() if kind in path.stem), None)
            yield path, shapes if path.parent == _OCR else None


def _beside_onnxruntime(path: Path, feed: Feed, rounds: int) -> Iterator[dict[str, object]]:
    """Yield a row with both medians, their ratio, and the floor."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # it would disturb its neighbor
    options.log_severity_level = 3
    options.intra_op_num_threads = _threads()
    theirs = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    with nna.InferenceSession(path, devices="fake_npu") as ours:
        runs: dict[str, Callable[[], object]] = {
            "ours": partial(ours.run, None, feed),
            "theirs": partial(theirs.run, None, feed),
            "floor": partial(_multiply, _matrix_products(path, feed)),
        }
        seconds = interleaved(runs, rounds, _PAUSE)
    yield {
        "model": path.stem,
        "fake_npu ms": seconds["ours"] * 1e3,
        "ONNX Runtime ms": seconds["theirs"] * 1e3,
        "ratio": seconds["ours"] / seconds["theirs"],
        "BLAS floor ms": seconds["floor"] * 1e3,
    }


def _with_callers(path: Path, feed: Feed, rounds: int, *, callers: int) -> Iterator[dict[str, object]]:
    """Yield a row with the runs per second of one thread, and of several with as many runs each."""
    single = nna.InferenceSession(path, devices=[("fake_npu", {"threads": 1})])
    with single, nna.InferenceSession(path, devices="fake_npu") as session, ThreadPoolExecutor(callers) as pool:
        expected = session.run(None, feed)
        repeats = max(1, int(_TURN_SECONDS / _seconds_of_warm_run(session, feed)))
        results: list[list[Any]] = []

        def work(session: nna.InferenceSession) -> None:
            for _ in range(repeats):
                results.append(session.run(None, feed))

        candidates: dict[str, Callable[[], object]] = {
            "one": partial(work, session),
            "several": lambda: list(pool.map(work, [session] * callers)),
            "single": partial(work, single),
        }
        seconds = interleaved(candidates, rounds, _PAUSE)
    one_thread, several, most = (
        repeats / seconds["one"],
        callers * repeats / seconds["several"],
        repeats / seconds["single"],
    )
    equal = all(np.array_equal(*pair) for result in results for pair in zip(result, expected, strict=True))
    yield {
        "model": path.stem,
        "one thread, runs/s": one_thread,
        f"{callers} threads, runs/s": several,
        "times": several / one_thread,
        "at most": min(callers, processors()) * most / one_thread,
        "equal": equal,
    }


def _seconds_of_warm_run(session: nna.InferenceSession, feed: Feed) -> float:
    session.run(None, feed)
    return seconds_of(partial(session.run, None, feed))


def _multiply(products: list[tuple[Any, ...]]) -> None:
    # The arrays are those of a run in the arena, and products of products grow.
    with np.errstate(all="ignore"):
        for arrays in products:
            np.matmul(*arrays)


def _matrix_products(path: Path, feed: Feed) -> list[tuple[Any, ...]]:
    """Return the arguments of every matrix product of one run, in order, with the arrays of a separate session."""
    products: list[tuple[Any, ...]] = []
    real = np.matmul

    def recorded(*arrays: Any) -> Any:
        products.append(arrays)
        return real(*arrays)

    with patch.object(np, "matmul", recorded), nna.InferenceSession(path, devices="fake_npu") as session:
        session.run(None, feed)
        products.clear()
        session.run(None, feed)
        return list(products)


def _by_kernel(path: Path, feed: Feed, rounds: int) -> Iterator[dict[str, object]]:
    """Yield a row per kernel, with and without a fused activation: calls, time, BLAS's part, share."""
    seconds: dict[str, float] = defaultdict(float)
    calls: Counter[str] = Counter()
    with _timed_kernels(seconds, calls), nna.InferenceSession(path, devices="fake_npu") as session:
        session.run(None, feed)
        durations: dict[str, list[float]] = defaultdict(list)
        for _ in range(rounds):
            seconds.clear()
            calls.clear()
            session.run(None, feed)
            for name, spent in seconds.items():
                durations[name].append(spent)
    medians = {name: statistics.median(values) for name, values in durations.items()}
    products = {name.removesuffix(_IN_BLAS): medians.pop(name) for name in list(medians) if name.endswith(_IN_BLAS)}
    total = sum(medians.values())
    for name, median in sorted(medians.items(), key=lambda item: -item[1]):
        within = products.get(name, 0.0) * 1e3
        share = 100 * median / total
        yield {"kernel": name, "calls": calls[name], "ms": median * 1e3, "of it BLAS ms": within, "share %": share}
    yield {
        "kernel": f"all of {path.stem}",
        "calls": sum(calls.values()),
        "ms": total * 1e3,
        "of it BLAS ms": sum(products.values()) * 1e3,
        "share %": 100.0,
    }


@contextmanager
def _timed_kernels(seconds: dict[str, float], calls: Counter[str]) -> Iterator[None]:
    """Make programs use kernels that add their time, and the time of their products, to `seconds`."""
    current = [""]
    multiply = np.matmul

    def product(*arrays: Any) -> Any:
        started = time.perf_counter()
        result = multiply(*arrays)
        seconds[current[0] + _IN_BLAS] += time.perf_counter() - started
        return result

    def timed(name: str, run: Callable[..., None]) -> Callable[..., None]:
        def run_timed(*arrays: Any, **parameters: Any) -> None:
            label = current[0] = name if "finish" not in parameters else f"{name} with activation"
            started = time.perf_counter()
            run(*arrays, **parameters)
            seconds[label] += time.perf_counter() - started
            calls[label] += 1

        return run_timed

    names = [name for family in FAMILIES.values() for name in family.split()]
    kernels = {name: KERNELS[name]._replace(run=timed(name, KERNELS[name].run)) for name in names}
    with patch.dict(KERNELS, kernels), patch.object(np, "matmul", product):
        yield
