"""Quantized networks on a device, compared with OpenVINO and ONNX Runtime alone, and the error of their results.

Each network is quantized in four ways by ONNX Runtime's quantizer: activations in int8 or uint8, one scale per tensor
of weights or per channel. All sides take turns with the same input. The error is the root mean square of the difference
from ONNX Runtime's results without optimization, relative to these.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Mapping
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import onnx
import onnxruntime
import openvino

import nnadapter as nna
from benchmarks.harness import Results, interleaved, select
from benchmarks.models.quantized_models import ACTIVATIONS, NETWORKS, feeds_of, quantized

_OPENVINO = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
_PAUSE = 0.02


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("networks", nargs="*", metavar="NETWORK", help=f"of {', '.join(NETWORKS)}")
    parser.add_argument("-d", "--device", default="openvino")
    parser.add_argument("--rounds", type=int, default=30)


def run(options: argparse.Namespace, results: Results) -> None:
    """Measure every network in every quantization."""
    logging.disable(logging.WARNING)  # the quantizer's advice
    table = results.table()
    for name, activations, per_channel in product(select(options.networks, NETWORKS), ACTIVATIONS, (False, True)):
        model = quantized(NETWORKS[name](), activations, per_channel=per_channel)
        form = f"{name} {activations} {'per channel' if per_channel else 'per tensor'}"
        table.add({"network": form, **_measure(model, options.device, options.rounds)})


def _measure(model: onnx.ModelProto, device: str, rounds: int) -> dict[str, Any]:
    """Return the medians of a model's runs, and the error of the results."""
    feed = feeds_of(model, seed=5)
    with nna.InferenceSession(model, devices=device, options=nna.Options(fallback="allow")) as session:
        runs: Mapping[str, Callable[[], Any]] = {
            "onnxruntime": partial(_onnxruntime(model).run, None, dict(feed)),
            "openvino": _openvino(model, feed),
            "session": partial(session.run, None, feed),
        }
        (right,) = _onnxruntime(model, onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL).run(None, dict(feed))
        errors = {name: 100 * _relative_error(runs[name]()[0], right) for name in ("onnxruntime", "session")}
        seconds = interleaved(runs, rounds, _PAUSE)
        return {
            "segments": len(session.report().segments),
            "ONNX Runtime ms": 1e3 * seconds["onnxruntime"],
            "OpenVINO ms": 1e3 * seconds["openvino"],
            "session ms": 1e3 * seconds["session"],
            "over OpenVINO": seconds["session"] / seconds["openvino"],
            "over ONNX Runtime": seconds["session"] / seconds["onnxruntime"],
            "ONNX Runtime error %": errors["onnxruntime"],
            "session error %": errors["session"],
        }


def _onnxruntime(model: onnx.ModelProto, level: Any = None) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    if level is not None:
        options.graph_optimization_level = level
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _openvino(model: onnx.ModelProto, feed: Mapping[str, np.ndarray]) -> Callable[[], object]:
    core = openvino.Core()
    request = core.compile_model(core.read_model(model.SerializeToString()), "CPU", _OPENVINO).create_infer_request()
    (array,) = feed.values()
    request.set_input_tensor(openvino.Tensor(array))
    return request.infer


def _relative_error(actual: np.ndarray, right: np.ndarray) -> float:
    return float(np.sqrt(((actual - right) ** 2).mean() / (right**2).mean()))
