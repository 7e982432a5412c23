"""Compare the behavior of two checkouts: results, plans, refusals and the numbers of reports.

Each network runs on each device with each policy, in one process per checkout and device. Both get the same files.
These must be equal:

- results, bitwise or within `--tolerance`; within 1e-3 for the policy `measured`, whose timings may place nodes
  differently.
- the report as JSON: keys, numbers and single words at every depth, such as devices, segments and refusal codes. Not
  sentences, durations, or counts of caches. For `measured`, nothing of the report.
- the class of an error, and the kind of each warning.

`--renamed` maps old JSON keys and words to new ones. The exit code is 1 if there is a difference.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

if TYPE_CHECKING:
    from benchmarks.harness import Results  # another checkout runs this file, and may not have it

DEVICES = ("cpu", "fake_npu", "openvino", "xla", "qnn", "reference")
POLICIES = ("priority", "latency", "throughput", "measured")
COMPOSITIONS = 60
"""Random compositions, half of them with dynamic shapes."""
_MEASURED_TOLERANCE = 1e-3
_UNCOMPARED = frozenset(("caches", "machine", "schema_version", "versions", "incidents"))
"""Keys of reports that depend on the machine or the version, or on the names of internal functions."""
_UNITS = ("seconds", "_s", "_ms")
"""Ends of keys that hold durations."""


def networks(patterns: Sequence[str]) -> Iterator[tuple[str, onnx.ModelProto, Mapping[str, np.ndarray]]]:
    """Yield the name, the model and the inputs of each network with a name that matches a glob pattern."""
    from benchmarks.harness import random_feed  # another checkout may not have the harness
    from benchmarks.models.generated_networks import generated_networks
    from benchmarks.models.networks import networks as usual_networks
    from benchmarks.models.networks import other_networks
    from benchmarks.models.quantized_models import NETWORKS, quantized

    makers: dict[str, Callable[[], onnx.ModelProto]] = {**usual_networks(), **other_networks(), **generated_networks(0)}
    makers["quantized mobilenet"] = lambda: quantized(NETWORKS["mobilenet"]())
    makers["quantized transformer"] = lambda: quantized(NETWORKS["transformer"](), per_channel=True)
    for name, make in makers.items():
        if any(fnmatch(name, pattern) for pattern in patterns):
            model = make()
            yield name, model, random_feed(model)
    from tests.compositions.generator import generate

    for seed in range(COMPOSITIONS):
        if any(fnmatch(f"composition {seed}", pattern) for pattern in patterns):
            composition = generate(seed, dynamic=seed % 2 == 1)
            yield f"composition {seed}", composition.model, composition.feeds


def record(folder: Path, devices: Sequence[str], policies: Sequence[str]) -> None:
    """Run the network in a folder and write results, reports, errors and warnings to the standard output."""
    import nnadapter as nna

    model = onnx.load(folder / "model.onnx")
    feeds = dict(np.load(folder / "feeds.npz"))
    records = {}
    for device in devices:
        for policy in policies:
            simulated = device == "fake_npu" and policy in ("latency", "throughput")
            named = [(device, {"clock": "simulated"} if simulated else {})]
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                records[device, policy] = run_network(nna, model, feeds, named, policy)
            records[device, policy]["warnings"] = sorted({warning.category.__name__ for warning in caught})
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as stream:
        pickle.dump(records, stream)


def run_network(
    nna: Any, model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], devices: Sequence[object], policy: str
) -> dict[str, Any]:
    """Return the results and the report of a run, or the class of the error.

    Args:
        nna: the package of a checkout.
        model: the network.
        feeds: its inputs.
        devices: of the session.
        policy: of `Options`.
    """
    try:
        options = nna.Options(policy=policy, cache_dir=False)
        with nna.InferenceSession(model, devices=devices, options=options) as session:
            results = session.run(None, feeds)
            return {"results": results, "report": json.loads(session.report().to_json())}
    except nna.errors.NNAdapterError as error:
        return {"error": type(error).__name__}


def differences(
    base: Mapping[str, Any],
    head: Mapping[str, Any],
    *,
    measured: bool,
    renamed: Mapping[str, str],
    tolerance: float = 0,
) -> Iterator[str]:
    """Yield the differences between two runs of a network.

    Args:
        base: of `record`, for one device and policy.
        head: the same from another checkout.
        measured: whether timings decided.
        renamed: new JSON keys and words by old ones.
        tolerance: absolute and relative, of results; 0 compares bits.
    """
    for key in ("error", "warnings"):
        if base.get(key) != head.get(key):
            yield f"{key}: {base.get(key)!r}, now {head.get(key)!r}"
    if "results" not in base or "results" not in head:
        return
    if len(base["results"]) != len(head["results"]):
        yield f"results: {len(base['results'])}, now {len(head['results'])}"
    for place, pair in enumerate(zip(base["results"], head["results"], strict=False)):
        if not _equal(*pair, tolerance=max(_MEASURED_TOLERANCE if measured else 0, tolerance)):
            yield f"result {place} differs"
    if not measured:
        yield from _report_differences(base["report"], head["report"], "report", renamed)


def _equal(base: np.ndarray, head: np.ndarray, tolerance: float) -> bool:
    if base.dtype != head.dtype or base.shape != head.shape:
        return False
    if base.tobytes() == head.tobytes():
        return True
    return tolerance > 0 and np.allclose(base.astype(float), head.astype(float), tolerance, tolerance, equal_nan=True)


def _report_differences(base: Any, head: Any, place: str, renamed: Mapping[str, str]) -> Iterator[str]:
    if isinstance(base, dict) and isinstance(head, dict):
        renamed_base = {renamed.get(key, key): value for key, value in base.items()}
        for key in sorted(renamed_base.keys() | head.keys()):
            if key in _UNCOMPARED or key.endswith(_UNITS):
                continue
            if key not in renamed_base or key not in head:
                yield f"{place}.{key}: {'added' if key in head else 'missing'}"
            else:
                yield from _report_differences(renamed_base[key], head[key], f"{place}.{key}", renamed)
    elif isinstance(base, list) and isinstance(head, list):
        if len(base) != len(head):
            yield f"{place}: {len(base)} items, now {len(head)}"
        for at, pair in enumerate(zip(base, head, strict=False)):
            yield from _report_differences(*pair, f"{place}[{at}]", renamed)
    elif isinstance(base, str) and isinstance(head, str):
        is_word = " " not in base and " " not in head
        if is_word and renamed.get(base, base) != head:
            yield f"{place}: {base!r}, now {head!r}"
    elif base != head or type(base) is not type(head):
        yield f"{place}: {base!r}, now {head!r}"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("old", type=Path, help="a checkout")
    parser.add_argument("new", type=Path, nargs="?", default=Path(__file__).parents[1], help="this one by default")
    parser.add_argument("--networks", nargs="+", default=["*"], metavar="GLOB")
    parser.add_argument("--devices", nargs="+", default=DEVICES, metavar="NAME")
    parser.add_argument("--policies", nargs="+", default=POLICIES, choices=POLICIES)
    parser.add_argument("--renamed", type=Path, metavar="TABLE.json")
    parser.add_argument("--tolerance", type=float, default=0, help="absolute and relative, of results; 0 compares bits")


def run(options: argparse.Namespace, results: Results) -> None:
    """Compare two checkouts, and note each difference."""
    renamed = json.loads(options.renamed.read_text()) if options.renamed else {}
    counts = {"networks": 0, "runs": 0, "differences": 0}
    for name, model, feeds in networks(options.networks):
        counts["networks"] += 1
        with tempfile.TemporaryDirectory() as temporary:
            onnx.save(model, Path(temporary) / "model.onnx")
            np.savez(Path(temporary) / "feeds.npz", **feeds)
            with ThreadPoolExecutor(2) as pool:
                recorded = partial(_recorded, folder=temporary, options=options)
                base, head = pool.map(recorded, (options.old, options.new))
        for key in sorted(base.keys() | head.keys()):
            counts["runs"] += 1
            for text in _differences_of_run(key, base, head, renamed, options.tolerance):
                counts["differences"] += 1
                results.note(f"{name}, {', '.join(key)}: {text}")
    results.table().add(counts)
    if counts["differences"]:
        results.fail(f"{counts['differences']} differences")


def _differences_of_run(
    key: tuple[str, str],
    base: Mapping[Any, Any],
    head: Mapping[Any, Any],
    renamed: Mapping[str, str],
    tolerance: float,
) -> Iterator[str]:
    """Yield the differences of a run on a device with a policy."""
    if key not in base or key not in head:
        yield "the process ended" + ("" if key in base else " in the old checkout")
    else:
        measured = key[1] == "measured"
        yield from differences(base[key], head[key], measured=measured, renamed=renamed, tolerance=tolerance)


def _recorded(checkout: Path, folder: str, options: argparse.Namespace) -> Mapping[tuple[str, str], Mapping[str, Any]]:
    """Return the records of a network in a checkout, by device and policy; without records of processes that crash."""
    records: dict[tuple[str, str], Mapping[str, Any]] = {}
    for device in options.devices:
        words = [sys.executable, __file__, folder, device, *options.policies]
        environment = {**os.environ, "PYTHONPATH": str(checkout.resolve())}
        process = subprocess.run(
            words, env=environment, cwd=checkout, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        if process.returncode == 0:
            records |= pickle.loads(process.stdout)
    return records


if __name__ == "__main__":
    record(Path(sys.argv[1]), sys.argv[2:3], sys.argv[3:])
