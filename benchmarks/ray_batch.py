"""A job on Ray nodes on this machine: its cost compared with sessions without Ray, and the loss of a node.

    throughput   jobs of some seconds, and the same rows through as many processes without Ray, each with a session of
                 the same compiled file: rows per second from a fifth of the rows to nine tenths, and of the entire job
    overhead     the overhead of a row, of a model that does next to nothing
    killed       rows on three nodes, one killed in the middle, with a driver that fails one run in twenty:
                 every row once, all right, and the sums of the report

Nodes are processes on this machine, and a node is lost by killing its processes.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import pairwise
from math import prod
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from onnx import TensorProto, helper, numpy_helper, parser

import nnadapter as nna
from benchmarks.harness import Results, UsageError
from tests.ray.cluster import cluster

FAULTS = '[[fault]]\nkind = "fail"\nphase = "run"\nprobability = 0.05\n'
SLOW = '[[fault]]\nkind = "slow"\nphase = "run"\nseconds = 0.05\n'
DEVICE = "faulty:fake_npu"
TICKS = os.sysconf("SC_CLK_TCK")
BATCH, ACTORS, BLOCK = 64, 2, 1000
"""Rows of a run and of a block of the data; actors, and processes by hand."""
WIDTH, SIDE = 64, 96
"""Numbers per row, and pixels per side of a picture."""
LOOK = 0.5
"""Seconds between samples of the job: each takes some milliseconds of the job's processors."""
CYCLE = 20
"""Batches that a process by hand runs again and again."""


class Load(NamedTuple):
    """A model for the comparison."""

    name: str
    model: Callable[[], Any]
    row: tuple[int, ...]
    ms: float
    """Approximate milliseconds of a row, to choose the number of rows."""


EMPTY = parser.parse_model(
    '<ir_version: 10, opset_import: ["" : 17]> g (float[N, 16] x) => (float[N, 16] y) { y = Relu(x) }'
)


def products(layers: int) -> Any:
    """Return a model of products, one after the other."""
    sizes = [WIDTH, *[256] * (layers - 1), WIDTH]
    weights = [weights_of(pair, pair[0]) for pair in pairwise(sizes)]
    return chain([("MatMul", weight, {}) for weight in weights], (WIDTH,), (WIDTH,))


def pictures() -> Any:
    """Return a model of convolutions on images."""
    shapes, strides = [(32, 3, 3, 3), (64, 32, 3, 3), (64, 64, 3, 3), (64, 64, 3, 3), (16, 64, 3, 3)], (2, 1, 1, 1, 4)
    steps = [
        ("Conv", weights_of(shape, 9 * shape[1]), {"strides": [stride] * 2, "pads": [1] * 4})
        for shape, stride in zip(shapes, strides, strict=True)
    ]
    return chain(steps, (3, SIDE, SIDE), (16, SIDE // 8, SIDE // 8))


def weights_of(shape: tuple[int, ...], summed: int) -> Any:
    """Return weights that preserve the size of values."""
    return (np.random.default_rng(0).normal(size=shape) / np.sqrt(summed)).astype(np.float32)


def chain(steps: list[tuple[str, Any, dict[str, Any]]], row: tuple[int, ...], result_shape: tuple[int, ...]) -> Any:
    """Return a model of operations with weights, one after the other."""
    names = ["x", *(f"v{place}" for place in range(1, len(steps))), "y"]
    nodes = [
        helper.make_node(operation, [names[place], f"w{place}"], [names[place + 1]], **attributes)
        for place, (operation, _, attributes) in enumerate(steps)
    ]
    graph = helper.make_graph(
        nodes, "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", *row])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", *result_shape])],
        [numpy_helper.from_array(weight, f"w{place}") for place, (_, weight, _) in enumerate(steps)],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


LOADS = (
    Load("64 products", partial(products, 64), (WIDTH,), 0.09),
    Load("256 products", partial(products, 256), (WIDTH,), 0.36),
    Load("pictures", pictures, (3, SIDE, SIDE), 5.0),
)
PARTS = ("throughput", "overhead", "killed")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="of a job of the throughput")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)


def run(options: argparse.Namespace, results: Results) -> None:
    """Run the chosen parts."""
    if {"throughput", "overhead"} & set(options.parts):
        with cluster(cpus=ACTORS, store_bytes=2 << 30):  # Ray keeps a process ready for each
            if "throughput" in options.parts:
                measure_throughput(options.seconds, options.rounds, results)
            if "overhead" in options.parts:
                measure_overhead(options.rows, results)
    if "killed" in options.parts:
        resource = {f"nnadapter:{DEVICE}": 1}
        with cluster(3, cpus=2, resources=({}, resource, resource)) as (ray_cluster, other_nodes):
            measure_killed(options.rows, ray_cluster, other_nodes, results)


