"""A session's `run` beside the engine's own best call, for a model that a device takes as a whole.

    python benchmarks/devices.py MODEL... [--threads 0] [--rounds 200] [--json FILE]

Only openvino:CPU has an engine to compare with so far. Both sides compile the same model with the same properties. The
engine's side has its tensors set beforehand, so it hands out one array that the next run overwrites; ours hands out new
arrays. Both take turns with the same random feed. 1.02 is the bar for models of 1 ms and more.
"""

from __future__ import annotations

import argparse
import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import openvino

sys.path.insert(0, str(Path(__file__).parents[1]))

import nnadapter as nna
from benchmarks.timing import interleaved, table
from nnadapter.offering.feeds import random_feed


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = [measure(model, arguments.threads, arguments.rounds) for model in arguments.models]
    print(table(["model", "off the CPU", "engine ms", "session ms", "times"], [_cells(row) for row in rows]))
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2))


def measure(model: str, threads: int, rounds: int) -> dict[str, Any]:
    """Return the medians of one model's runs, in seconds."""
    feed = random_feed(model)
    device = ("openvino:CPU", {"threads": threads})
    with nna.InferenceSession(model, devices=device, options=nna.Options(fallback="allow")) as session:
        session.run(None, feed)
        request, held = _request(model, feed, threads)
        found = interleaved({"engine": request.infer, "session": partial(session.run, None, feed)}, rounds)
        del held
        nodes = session.report().coverage.nodes
    return {"model": Path(model).name, "nodes": nodes, **found, "ratio": found["session"] / found["engine"]}


def _request(model: str, feed: dict[str, np.ndarray], threads: int) -> tuple[Any, list[np.ndarray]]:
    """The engine's request with all its tensors set, and the arrays under them, which it does not keep alive."""
    core = openvino.Core()
    network = core.read_model(model)
    names = [next(name for name in feed if name in port.get_names()) for port in network.inputs]
    network.reshape({port: list(feed[name].shape) for port, name in zip(network.inputs, names, strict=True)})
    properties = {"INFERENCE_PRECISION_HINT": "f32", "EXECUTION_MODE_HINT": "ACCURACY", "PERFORMANCE_HINT": "LATENCY"}
    if threads:
        properties["INFERENCE_NUM_THREADS"] = str(threads)
    compiled = core.compile_model(network, "CPU", properties)
    request = compiled.create_infer_request()
    arrays = [np.array(feed[name]) for name in names]
    results = [np.empty(tuple(port.shape), port.element_type.to_dtype()) for port in compiled.outputs]
    for port, array in zip((*compiled.inputs, *compiled.outputs), (*arrays, *results), strict=True):
        request.set_tensor(port, openvino.Tensor(array, shared_memory=True))
    return request, arrays + results


def _cells(row: dict[str, Any]) -> list[str]:
    milliseconds = [f"{row[name] * 1e3:.3f}" for name in ("engine", "session")]
    return [row["model"], f"{row['nodes']:.0%}", *milliseconds, f"{row['ratio']:.3f}"]


if __name__ == "__main__":
    main()
