"""Paddle's models: does each convert, is it Paddle's result, how much of it goes to the device.

    python benchmarks/paddle_models.py [NETWORK...] [-d fake_npu] [--json FILE]

Another process saves the networks with Paddle, with drawn weights, and runs Paddle's own predictor on them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import nnadapter as nna
from benchmarks.timing import table

TOLERANCE = 1e-4
"""Of a result, as a share of the largest value expected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What came of one network."""

    network: str
    nodes: int = 0
    """Nodes of ONNX that run."""
    off_the_cpu: int = 0
    """How many of them run on the device."""
    error: float = 0.0
    """The largest difference from Paddle, as a share of the largest value expected."""
    converted: float = 0.0
    """Seconds until the session was there, with the conversion."""
    opened: float = 0.0
    """Seconds until another session was there, which finds it converted."""
    failure: str = ""
    """What was raised, if anything was."""


_HEAD = ("network", "nodes", "off the CPU", "error", "first s", "second s")


def main() -> None:
    """Print a row for each network, as it comes, and what they come to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NETWORK")
    parser.add_argument("-d", "--device", default="fake_npu")
    parser.add_argument("--folder", type=Path, help="of networks that were saved before")
    parser.add_argument("--json", type=Path, help="write the rows here as well")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        saved = arguments.folder or saved_networks(Path(folder) / "networks", arguments.names)
        rows = []
        print(table(_HEAD, []))
        for path in sorted(saved.iterdir()):
            rows.append(row_of(path, arguments.device, Path(folder) / "cache"))
            print("| " + " | ".join(_shown(rows[-1])) + " |", flush=True)
    print(_sum(rows))
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=2))


def saved_networks(folder: Path, names: Sequence[str]) -> Path:
    """Have another process save networks, all of them if none is named, and return the folder."""
    script = Path(__file__).with_name("models") / "paddle_networks.py"
    subprocess.run([sys.executable, str(script), str(folder), *names], check=True, capture_output=True)
    return folder


def row_of(path: Path, device: str, cache: Path) -> Row:
    """Run one network, and compare it with what Paddle gave."""
    if (path / "failure.txt").exists():
        return Row(network=path.name, failure=f"in Paddle: {(path / 'failure.txt').read_text()[:120]}")
    feeds, expected = dict(np.load(path / "feeds.npz")), dict(np.load(path / "results.npz"))
    options = nna.Options(fallback="allow", cache_dir=cache)
    try:
        began = time.perf_counter()
        with nna.InferenceSession(path, devices=device, options=options) as session:
            converted = time.perf_counter() - began
            results = session.run(None, {each.name: feeds[each.name] for each in session.get_inputs()})
            names, report = [each.name for each in session.get_outputs()], session.report()
        began = time.perf_counter()
        with nna.InferenceSession(path, devices=device, options=options):
            opened = time.perf_counter() - began
        error = apart(dict(zip(names, results, strict=True)), expected)
    except Exception as failure:  # noqa: BLE001  a row says so
        return Row(network=path.name, failure=f"{type(failure).__name__}: {' '.join(str(failure).split())[:300]}")
    running = [segment for segment in report.segments if segment.nodes]
    return Row(
        network=path.name,
        nodes=sum(len(segment.nodes) for segment in running),
        off_the_cpu=sum(len(segment.nodes) for segment in running if segment.device == device),
        error=error,
        converted=converted,
        opened=opened,
    )


def apart(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> float:
    """The largest difference, as a share of the largest value expected.

    Raises:
        ValueError: names, shapes or types differ.
    """
    if [*found] != [*expected]:
        raise ValueError(f"outputs are {[*found]}, in Paddle {[*expected]}")
    largest = 0.0
    for name, wanted in expected.items():
        got = np.asarray(found[name])
        if got.shape != wanted.shape or got.dtype != wanted.dtype:
            raise ValueError(f"{name} is {got.dtype}{list(got.shape)}, in Paddle {wanted.dtype}{list(wanted.shape)}")
        if wanted.size:
            off = np.abs(got.astype(np.float64) - wanted.astype(np.float64)).max()
            largest = max(largest, float(off / (np.abs(wanted.astype(np.float64)).max() or 1.0)))
    return largest


def _shown(row: Row) -> list[str]:
    if row.failure:
        return [row.network, "", "", row.failure, "", ""]
    numbers = (f"{row.error:.1e}", f"{row.converted:.2f}", f"{row.opened:.2f}")
    return [row.network, str(row.nodes), str(row.off_the_cpu), *numbers]


def _sum(rows: Sequence[Row]) -> str:
    done = [row for row in rows if not row.failure]
    right = sum(row.error <= TOLERANCE for row in done)
    nodes, off = sum(row.nodes for row in done), sum(row.off_the_cpu for row in done)
    return (
        f"{len(rows)} networks, {len(done)} converted and ran, {right} within {TOLERANCE:g} of Paddle; "
        f"{off} of {nodes} nodes off the CPU"
    )


if __name__ == "__main__":
    main()
