"""How few segments, how cheap a placement, how fast: the partitioner beside brute force, bounds and others.

    python benchmarks/partitioning.py [segments] [peers MODEL...] [placement] [repeats] [speed] [growth] [memory]

One figure per word, all of them without. Masks and prices are random, by seed; graphs are those of the tests.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import statistics
import sys
import time
import tracemalloc
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import onnx.backend.test

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.timing import table
from nnadapter.onnx.graphs import read_graph
from partition import SUPPORTED, Graph, Reason, Unsupported, cut, make_plan, place_by_priority
from partition.by_cost.batches import price_many
from partition.by_cost.latency import place_by_latency
from partition.by_cost.pricing import Prices, aligned
from partition.sequences import schedule
from tests.partition.brute_force import fewest_segments
from tests.partition.by_cost.repeating import blocks_of, kind_prices, repeating
from tests.partition.generated_graphs import FAMILIES, random_prices, transformer, woven
from tests.partition.peers import nnadapter_clusters, tflite_subsets, torch_fx_partitions
from tests.partition.test_peers import masks, random_case

LIGHT = Path(onnx.backend.test.__file__).parent / "data" / "light"
LAUNCHES = {"low": 0.5, "mid": 2.0, "high": 6.0}
NO = Unsupported(Reason.UNSUPPORTED_OPERATION, "left out by the mask")
TORCH = importlib.util.find_spec("torch") is not None
TORCH_NODES = 600
"""Nodes up to which torch.fx is asked about models: it takes minutes beyond."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", help=f"figures, of {', '.join(FIGURES)}, or models for `peers`")
    parser.add_argument("--graphs", type=int, default=500, help="random graphs per row of `placement`")
    parser.add_argument("--masks", type=int, default=50, help="masks per model of `peers`")
    parser.add_argument("--most", type=int, default=200_000, help="nodes of the largest graph of `growth`")
    arguments = parser.parse_args()
    chosen = [word for word in arguments.what if word in FIGURES] or list(FIGURES)
    arguments.models = [Path(word) for word in arguments.what if word not in FIGURES] or sorted(LIGHT.glob("*.onnx"))
    missing = [path for path in arguments.models if not path.is_file()]
    if missing:
        parser.error(f"{str(missing[0])!r} is neither a figure nor a file; figures are {', '.join(FIGURES)}")
    for name in chosen:
        print(f"{FIGURES[name](arguments)}\n", flush=True)


def segments(arguments: argparse.Namespace) -> str:
    """Exact against exhaustive search."""
    rows = []
    for labels in (2, 3, 4):
        seeds = range(labels - 2, 10_000, 3)
        cases = [random_case(seed) for seed in seeds]
        found = [(len(cut(*case).segments), fewest_segments(*case)) for case in cases]
        greedy = [len(schedule(graph.atom_predecessors, placement, work=0)[0]) for graph, placement in cases]
        equal = sum(ours == best for ours, best in found)
        missed = sum(count > best for count, (_, best) in zip(greedy, found, strict=True))
        rows.append([labels, len(cases), equal, f"{missed / len(cases):.1%}"])
    return table(["labels", "graphs of up to 12 nodes", "equal to exhaustive search", "greedy misses"], rows)


def peers(arguments: argparse.Namespace) -> str:
    """Segments beside what others cut, over models and masks."""
    rows = []
    for path in arguments.models:
        graph = read_graph(onnx.load(path, load_external_data=False))
        small = TORCH and len(graph.nodes) <= TORCH_NODES
        counts = np.array([_counts(graph, mask, small) for mask in masks(graph, arguments.masks)], float)
        ours, own, more = counts[:, 0], counts[:, 4], (counts[:, 1:4] > counts[:, [0, 0, 4]]).sum(axis=0)
        less = (counts[:, 1:4] < counts[:, [0, 0, 4]]).sum()
        tflite, nnadapter, torch = counts[:, 1:4].mean(axis=0)
        text = [f"{ours.mean():.1f}", f"{tflite:.1f} ({more[0]})", f"{nnadapter:.1f} ({more[1]})", f"{own.mean():.1f}"]
        rows.append([path.stem, len(graph.nodes), *text, f"{torch:.1f} ({more[2]})" if small else "-", less])
    head = ["model", "nodes", "segments", "TFLite's rule", "NNAdapter's rule", "of the device", "torch.fx", "ours more"]
    return table(head, rows) + "\nmeans over the masks; in brackets: masks with more than ours"


