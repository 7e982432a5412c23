"""Cost of passing large values between segments: chains of segments on two devices in turn.

Every segment is one node on a tensor of 4 MB. Each chain runs in a process of its own, for its memory. The time of a
run is compared with:

- the sum of its steps: the difference is the cost of this package;
- the same chain by hand: calls of both engines' own interfaces, one after the other on three buffers, with nothing
  between them. It takes turns with the run.

The memory is the peak while the session runs for the first time, and what remains after everything is closed, both
above the memory before.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

import nnadapter as nna
from benchmarks.harness import MEGABYTE, Results, in_process, interleaved, peak_bytes, resident_bytes

_SHAPE = (1024, 1024)
_PAIRS = ("cpu,fake_npu", "cpu,openvino", "cpu,null", "openvino,cpu", "openvino,fake_npu", "fake_npu,cpu")
_OPS = ("Relu", "Neg")
Array = np.ndarray[Any, Any]
Call = Callable[[], object]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--pairs", nargs="+", default=_PAIRS, metavar="DEVICE,DEVICE")
    parser.add_argument("--segments", nargs="+", type=int, default=(50, 100))
    parser.add_argument("--rounds", type=int, default=15)


def run(options: argparse.Namespace, results: Results) -> None:
    """Measure every chain."""
    table = results.table()
    for pair in options.pairs:
        for count in options.segments:
            measurement = in_process(measure_chain, pair.split(","), count, options.rounds)
            seconds, steps, by_hand = measurement["run"], measurement["steps"], measurement["by hand"]
            table.add(
                {
                    "devices": pair,
                    "segments": count,
                    "run ms": 1e3 * seconds,
                    "steps ms": 1e3 * steps,
                    "run / steps": seconds / steps,
                    "by hand ms": 1e3 * by_hand,
                    "run / by hand": seconds / by_hand,
                    "peak MB": measurement["peak"] / MEGABYTE,
                    "left MB": measurement["left"] / MEGABYTE,
                }
            )


def measure_chain(devices: Sequence[str], count: int, rounds: int) -> dict[str, float]:
    """Return the medians of one chain in seconds, and its memory in bytes."""
    x = np.random.default_rng(0).standard_normal(_SHAPE).astype(np.float32)
    initial_bytes = resident_bytes()
    session = chain_session(devices, count)
    session.run(None, {"v0": x})
    assert len(session.provenance.steps) == count, "the devices take turns"
    peak = peak_bytes()
    by_hand = _chain_by_hand(devices, count, x)
    durations: dict[str, list[float]] = {"run": [], "steps": [], "by hand": []}
    for _ in range(rounds):
        steps: list[float] = []
        durations["run"].append(interleaved({"run": partial(_run, session, x, steps)}, 1, turn=0.2)["run"])
        durations["steps"].append(median(steps))
        durations["by hand"].append(interleaved({"by hand": by_hand}, 1, turn=0.2)["by hand"])
    del by_hand
    session.close()
    del session
    gc.collect()
    medians = {name: median(seconds) for name, seconds in durations.items()}
    return {**medians, "peak": peak - initial_bytes, "left": resident_bytes() - initial_bytes}


def chain_session(devices: Sequence[str], count: int) -> nna.InferenceSession:
    """Return a session of a chain of so many nodes, which are pinned to the devices in turn."""
    rules = "\n".join(f'[[pin]]\ndevice = "{device}"\nname = "*_{at}"' for at, device in enumerate(devices))
    named = [device for device in devices if device != "cpu"]
    return nna.InferenceSession(_chain_model(0, count), devices=named, options=nna.Options(rules=rules))


def _run(session: nna.InferenceSession, x: Array, steps: list[float]) -> None:
    session.run(None, {"v0": x})
    steps.append(session.provenance.seconds)


def _chain_by_hand(devices: Sequence[str], count: int, x: Array) -> Call:
    """Return a call that runs the same chain without this package."""
    buffers = [x, *(np.empty_like(x) for _ in range(3))]
    calls = []
    for at in range(count):
        source, target = buffers[1 + at % 3 if at else 0], buffers[1 + (at + 1) % 3]
        calls.append(_BY_HAND[devices[at % 2]](at, source, target))
    return partial(_call_each, calls, buffers)


def _call_each(calls: Sequence[Call], _: Sequence[Array]) -> None:
    """Make the calls in order; the buffers that they have the addresses of live as long as this partial."""
    for call in calls:
        call()


def _by_onnxruntime(at: int, source: Array, target: Array) -> Call:
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # it would disturb its neighbor
    contents = _chain_model(at, 1).SerializeToString()
    ort_session = onnxruntime.InferenceSession(contents, options, providers=["CPUExecutionProvider"])
    binding = ort_session.io_binding()
    binding.bind_input(f"v{at}", "cpu", 0, np.float32, _SHAPE, source.ctypes.data)
    binding.bind_output(f"v{at + 1}", "cpu", 0, np.float32, _SHAPE, target.ctypes.data)
    return partial(ort_session.run_with_iobinding, binding)


def _by_openvino(at: int, source: Array, target: Array) -> Call:
    import openvino

    core, settings = openvino.Core(), {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    compiled = core.compile_model(core.read_model(_chain_model(at, 1).SerializeToString()), "CPU", settings)
    request = compiled.create_infer_request()
    request.set_input_tensor(openvino.Tensor(source, shared_memory=True))
    request.set_output_tensor(openvino.Tensor(target, shared_memory=True))
    return lambda: request.infer()


def _by_numpy(at: int, source: Array, target: Array) -> Call:
    return partial(np.negative, source, target) if at % 2 else partial(np.maximum, source, 0, target)


def _by_nothing(at: int, source: Array, target: Array) -> Call:
    return partial(target.fill, 0)


_BY_HAND = {"cpu": _by_onnxruntime, "openvino": _by_openvino, "fake_npu": _by_numpy, "null": _by_nothing}


def _chain_model(first: int, count: int) -> onnx.ModelProto:
    """Return so many nodes of the chain, beginning with the node `first`."""
    span = range(first, first + count)
    nodes = [helper.make_node(_OPS[at % 2], [f"v{at}"], [f"v{at + 1}"], name=f"{at}_{at % 2}") for at in span]
    ends = [helper.make_tensor_value_info(f"v{at}", TensorProto.FLOAT, _SHAPE) for at in (first, first + count)]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
