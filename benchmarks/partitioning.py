"""Number of segments, cost of placements, and speed of the partitioner, compared with brute force, bounds and peers.

Each part is one table, and without a name all parts run: `segments` against exhaustive search, `peers` against the
rules of TFLite, NNAdapter and torch.fx on models, `placement` against the optimum, `repeats` with repeated layers
solved once, `speed` from verdicts to the plan, `torch` against torch.fx, `growth` with the number of nodes, and
`memory`. Masks and prices are random with a seed. The tests use the same graphs.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import statistics
import time
import tracemalloc
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.backend.test

from benchmarks.harness import Results, UsageError, seconds_of
from nnadapter.onnx import read_graph
from partition import SUPPORTED, Graph, Reason, Unsupported, cut, make_plan, place_by_priority
from partition.by_cost.latency import place_by_latency
from partition.by_cost.pricing import Prices, aligned, price_many
from partition.plan import schedule
from tests.partition.brute_force import cheapest_cost, fewest_segments
from tests.partition.by_cost.repeating import blocks_of, kind_prices, repeating
from tests.partition.generated_graphs import FAMILIES, random_prices, transformer, woven
from tests.partition.peers import nnadapter_clusters, tflite_subsets, torch_fx_partitions
from tests.partition.test_other_partitioners import masks, random_case

_LIGHT = Path(onnx.backend.test.__file__).parent / "data" / "light"
_LAUNCHES = {"low": 0.5, "mid": 2.0, "high": 6.0}
_NO = Unsupported(Reason.UNSUPPORTED_OPERATION, "excluded by the mask")
_TORCH = importlib.util.find_spec("torch") is not None
_TORCH_NODES = 600
"""Largest model that torch.fx partitions; more nodes take minutes."""
Row = dict[str, Any]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("what", nargs="*", help=f"parts, of {', '.join(_PARTS)}, or models for `peers`")
    parser.add_argument("--graphs", type=int, default=500, help="random graphs per row of `placement`")
    parser.add_argument("--masks", type=int, default=50, help="masks per model of `peers`")
    parser.add_argument("--most", type=int, default=200_000, help="nodes of the largest graph of `growth`")


def run(options: argparse.Namespace, results: Results) -> None:
    """Print the tables of the chosen parts."""
    chosen = [word for word in options.what if word in _PARTS] or list(_PARTS)
    options.models = [Path(word) for word in options.what if word not in _PARTS] or sorted(_LIGHT.glob("*.onnx"))
    missing = [path for path in options.models if not path.is_file()]
    if missing:
        raise UsageError(f"{str(missing[0])!r} is neither a part nor a file; parts are {', '.join(_PARTS)}")
    for name in chosen:
        table = results.table(name)
        for row in _PARTS[name](options):
            table.add(row)


def _segments(options: argparse.Namespace) -> Iterator[Row]:
    """Compare the number of segments with exhaustive search."""
    for labels in (2, 3, 4):
        seeds = range(labels - 2, 10_000, 3)
        cases = [random_case(seed) for seed in seeds]
        counts = [(len(cut(*case).segments), fewest_segments(*case)) for case in cases]
        greedy = [len(schedule(graph.atom_predecessors, placement, work=0)[0]) for graph, placement in cases]
        missed = sum(count > best for count, (_, best) in zip(greedy, counts, strict=True))
        yield {
            "labels": labels,
            "graphs of up to 12 nodes": len(cases),
            "equal to exhaustive search": sum(ours == best for ours, best in counts),
            "greedy misses %": 100 * missed / len(cases),
        }


def _peers(options: argparse.Namespace) -> Iterator[Row]:
    """Compare the mean number of segments with peers, over models and masks."""
    for path in options.models:
        graph = read_graph(onnx.load(path, load_external_data=False))
        small = _TORCH and len(graph.nodes) <= _TORCH_NODES
        counts = np.array([_counts(graph, mask, small) for mask in masks(graph, options.masks)], float)
        ours, on_device, peers = counts[:, 0], counts[:, 4], counts[:, 1:4]
        comparable = counts[:, [0, 0, 4]]
        more, means = (peers > comparable).sum(axis=0).tolist(), peers.mean(axis=0).tolist()
        yield {
            "model": path.stem,
            "nodes": len(graph.nodes),
            "segments": float(ours.mean()),
            "TFLite's rule": means[0],
            "TFLite: masks with more": more[0],
            "NNAdapter's rule": means[1],
            "NNAdapter: masks with more": more[1],
            "segments of the device": float(on_device.mean()),
            "torch.fx": means[2] if small else None,
            "torch.fx: masks with more": more[2] if small else None,
            "ours has more": int((peers < comparable).sum()),
        }


def _counts(graph: Graph, mask: Sequence[str], torch_too: bool) -> tuple[float, ...]:
    segments = cut(graph, mask, host="cpu").segments
    npu_count = sum(segment.device == "npu" for segment in segments)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch = len(torch_fx_partitions(graph, mask, "npu")) if torch_too else math.nan
    return len(segments), len(tflite_subsets(graph, mask)), len(nnadapter_clusters(graph, mask)), torch, npu_count


def _placement(options: argparse.Namespace) -> Iterator[Row]:
    """Compare the cost of placements with the optimum, and the bound with it."""
    for devices, most, count in ((2, 14, options.graphs), (3, 7, options.graphs // 2)):
        for name, launch in _LAUNCHES.items():
            cases = [_case(seed, devices, most, launch) for seed in range(count)]
            measurements = np.array([_placed(*case) for case in cases])
            cost, bound, plain_gap, best, host, supported = measurements.T
            assert (bound <= best * (1 + 1e-9)).all()
            yield {
                "devices": devices,
                "launch": name,
                "graphs": count,
                "excess %": _mean_percent(cost / best - 1),
                "everything supported, excess %": _mean_percent(supported / best - 1),
                "all on the host, excess %": _mean_percent(host / best - 1),
                "optimal %": _mean_percent(cost <= best * (1 + 1e-9)),
                "optimum over bound %": _mean_percent(best / bound - 1),
                "gap in the report %": _mean_percent(plain_gap),
            }


def _mean_percent(shares: np.ndarray) -> float:
    return 100 * float(shares.mean())


def _case(seed: int, devices: int, most: int, launch: float) -> tuple[Graph, Prices]:
    graph = woven(2 + seed % (most - 1), seed, reach=6)
    return graph, random_prices(graph, seed, devices=("npu", "gpu", "cpu")[3 - devices :], launch=launch)


def _placed(graph: Graph, prices: Prices) -> tuple[float, ...]:
    placed = place_by_latency(graph, prices, enumerate_few=False)
    named = {str(candidate.origin): candidate.cost for candidate in placed.candidates}
    host = named.get("all on cpu", math.inf)
    return placed.cost, placed.bound, placed.gap, _best(graph, prices), host, named.get("everything supported", host)


def _best(graph: Graph, prices: Prices) -> float:
    if len(prices.devices) > 2:
        return cheapest_cost(graph, prices)
    every = np.array(list(product((0, 1), repeat=len(graph.atoms))), np.int8).T
    return float(price_many(graph, aligned(graph, prices), every).min())


def _repeats(options: argparse.Namespace) -> Iterator[Row]:
    """Compare repeated layers that are solved once with the same graph solved entirely."""
    for devices, layers, size in ((2, 24, 14), (2, 50, 20), (2, 100, 10), (2, 100, 50), (3, 24, 14), (3, 50, 20)):
        measurements = np.array([_repeated(seed, devices, layers, size) for seed in range(24 // devices)])
        more, (entire, folded) = 100 * measurements[:, 0], measurements[:, 1:].mean(axis=0).tolist()
        yield {
            "devices": devices,
            "layers": layers,
            "nodes each": size,
            "graphs": len(measurements),
            "more cost %": float(more.mean()),
            "most %": float(more.max()),
            "least %": float(more.min()),
            "entire graph s": entire,
            "folded s": folded,
        }


def _repeated(seed: int, devices: int, layers: int, size: int) -> tuple[float, float, float]:
    graph = repeating(layers, size, seed, outside=3)
    names, launch = ("npu", "gpu", "cpu")[3 - devices :], list(_LAUNCHES.values())[seed % 3]
    prices = kind_prices(graph, seed, devices=names, launch=launch, transfer=(1.0, 0.25, 0.05)[seed // 3 % 3])
    blocks = blocks_of(graph)
    graph.derive()
    started = time.perf_counter()
    full_placement = place_by_latency(graph, prices)
    between = time.perf_counter()
    folded = place_by_latency(graph, prices, blocks=blocks)
    ended = time.perf_counter()
    assert max(full_placement.bound, folded.bound) <= min(full_placement.cost, folded.cost) * (1 + 1e-9)
    return folded.cost / full_placement.cost - 1, between - started, ended - between


def _speed(options: argparse.Namespace) -> Iterator[Row]:
    """Measure the time from verdicts to the plan."""
    size = 100_000
    for name, make in FAMILIES.items():
        priority = _priority(make(size))
        seconds, gap = _latency(make(size))
        yield {"graph": name, "nodes": size, "by priority s": priority, "by latency s": seconds, "gap %": 100 * gap}


def _beside_torch(options: argparse.Namespace) -> Iterator[Row]:
    """Compare cutting with torch.fx."""
    if _TORCH:
        _torch(woven(2), ("npu", "cpu"))  # imports torch
    for size in (250, 500, 1_000, 2_000) if _TORCH else ():
        graph = woven(size)
        mask = next(iter(masks(graph, 1)))
        ours, peer = (seconds_of(partial(partition, graph, mask)) for partition in (cut, _torch))
        yield {"nodes": size, "cut ms": 1e3 * ours, "torch.fx ms": 1e3 * peer, "ratio": ours / peer}


def _torch(graph: Graph, mask: Sequence[str]) -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch_fx_partitions(graph, mask, "npu")


def _priority(graph: Graph) -> float:
    mask = next(iter(masks(graph, 1)))
    verdicts = {
        "npu": [SUPPORTED if label == "npu" else _NO for label in mask],
        "cpu": [SUPPORTED] * len(mask),
    }

    def work() -> None:
        placed = place_by_priority(graph, ("npu", "cpu"), verdicts)
        partition = cut(graph, placed, host="cpu")
        make_plan(graph, ("npu", "cpu"), verdicts, placed, partition.segments, exact=partition.exact)

    return seconds_of(work)


def _latency(graph: Graph) -> tuple[float, float]:
    prices = random_prices(graph, launch=2.0)
    graph.__dict__.pop("topology")  # it is part of the work
    verdicts = {name: [SUPPORTED] * len(graph.atoms) for name in prices.devices}
    started = time.perf_counter()
    placed = place_by_latency(graph, prices)
    partition = cut(graph, placed.placement, host="cpu")
    make_plan(graph, prices.devices, verdicts, placed.placement, partition.segments, exact=partition.exact)
    return time.perf_counter() - started, placed.gap


def _growth(options: argparse.Namespace) -> Iterator[Row]:
    """Measure how time grows with the number of nodes."""
    sizes = sorted({*(size for size in (1_000, 4_000, 16_000, 64_000) if size < options.most), options.most})
    for name in ("transformer", "woven"):
        for policy, measure in (("priority", _priority), ("latency", lambda graph: _latency(graph)[0])):
            seconds = [statistics.median(measure(FAMILIES[name](size)) for _ in range(3)) for size in sizes]
            exponent = float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0]) if len(sizes) > 1 else None
            columns = {f"{size:,} nodes s": duration for size, duration in zip(sizes, seconds, strict=True)}
            yield {"graph": name, "policy": policy, **columns, "exponent": exponent}


def _memory(options: argparse.Namespace) -> Iterator[Row]:
    """Measure the peak memory of placement, segments and the plan."""
    for size in (12_500, 25_000, 50_000, 100_000, 200_000):
        graph = transformer(size)
        tracemalloc.start()
        _latency(graph)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        yield {"nodes": size, "peak MiB": peak / 2**20, "KiB per node": peak / size / 1024}


_PARTS: dict[str, Callable[[argparse.Namespace], Iterator[Row]]] = {
    "segments": _segments,
    "peers": _peers,
    "placement": _placement,
    "repeats": _repeats,
    "speed": _speed,
    "torch": _beside_torch,
    "growth": _growth,
    "memory": _memory,
}
