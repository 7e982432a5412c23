"""A job on three nodes of Ray's on this machine: what it costs beside sessions by hand, and what a dead node does.

    python benchmarks/ray_batch.py [--rows 10000] [--rounds 3]

It needs the extra ray. Nodes are processes here, and so is the loss of one: its processes are killed in the middle.
1. 10,000 rows, a node killed, a driver that fails one run in twenty: every row once, all right, the summary adds up.
2. The same rows through as many processes without Ray, each with a session of the same compiled file.
3. What a batch costs beside its run, by a model that does next to nothing.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from onnx import parser
from timing import table

import nnadapter as nna

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.ray.cluster import cluster

FAULTS = '[[fault]]\nkind = "fail"\nphase = "run"\nprobability = 0.05\n'
SLOW = '[[fault]]\nkind = "slow"\nphase = "run"\nseconds = 0.05\n'
DEVICE = "faulty:fake_npu"
WIDTH, BATCH, ACTORS = 256, 64, 2
LAYERS = (64, 256)
"""Of models for the comparison: a run takes some 0.15 and 0.6 ms per row."""
EMPTY = parser.parse_model(
    '<ir_version: 10, opset_import: ["" : 17]> g (float[N, 16] x) => (float[N, 16] y) { y = Relu(x) }'
)


def heavy(layers: int) -> Any:
    """A model of some milliseconds per batch: products, one after the other."""
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    weights = [rng.normal(size=(WIDTH, WIDTH)).astype(np.float32) / 16 for _ in range(layers)]
    names = ["x", *(f"v{layer}" for layer in range(1, layers)), "y"]
    nodes = [helper.make_node("MatMul", [names[each], f"w{each}"], [names[each + 1]]) for each in range(layers)]
    graph = helper.make_graph(
        nodes, "heavy",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", WIDTH])],
        [numpy_helper.from_array(weight, f"w{i}") for i, weight in enumerate(weights)],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def main() -> None:
    """Print what each part shows."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rows", type=int, default=10_000)
    arguments.add_argument("--rounds", type=int, default=3)
    chosen = arguments.parse_args()
    resource = {f"nnadapter:{DEVICE}": 1}
    with cluster(3, cpus=2, resources=({}, resource, resource)) as (made, others):
        for layers in LAYERS:
            print_throughput(chosen.rows * 2, layers, chosen.rounds)
        print_overhead(chosen.rows)
        print_killed(chosen.rows, made, others)


def rows_of(width: int, rows: int) -> Any:
    """A dataset of rows with their numbers, which lie in Ray's object store."""
    import ray.data

    def make(batch: Any) -> Any:
        return {
            "id": batch["id"],
            "x": np.sin(batch["id"][:, None] + np.arange(width, dtype=np.float32)).astype(np.float32),
        }

    return ray.data.range(rows, override_num_blocks=20).map_batches(make, batch_format="numpy").materialize()


def numbers(ids: Any, width: int) -> Any:
    """The row of each number."""
    return np.sin(np.asarray(ids)[:, None] + np.arange(width, dtype=np.float32)).astype(np.float32)


def rate_of(dataset: Any, rows: int) -> float:
    """Rows per second of a result, from a fifth of the rows to nine tenths: the start of actors is left out."""
    seen: list[tuple[float, int]] = []
    done = threading.Event()

    def look() -> None:
        while not done.wait(0.05):
            seen.append((time.perf_counter(), nna.ray.report(dataset).rows))

    watcher = threading.Thread(target=look)
    watcher.start()
    for _ in dataset.iter_batches(batch_size=None):
        pass
    done.set()
    watcher.join()
    within = [each for each in seen if rows * 0.2 <= each[1] <= rows * 0.9]
    (began, first), (ended, last) = within[0], within[-1]
    return (last - first) / (ended - began)


