"""What passing large values from segment to segment costs: chains of segments on two devices in turn.

    python benchmarks/borders.py [--pairs cpu,fake_npu openvino,cpu ...] [--segments 50 100] [--rounds 15] [--json FILE]

Every segment is one node on a tensor of 4 MB. A run stands beside three sums, which take turns with it:

- of what its segments took in that run: the rest is what passing values on costs this package;
- of what they take alone: each one's own program, three times after another, from one piece of memory to another. The
  input is written anew before each time, as in the run, where another segment has just made it: what was read a moment
  ago is read faster. Between two engines whose threads share a cache it is not as fast: a part of the input lies where
  a thread of the other engine left it, and that engine's threads are awake still;
- of the same chain by hand: calls of both engines' own interfaces, one after the other on three pieces of memory, with
  nothing between them. That is what the machine asks for two engines in turn.

Copies are counted by address: what a segment is handed must lie where another one put it, or where the caller has it.
Each chain has a process of its own, for its memory: the most that was resident while its session ran first, and what is
left when all is closed, the sessions of the chain by hand too; both above what there was before.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

sys.path.insert(0, str(Path(__file__).parents[1]))

import nnadapter as nna
from benchmarks.resident import MEGABYTE, peak_bytes, resident_bytes
from benchmarks.timing import interleaved, table
from nnadapter.ir.operand import Array
from nnadapter.running.bound_step import BoundStep
from nnadapter.running.pool import ExecutionPool

SHAPE = (1024, 1024)
PAIRS = ("cpu,fake_npu", "cpu,openvino", "cpu,null", "openvino,cpu", "openvino,fake_npu", "fake_npu,cpu")
OPS = ("Relu", "Neg")
SUMS = ("in the run", "alone", "by hand")
REPEATS = 3
_COMPUTES = (ExecutionPool.compute.__code__, ExecutionPool.compute_into.__code__)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
    sums = [f"{name} {unit}" for name in SUMS for unit in ("ms", "times")]
    head = ("devices", "segments", "run ms", *sums, "copies", "memory MB", "left MB")
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
    ends, hand = (np.empty_like(x), np.empty_like(x)), by_hand(pair.split(","), count, x)
    taken: dict[str, list[float]] = {name: [] for name in ("run", *SUMS)}
    for _ in range(rounds):
        within: list[float] = []
        run = partial(_run, session, x, steps, within)
        taken["run"].append(interleaved({"run": run}, 1, turn=0.2)["run"])
        taken["in the run"].append(median(within))
        taken["alone"].append(sum(_alone(step, x, *ends) for step in steps))
        taken["by hand"].append(interleaved({"hand": hand}, 1, turn=0.2)["hand"])
    del steps, calls, hand, run
    session.close()
    del session
    gc.collect()
    left = resident_bytes()
    return {
        "devices": pair,
        "segments": count,
        **{name: median(seconds) for name, seconds in taken.items()},
        "copies": copies,
        "peak": peak - before,
        "left": left - before,
    }


def chain_session(devices: list[str], count: int) -> nna.InferenceSession:
    """A chain of so many nodes, which the devices take in turn."""
    model = _chain_model(0, count)
    rules = "\n".join(f'[[pin]]\ndevice = "{device}"\nname = "*_{at}"' for at, device in enumerate(devices))
    named = [device for device in devices if device != "cpu"]
    return nna.InferenceSession(model, devices=named, options=nna.Options(rules=rules))


def by_hand(devices: list[str], count: int, x: Array) -> Callable[[], None]:
    """The same chain without this package: what to call for a run."""
    places = [x, *(np.empty_like(x) for _ in range(3))]
    calls = []
    for at in range(count):
        source, target = places[0 if not at else 1 + at % 3], places[1 + (at + 1) % 3]
        calls.append(BY_HAND[devices[at % 2]](at, source, target))

    return partial(_each, calls, places)


def _each(calls: list[Callable[[], object]], _: list[Array]) -> None:
    """Call them in turn; what they are bound to by address lives as long as this can be called."""
    for call in calls:
        call()


def _by_onnxruntime(at: int, source: Array, target: Array) -> Callable[[], object]:
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # it would disturb its neighbor
    alone = onnxruntime.InferenceSession(
        _chain_model(at, 1).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    binding = alone.io_binding()
    binding.bind_input(f"v{at}", "cpu", 0, np.float32, SHAPE, _address(source))
    binding.bind_output(f"v{at + 1}", "cpu", 0, np.float32, SHAPE, _address(target))
    return partial(alone.run_with_iobinding, binding)


def _by_openvino(at: int, source: Array, target: Array) -> Callable[[], object]:
    import openvino

    core, settings = openvino.Core(), {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    compiled = core.compile_model(core.read_model(_chain_model(at, 1).SerializeToString()), "CPU", settings)
    request = compiled.create_infer_request()
    request.set_input_tensor(openvino.Tensor(source, shared_memory=True))
    request.set_output_tensor(openvino.Tensor(target, shared_memory=True))
    return lambda: request.infer()


def _by_numpy(at: int, source: Array, target: Array) -> Callable[[], object]:
    return partial(np.negative, source, target) if at % 2 else partial(np.maximum, source, 0, target)


def _by_nothing(at: int, source: Array, target: Array) -> Callable[[], object]:
    return partial(target.fill, 0)


BY_HAND = {"cpu": _by_onnxruntime, "openvino": _by_openvino, "fake_npu": _by_numpy, "null": _by_nothing}


def _chain_model(first: int, count: int) -> onnx.ModelProto:
    """So many nodes of a chain, from this one on."""
    span = range(first, first + count)
    nodes = [helper.make_node(OPS[at % 2], [f"v{at}"], [f"v{at + 1}"], name=f"{at}_{at % 2}") for at in span]
    ends = [helper.make_tensor_value_info(f"v{at}", TensorProto.FLOAT, SHAPE) for at in (first, first + count)]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


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


def _run(session: nna.InferenceSession, x: Array, steps: list[BoundStep], within: list[float]) -> None:
    session.run(None, {"v0": x})
    within.append(sum(step.seconds for step in steps))


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
    run = row["run"]
    sums = [cell for name in SUMS for cell in (f"{row[name] * 1e3:.1f}", f"{run / row[name]:.2f}")]
    counts = [str(row["copies"]), *_megabytes(row["peak"], row["left"])]
    return [row["devices"], str(row["segments"]), f"{run * 1e3:.1f}", *sums, *counts]


def _megabytes(*amounts: float) -> list[str]:
    return [f"{amount / MEGABYTE:.0f}" for amount in amounts]


if __name__ == "__main__":
    main()
