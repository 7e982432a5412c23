"""What passing large values from segment to segment costs: chains of segments on two devices in turn.

    python benchmarks/borders.py [--pairs cpu,fake_npu openvino,cpu ...] [--segments 50 100] [--rounds 15] [--json FILE]

Every segment is one node on a tensor of 4 MB. A run is compared with the sum of what its segments take alone: each
one's own program, three times after another, from one piece of memory to another. The input is written anew before
each time, as in the run, where another segment has just made it: what was read a moment ago is read faster. Runs and
segments take turns. Copies are counted by address: what a segment is handed must lie where another one put it, or where
the caller has it. Each chain has a process of its own, for its memory: the most that was resident, and what is left
when the session is closed, both above what there was before it.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
from onnx import TensorProto, helper

sys.path.insert(0, str(Path(__file__).parents[1]))  # before this script's folder, which holds a partition.py too

import nnadapter as nna
from benchmarks.resident import MEGABYTE, peak_bytes, resident_bytes
from benchmarks.timing import interleaved, table
from nnadapter.ir.operand import Array
from nnadapter.running.bound_step import BoundStep
from nnadapter.running.pool import ExecutionPool

SHAPE = (1024, 1024)
PAIRS = ("cpu,fake_npu", "cpu,openvino", "cpu,null", "openvino,cpu", "openvino,fake_npu", "fake_npu,cpu")
OPS = ("Relu", "Neg")
REPEATS = 3
_COMPUTES = (ExecutionPool.compute.__code__, ExecutionPool.compute_into.__code__)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", nargs="+", default=PAIRS)
    parser.add_argument("--segments", nargs="+", type=int, default=(50, 100))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--alone", action="store_true", help="measure one chain in this process")
    arguments = parser.parse_args()
    if arguments.alone:
        print(json.dumps(measured(arguments.pairs[0], arguments.segments[0], arguments.rounds)))
        return
    rows = [in_process(pair, count, arguments.rounds) for pair in arguments.pairs for count in arguments.segments]
    head = ("devices", "segments", "run ms", "alone ms", "times", "copies", "memory MB", "left MB")
    print(table(head, [_line(row) for row in rows]))
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2))


def in_process(pair: str, count: int, rounds: int) -> dict[str, Any]:
    """What `measured` gives, by a process of its own."""
    own = (sys.executable, __file__, "--alone", "--pairs", pair, "--segments", str(count), "--rounds", str(rounds))
    row: dict[str, Any] = json.loads(subprocess.run(own, check=True, capture_output=True, text=True).stdout)
    return row


def measured(pair: str, count: int, rounds: int) -> dict[str, Any]:
    """One chain: seconds, copies and bytes."""
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    before = resident_bytes()
    session = chain_session(pair.split(","), count)
    session.run(None, {"v0": x})
    with handed_over() as calls:
        session.run(None, {"v0": x})
    copies = count_copies(calls, x)
    steps = session._engine._plans.newest.plan.steps
    assert len(steps) == count, "the devices take turns"
    peak = peak_bytes()
    ends, runs, alone = (np.empty_like(x), np.empty_like(x)), [], []
    for _ in range(rounds):
        runs.append(interleaved({"run": partial(session.run, None, {"v0": x})}, 1, turn=0.2)["run"])
        alone.append(sum(_alone(step, x, *ends) for step in steps))
    del steps, calls
    session.close()
    del session
    gc.collect()
    left = resident_bytes()
    return {
        "devices": pair,
        "segments": count,
        "run": median(runs),
        "alone": median(alone),
        "copies": copies,
        "peak": peak - before,
        "left": left - before,
    }


def chain_session(devices: list[str], count: int) -> nna.InferenceSession:
    """A chain of so many nodes, which the devices take in turn."""
    nodes = [helper.make_node(OPS[at % 2], [f"v{at}"], [f"v{at + 1}"], name=f"{at}_{at % 2}") for at in range(count)]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in ("v0", f"v{count}")]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    rules = "\n".join(f'[[pin]]\ndevice = "{device}"\nname = "*_{at}"' for at, device in enumerate(devices))
    named = [device for device in devices if device != "cpu"]
    return nna.InferenceSession(model, devices=named, options=nna.Options(rules=rules))


@contextmanager
def handed_over() -> Iterator[list[tuple[list[int], list[int]]]]:
    """Addresses of what segments are handed and of what they give, in the order of their computations."""
    calls: list[tuple[list[int], list[int]]] = []

    def look(frame: Any, event: str, result: Any) -> None:
        if event == "return" and frame.f_code in _COMPUTES:
            calls.append(([_address(each) for each in frame.f_locals["inputs"]], [_address(each) for each in result]))

    sys.setprofile(look)
    try:
        yield calls
    finally:
        sys.setprofile(None)


def count_copies(calls: list[tuple[list[int], list[int]]], x: np.ndarray[Any, Any]) -> int:
    """How many values a segment was handed that lie where nobody put them."""
    known, copies = {_address(x)}, 0
    for inputs, outputs in calls:
        copies += sum(address not in known for address in inputs)
        known.update(outputs)
    return copies


def _alone(step: BoundStep, x: Array, source: Array, target: Array) -> float:
    taken = []
    for _ in range(REPEATS + 1):
        np.copyto(source, x)
        started = time.perf_counter()
        step.pool.compute_into([source], [target])
        taken.append(time.perf_counter() - started)
    return mean(taken[1:])


def _address(array: np.ndarray[Any, Any]) -> int:
    return int(array.__array_interface__["data"][0])


def _line(row: dict[str, Any]) -> list[str]:
    ratio = row["run"] / row["alone"]
    times = [f"{row['run'] * 1e3:.1f}", f"{row['alone'] * 1e3:.1f}", f"{ratio:.2f}"]
    return [row["devices"], str(row["segments"]), *times, str(row["copies"]), *_megabytes(row["peak"], row["left"])]


def _megabytes(*amounts: float) -> list[str]:
    return [f"{amount / MEGABYTE:.0f}" for amount in amounts]


if __name__ == "__main__":
    main()