def _counts(graph: Graph, mask: Sequence[str], torch_too: bool) -> tuple[float, ...]:
    found = cut(graph, mask, host="cpu").segments
    own = sum(segment.device == "npu" for segment in found)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch = len(torch_fx_partitions(graph, mask, "npu")) if torch_too else math.nan
    return len(found), len(tflite_subsets(graph, mask)), len(nnadapter_clusters(graph, mask)), torch, own


def placement(arguments: argparse.Namespace) -> str:
    """Mean excess over the optimum and how tight bounds are."""
    rows = []
    for devices, most, count in ((2, 14, arguments.graphs), (3, 7, arguments.graphs // 2)):
        for name, launch in LAUNCHES.items():
            cases = [_case(seed, devices, most, launch) for seed in range(count)]
            found = np.array([_placed(*case) for case in cases])
            cost, bound, plain_gap, best, host, supported = found.T
            assert (bound <= best * (1 + 1e-9)).all()
            shares = [f"{(each / best - 1).mean():.2%}" for each in (cost, supported, host)]
            rows.append([devices, name, count, *shares, f"{(cost <= best * (1 + 1e-9)).mean():.1%}"])
            rows[-1] += [f"{(best / bound - 1).mean():.2%}", f"{plain_gap.mean():.2%}"]
    head = ["devices", "launch", "graphs", "excess", "everything supported", "all on the host", "optimal"]
    return table([*head, "optimum over bound", "gap that a report shows"], rows)


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
        from tests.partition.brute_force import cheapest_cost

        return cheapest_cost(graph, prices)
    every = np.array(list(product((0, 1), repeat=len(graph.atoms))), np.int8).T
    return float(price_many(graph, aligned(graph, prices), every).min())


def repeats(arguments: argparse.Namespace) -> str:
    """Layers that repeat, solved once, beside the same graph solved as a whole."""
    rows = []
    for devices, layers, size in ((2, 24, 14), (2, 50, 20), (2, 100, 10), (2, 100, 50), (3, 24, 14), (3, 50, 20)):
        found = np.array([_repeated(seed, devices, layers, size) for seed in range(24 // devices)])
        more, whole, folded = found[:, 0], *found[:, 1:].mean(axis=0)
        shares = [f"{each:+.2%}" for each in (more.mean(), more.max(), more.min())]
        rows.append([devices, layers, size, len(found), *shares, f"{whole:.2f}", f"{folded:.2f}"])
    head = ["devices", "layers", "nodes each", "graphs", "cost against the whole", "most", "least"]
    return table([*head, "whole s", "folded s"], rows)


def _repeated(seed: int, devices: int, layers: int, size: int) -> tuple[float, float, float]:
    graph = repeating(layers, size, seed, outside=3)
    names, launch = ("npu", "gpu", "cpu")[3 - devices :], list(LAUNCHES.values())[seed % 3]
    prices = kind_prices(graph, seed, devices=names, launch=launch, transfer=(1.0, 0.25, 0.05)[seed // 3 % 3])
    blocks = blocks_of(graph)
    graph.derive()
    started = time.perf_counter()
    whole = place_by_latency(graph, prices)
    between = time.perf_counter()
    folded = place_by_latency(graph, prices, blocks=blocks)
    ended = time.perf_counter()
    assert max(whole.bound, folded.bound) <= min(whole.cost, folded.cost) * (1 + 1e-9)
    return folded.cost / whole.cost - 1, between - started, ended - between


def speed(arguments: argparse.Namespace) -> str:
    """From finished verdicts to the plan."""
    rows = []
    for name, make in FAMILIES.items():
        size = 100_000
        priority = _priority(make(size))
        graph = make(size)
        latency = _latency(graph)
        rows.append([name, size, f"{priority:.2f}", f"{latency[0]:.2f}", f"{latency[1]:.1%}"])
    return table(["graph", "nodes", "by priority s", "by latency s", "gap"], rows) + "\n\n" + _beside_torch()


def _beside_torch() -> str:
    rows = []
    if TORCH:
        _torch(woven(2), ("npu", "cpu"))  # imports torch
    for size in (250, 500, 1_000, 2_000) if TORCH else ():
        graph = woven(size)
        mask = next(iter(masks(graph, 1)))
        ours, theirs = (_seconds(partial(each, graph, mask)) for each in (cut, _torch))
        rows.append([size, f"{ours * 1e3:.1f}", f"{theirs * 1e3:.0f}"])
    return table(["nodes", "cut ms", "torch.fx ms"], rows)


def _torch(graph: Graph, mask: Sequence[str]) -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch_fx_partitions(graph, mask, "npu")


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _priority(graph: Graph) -> float:
    mask = next(iter(masks(graph, 1)))
    verdicts = {
        "npu": [SUPPORTED if label == "npu" else NO for label in mask],
        "cpu": [SUPPORTED] * len(mask),
    }

    def work() -> None:
        placed = place_by_priority(graph, ("npu", "cpu"), verdicts)
        found = cut(graph, placed, host="cpu")
        make_plan(graph, ("npu", "cpu"), verdicts, placed, found.segments, exact=found.exact)

    return _seconds(work)


def _latency(graph: Graph) -> tuple[float, float]:
    prices = random_prices(graph, launch=2.0)
    graph.__dict__.pop("topology")  # it is part of the work
    verdicts = {name: [SUPPORTED] * len(graph.atoms) for name in prices.devices}
    started = time.perf_counter()
    placed = place_by_latency(graph, prices)
    found = cut(graph, placed.placement, host="cpu")
    make_plan(graph, prices.devices, verdicts, placed.placement, found.segments, exact=found.exact)
    return time.perf_counter() - started, placed.gap


def growth(arguments: argparse.Namespace) -> str:
    """How time grows with the number of nodes."""
    sizes = sorted({*(size for size in (1_000, 4_000, 16_000, 64_000) if size < arguments.most), arguments.most})
    rows = []
    for name in ("transformer", "woven"):
        for policy, taken in (("priority", _priority), ("latency", lambda graph: _latency(graph)[0])):
            seconds = [statistics.median(taken(FAMILIES[name](size)) for _ in range(3)) for size in sizes]
            exponent = f"{np.polyfit(np.log(sizes), np.log(seconds), 1)[0]:.2f}" if len(sizes) > 1 else ""
            rows.append([name, policy, *(f"{each:.3f}" for each in seconds), exponent])
    return table(["graph", "policy", *(f"{size:,} s" for size in sizes), "exponent"], rows)


def memory(arguments: argparse.Namespace) -> str:
    """What placement, segments and the plan hold at most, per node."""
    rows = []
    for size in (12_500, 25_000, 50_000, 100_000, 200_000):
        graph = transformer(size)
        tracemalloc.start()
        _latency(graph)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        rows.append([size, f"{peak / 2**20:.1f}", f"{peak / size / 1024:.2f}"])
    return table(["nodes", "peak MiB", "KiB per node"], rows)


FIGURES: dict[str, Callable[[argparse.Namespace], str]] = {
    "segments": segments,
    "peers": peers,
    "placement": placement,
    "repeats": repeats,
    "speed": speed,
    "growth": growth,
    "memory": memory,
}

if __name__ == "__main__":
    main()