def rows_of(row: tuple[int, ...], rows: int) -> Any:
    """Return a dataset of rows with their numbers, in Ray's object store."""
    import ray.data

    def make(batch: Any) -> Any:
        return {"id": batch["id"], "x": numbers(batch["id"], row)}

    blocks = max(CYCLE, rows // BLOCK)
    return ray.data.range(rows, override_num_blocks=blocks).map_batches(make, batch_format="numpy").materialize()


def numbers(ids: Any, row: tuple[int, ...]) -> Any:
    """Return the row of each number."""
    every = np.asarray(ids, np.float32)[:, None] + np.arange(prod(row), dtype=np.float32) % 1000
    return np.sin(every).reshape(-1, *row)


class Pace(NamedTuple):
    """Rates and costs of a job."""

    steady: float
    """Rows per second, from a fifth of the rows to nine tenths."""
    whole: float
    """Rows per second from its start to its end."""
    first: float
    """Seconds until a batch was counted."""
    actors: float
    """Seconds of processors per row that the actors took, while it was steady."""
    others: float
    """The same of this process and of all other ones of Ray's."""


def pace_of(make: Callable[[], Any], rows: int) -> Pace:
    """Consume a result, and sample its progress."""
    started = time.perf_counter()
    result = make()
    samples: list[tuple[float, int]] = []
    computed: list[tuple[int, tuple[float, float]]] = []
    stop_event = threading.Event()

    def look() -> None:
        while not stop_event.wait(LOOK):
            counted = nna.ray.report(result).rows
            samples.append((time.perf_counter() - started, counted))
            if counted >= rows * (0.2, 0.8)[min(len(computed), 1)] and len(computed) < 2:
                computed.append((counted, processor_seconds()))

    watcher = threading.Thread(target=look)
    watcher.start()
    for _ in result.iter_batches(batch_size=None):
        pass
    seconds = time.perf_counter() - started
    stop_event.set()
    watcher.join()
    within = [sample for sample in samples if rows * 0.2 <= sample[1] <= rows * 0.9]
    if len(computed) < 2 or len(within) < 2:
        raise UsageError(
            f"{rows} rows were done in {seconds:.1f} s, too soon to see a steady pace; --seconds must be more"
        )
    (first_time, from_), (last_time, to) = computed
    actors, other_load = ((late - early) / (last_time - first_time) for early, late in zip(from_, to, strict=True))
    return Pace(
        steady=float(np.polyfit(*zip(*within, strict=True), 1)[0]),
        whole=rows / seconds,
        first=next(when for when, counted in samples if counted),
        actors=actors,
        others=other_load,
    )


def processor_seconds() -> tuple[float, float]:
    """Return the processor seconds of a job's actors, and of all other processes that this one started."""
    parents, ticks, actors = {}, {}, set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            number = int(folder.name)
            parents[number], ticks[number] = int(fields[1]), int(fields[11]) + int(fields[12])
            if b"MapWorker" in (folder / "cmdline").read_bytes():
                actors.add(number)
    mine, children = {os.getpid()}, True
    while children:
        children = {number for number, parent in parents.items() if parent in mine} - mine
        mine |= children
    sums = (sum(ticks[process] for process in mine & actors), sum(ticks[process] for process in mine - actors))
    return sums[0] / TICKS, sums[1] / TICKS


def measure_killed(rows: int, ray_cluster: Any, other_nodes: Any, results: Results) -> None:
    """Kill a node in the middle."""
    data = rows_of((16,), rows)
    result = nna.ray.map_batches(
        data, EMPTY, devices=(DEVICE, {"script": FAULTS + SLOW}), options={"fallback": "allow"},
        passthrough_columns=["id"], batch_size=BATCH, concurrency=ACTORS,
    )  # fmt: skip
    counted = []

    def kill() -> None:
        while (so_far := nna.ray.report(result).rows) < rows // 3:
            time.sleep(0.05)
        ray_cluster.remove_node(other_nodes[-1], allow_graceful=False)
        counted.append(so_far)

    killer = threading.Thread(target=kill)
    killer.start()
    result_rows = result.take_all()
    killer.join()
    ids = sorted(row["id"] for row in result_rows)
    actual, expected = np.stack([row["y"] for row in result_rows]), numbers([row["id"] for row in result_rows], (16,))
    right = np.allclose(actual, np.maximum(expected, 0), atol=1e-5)
    report = nna.ray.report(result)
    is_complete = ids == list(range(rows))
    results.table(f"A node killed after {counted[0]} rows, one run in twenty failing").add(
        {
            "rows": len(result_rows),
            "each once": is_complete,
            "all right": bool(right),
            "rows in the report": report.rows,
            "by device": sum(report.rows_by_device.values()),
            "by machine": sum(machine.rows for machine in report.machines),
            "rows that fell back": report.fallback_rows,
            "repeated batches": report.repeated_batches,
            "repeated rows": report.repeated_rows,
            "kinds of machines": len(report.kinds),
            "compiles": report.compiles,
        }
    )
    if not (is_complete and right):
        results.fail("rows are missing, repeated or wrong")


def by_hand(path: str, row: tuple[int, ...], runs: int, start: Any, ready: Any, queue: Any) -> None:
    """Run batches in a process with a session, as an actor does, without Ray."""
    from nnadapter.ray.actors import session_options

    session = nna.InferenceSession(path, sess_options=session_options(1))
    batches = [numbers(np.arange(BATCH) + place * BATCH, row) for place in range(min(CYCLE, runs))]
    session.run(None, {"x": batches[0]})
    ready.release()
    start.wait()
    began, computed = time.perf_counter(), time.process_time()
    for run in range(runs):
        session.run(None, {"x": batches[run % len(batches)]})
    queue.put((began, time.perf_counter(), time.process_time() - computed))


def hand_pace(path: str, row: tuple[int, ...], rows: int, actors: int) -> tuple[float, float]:
    """Return the rows per second of as many processes as there are actors, and processor seconds per row."""
    context = multiprocessing.get_context("spawn")
    start, ready, queue = context.Event(), context.Semaphore(0), context.Queue()
    runs = rows // actors // BATCH
    processes = [context.Process(target=by_hand, args=(path, row, runs, start, ready, queue)) for _ in range(actors)]
    for process in processes:
        process.start()
    for _ in processes:
        ready.acquire()
    start.set()
    spans = [queue.get() for _ in processes]
    for process in processes:
        process.join()
    row_count = runs * BATCH * actors
    seconds = max(end for _, end, _ in spans) - min(began for began, _, _ in spans)
    return row_count / seconds, sum(computed for _, _, computed in spans) / row_count


def measure_throughput(seconds: float, rounds: int, results: Results) -> None:
    """Measure rows per second by Ray and by hand, in turn, with one process and with two."""
    table = results.table(f"Batches of {BATCH}, sessions of one thread, median of {rounds} jobs each, in turn")
    for load in LOADS:
        for actors in (1, ACTORS):
            table.add(compared(load, actors, int(1000 * seconds / load.ms) * actors, rounds))


def compared(load: Load, actors: int, rows: int, rounds: int) -> dict[str, Any]:
    """Return a row of the throughput."""
    model, data = load.model(), rows_of(load.row, rows)
    paces, hands = [], []
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "load.compiled"))
        nna.compile(model, path, devices="cpu", input_shapes={"x": (BATCH, *load.row)}, dynamic_shapes=True)
        for _ in range(rounds):
            hands.append(hand_pace(path, load.row, rows, actors))
            job = partial(nna.ray.map_batches, data, model, devices="cpu", batch_size=BATCH, concurrency=actors)
            paces.append(pace_of(job, rows))
    hand, computed = (median(values) for values in zip(*hands, strict=True))
    steady, total, first, by_actors, other_load = (median(values) for values in zip(*paces, strict=True))
    return {
        "model": load.name,
        "rows": rows,
        "actors": actors,
        "by hand rows/s": hand,
        "by Ray, steady rows/s": steady,
        "steady / by hand": steady / hand,
        "entire job / by hand": total / hand,
        "first row s": first,
        "processor us per row, by hand": 1e6 * computed,
        "processor us per row, actors": 1e6 * by_actors,
        "processor us per row, all else of Ray": 1e6 * other_load,
    }


def measure_overhead(rows: int, results: Results) -> None:
    """Measure the overhead of a row, with a model that does nothing."""
    rows *= 100
    overheads = []

    def job() -> Any:
        overheads.append(nna.ray.map_batches(data, EMPTY, devices="cpu", batch_size=BATCH, concurrency=1))
        return overheads[-1]

    data = rows_of((16,), rows)
    seconds, report = 1 / pace_of(job, rows).steady, nna.ray.report(overheads[-1])
    runs = report.seconds / report.rows
    results.table(f"{report.rows} rows of next to nothing, batches of {BATCH}, one actor").add(
        {"us per row": 1e6 * seconds, "of it runs": 1e6 * runs, "besides": 1e6 * (seconds - runs)}
    )
