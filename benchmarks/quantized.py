"""Quantized networks on a device, beside OpenVINO and ONNX Runtime alone, and how far their results are apart.

    python benchmarks/quantized.py [NETWORK...] [-d openvino] [--rounds 30] [--json FILE]

NETWORK is one of resnet18, resnet50, mobilenet and transformer. Each is quantized in four ways by ONNX Runtime's
quantizer: activations in int8 or uint8, one scale per tensor of weights or per channel. All sides take turns with the
same input. 1.1 times plain OpenVINO is the bar on openvino. What is off is the root of the mean square beside ONNX
Runtime's results without optimization, as a part of these.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import openvino

sys.path.insert(0, str(Path(__file__).parents[1]))

import nnadapter as nna
from benchmarks.choosing import named
from benchmarks.models.quantized_models import ACTIVATIONS, NETWORKS, feeds_of, quantized
from benchmarks.timing import interleaved, table

OPENVINO = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
PAUSE = 0.02
HEAD = ("network", "segments", "ONNX Runtime ms", "OpenVINO ms", "session ms", "over OpenVINO", "over ONNX Runtime")
OFF = ("ONNX Runtime off", "session off")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", metavar="NETWORK")
    parser.add_argument("-d", "--device", default="openvino")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)  # the quantizer's advice
    rows = []
    names = named(parser, arguments.networks, NETWORKS)
    for name, activations, per_channel in product(names, ACTIVATIONS, (False, True)):
        model = quantized(NETWORKS[name](), activations, per_channel=per_channel)
        row = measure(model, arguments.device, arguments.rounds)
        rows.append({"network": f"{name} {activations} {'per channel' if per_channel else 'per tensor'}", **row})
    print(table([*HEAD, *OFF], [_cells(row) for row in rows]))
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2))


def measure(model: onnx.ModelProto, device: str, rounds: int) -> dict[str, Any]:
    """Return the medians of a model's runs, in seconds, and how far the results are off."""
    feed = feeds_of(model, seed=5)
    with nna.InferenceSession(model, devices=device, options=nna.Options(fallback="allow")) as session:
        runs: Mapping[str, Callable[[], Any]] = {
            "onnxruntime": partial(_onnxruntime(model).run, None, dict(feed)),
            "openvino": _openvino(model, feed),
            "session": partial(session.run, None, feed),
        }
        (right,) = _onnxruntime(model, onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL).run(None, dict(feed))
        off = {f"{name}_off": _off(runs[name]()[0], right) for name in ("onnxruntime", "session")}
        return {"segments": len(session.report().segments), **interleaved(runs, rounds, PAUSE), **off}


def _onnxruntime(model: onnx.ModelProto, level: Any = None) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    if level is not None:
        options.graph_optimization_level = level
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _openvino(model: onnx.ModelProto, feed: Mapping[str, np.ndarray]) -> Callable[[], object]:
    core = openvino.Core()
    request = core.compile_model(core.read_model(model.SerializeToString()), "CPU", OPENVINO).create_infer_request()
    (array,) = feed.values()
    request.set_input_tensor(openvino.Tensor(array))
    return request.infer


def _off(got: np.ndarray, right: np.ndarray) -> float:
    return float(np.sqrt(((got - right) ** 2).mean() / (right**2).mean()))


def _cells(row: dict[str, Any]) -> list[object]:
    milliseconds = [f"{row[name] * 1e3:.2f}" for name in ("onnxruntime", "openvino", "session")]
    ratios = [f"{row['session'] / row[name]:.3f}" for name in ("openvino", "onnxruntime")]
    off = [f"{row[name]:.2%}" for name in ("onnxruntime_off", "session_off")]
    return [row["network"], row["segments"], *milliseconds, *ratios, *off]


if __name__ == "__main__":
    main()
