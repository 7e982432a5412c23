"""Paddle's networks: whether each converts and gives Paddle's results, and how much of it runs on the device.

Another process saves the networks with Paddle, with random weights, and runs Paddle's own predictor on them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import nnadapter as nna
from benchmarks.harness import ROOT, Results

_TOLERANCE = 1e-4
"""The largest allowed error, relative to the largest expected value."""
_COLUMNS = ("nodes", "off the CPU", "error", "first s", "second s")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("names", nargs="*", metavar="NETWORK")
    parser.add_argument("-d", "--device", default="fake_npu")
    parser.add_argument("--folder", type=Path, help="of networks that were saved before")


def run(options: argparse.Namespace, results: Results) -> None:
    """Run every network."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        saved = options.folder or _save_networks(Path(folder) / "networks", options.names)
        table = results.table()
        for path in sorted(saved.iterdir()):
            table.add(_row(path, options.device, Path(folder) / "cache"))
    finished = [row for row in table.rows if not row["failure"]]
    right = sum(row["error"] <= _TOLERANCE for row in finished)
    nodes, off = (sum(row[column] for row in finished) for column in ("nodes", "off the CPU"))
    results.note(
        f"{len(table.rows)} networks, {len(finished)} converted and ran, {right} within {_TOLERANCE:g} of Paddle; "
        f"{off} of {nodes} nodes off the CPU"
    )


def _save_networks(folder: Path, names: Sequence[str]) -> Path:
    """Save networks in another process, all of them without names, and return the folder."""
    command = [sys.executable, "-m", "benchmarks.models.paddle_networks", str(folder), *names]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    return folder


def _row(path: Path, device: str, cache: Path) -> dict[str, Any]:
    """Run one network, and compare it with Paddle's results.

    The seconds are those until a session is open: of the first, with the conversion, and of a second one.
    """
    row: dict[str, Any] = {"network": path.name, **dict.fromkeys(_COLUMNS), "failure": ""}
    if (path / "failure.txt").exists():
        return {**row, "failure": f"in Paddle: {(path / 'failure.txt').read_text()[:120]}"}
    feeds, expected = dict(np.load(path / "feeds.npz")), dict(np.load(path / "results.npz"))
    options = nna.Options(fallback="allow", cache_dir=cache)
    try:
        began = time.perf_counter()
        with nna.InferenceSession(path, devices=device, options=options) as session:
            first = time.perf_counter() - began
            results = session.run(None, {value.name: feeds[value.name] for value in session.get_inputs()})
            names, report = [value.name for value in session.get_outputs()], session.report()
        began = time.perf_counter()
        with nna.InferenceSession(path, devices=device, options=options):
            second = time.perf_counter() - began
        error = _relative_error(dict(zip(names, results, strict=True)), expected)
    except Exception as failure:  # noqa: BLE001  a row has it
        return {**row, "failure": f"{type(failure).__name__}: {' '.join(str(failure).split())[:300]}"}
    counts = {segment.device: 0 for segment in report.segments}
    for segment in report.segments:
        counts[segment.device] += len(segment.nodes)
    return row | {
        "nodes": sum(counts.values()),
        "off the CPU": counts.get(device, 0),
        "error": error,
        "first s": first,
        "second s": second,
    }


def _relative_error(actual: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> float:
    """Return the largest difference, relative to the largest expected value.

    Raises:
        ValueError: names, shapes or types differ.
    """
    if [*actual] != [*expected]:
        raise ValueError(f"outputs are {[*actual]}, in Paddle {[*expected]}")
    largest = 0.0
    for name, right in expected.items():
        got = np.asarray(actual[name])
        if got.shape != right.shape or got.dtype != right.dtype:
            raise ValueError(f"{name} is {got.dtype}{list(got.shape)}, in Paddle {right.dtype}{list(right.shape)}")
        if right.size:
            off = np.abs(got.astype(np.float64) - right.astype(np.float64)).max()
            largest = max(largest, float(off / (np.abs(right.astype(np.float64)).max() or 1.0)))
    return largest