def print_killed(rows: int, made: Any, others: Any) -> None:
    """Kill a node in the middle."""
    data = rows_of(16, rows)
    result = nna.ray.map_batches(
        data, EMPTY, devices=(DEVICE, {"script": FAULTS + SLOW}), options={"fallback": "allow"}, keep=["id"],
        batch_size=BATCH, concurrency=ACTORS,
    )  # fmt: skip
    counted = []

    def kill() -> None:
        while (so_far := nna.ray.report(result).rows) < rows // 3:
            time.sleep(0.05)
        made.remove_node(others[-1], allow_graceful=False)
        counted.append(so_far)

    killer = threading.Thread(target=kill)
    killer.start()
    found = result.take_all()
    killer.join()
    ids = sorted(row["id"] for row in found)
    given, wanted = np.stack([row["y"] for row in found]), numbers([row["id"] for row in found], 16)
    right = np.allclose(given, np.maximum(wanted, 0), atol=1e-5)
    report = nna.ray.report(result)
    print(f"\na node killed behind {counted[0]} rows, one run in twenty failing:")
    sums = (sum(report.rows_by_device.values()), sum(each.rows for each in report.machines))
    lines = [
        ("rows that came, each once", f"{len(found)}, {ids == list(range(rows))}"),
        ("all right", right),
        ("rows in the summary, by device, by machine", (report.rows, *sums)),
        ("rows that fell back", report.rows_fallen_back),
        ("batches that ran again", f"{report.repeated_batches} of {report.repeated_rows} rows"),
        ("kinds of machines, compiles", f"{len(report.kinds)}, {report.compiles}"),
    ]
    print(table(["what", "seen"], lines))
    report.save(Path(tempfile.gettempdir(), "ray_batch.html"))


def by_hand(path: str, start: Any, ready: Any, batches: list[Any], queue: Any) -> None:
    """A process with a session: what an actor is, without Ray."""
    from nnadapter.ray.sessions import session_options

    session = nna.InferenceSession(path, sess_options=session_options(1))
    session.run(None, {"x": batches[0]})
    ready.release()
    start.wait()
    began = time.perf_counter()
    for batch in batches:
        session.run(None, {"x": batch})
    queue.put((began, time.perf_counter()))


def hand_seconds(path: str, rows: int) -> float:
    """Seconds of as many processes as there are actors."""
    context = multiprocessing.get_context("spawn")
    start, ready, queue = context.Event(), context.Semaphore(0), context.Queue()
    all_rows = numbers(np.arange(rows), WIDTH)
    batches = [all_rows[first : first + BATCH] for first in range(0, rows, BATCH)]
    processes = [
        context.Process(target=by_hand, args=(path, start, ready, batches[place::ACTORS], queue))
        for place in range(ACTORS)
    ]
    for process in processes:
        process.start()
    for _ in processes:
        ready.acquire()
    start.set()
    spans = [queue.get() for _ in processes]
    for process in processes:
        process.join()
    return max(end for _, end in spans) - min(began for began, _ in spans)


def print_throughput(rows: int, layers: int, rounds: int) -> None:
    """Rows per second by Ray and by hand, in turn."""
    model = heavy(layers)
    data = rows_of(WIDTH, rows)
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "heavy.compiled"))
        nna.compile(model, path, devices="cpu", input_shapes={"x": (BATCH, WIDTH)}, open_sizes=True)
        taken: dict[str, list[float]] = {"by Ray": [], "by hand": []}
        for _ in range(rounds):
            result = nna.ray.map_batches(data, model, devices="cpu", batch_size=BATCH, concurrency=ACTORS)
            taken["by Ray"].append(rate_of(result, rows))
            report = nna.ray.report(result)
            taken["by hand"].append(rows / hand_seconds(path, rows))
    told = f"{rows} rows, {ACTORS} actors of one thread, batches of {BATCH}, median of {rounds}"
    print(f"\n{layers} layers, {told}:")
    ray_rate, hand_rate = median(taken["by Ray"]), median(taken["by hand"])
    lines = [(name, f"{median(rates):.0f}", f"{median(rates) / hand_rate:.3f}") for name, rates in taken.items()]
    print(table(["who", "rows per second", "of by hand"], lines))
    print(f"by Ray {1 - ray_rate / hand_rate:.1%} below by hand; compiles {report.compiles}")


def print_overhead(rows: int) -> None:
    """What a row costs beside its run, by a model that does nothing."""
    rows *= 20
    result = nna.ray.map_batches(rows_of(16, rows), EMPTY, devices="cpu", batch_size=BATCH, concurrency=1)
    seconds, report = 1 / rate_of(result, rows), nna.ray.report(result)
    runs = report.seconds / report.rows
    print(f"\n{report.rows} rows of next to nothing, batches of {BATCH}, one actor:")
    print(f"{seconds * 1e6:.1f} us per row, of which runs {runs * 1e6:.1f} us; beside {(seconds - runs) * 1e6:.1f} us")


if __name__ == "__main__":
    main()
