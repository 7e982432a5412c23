"""Inference of ResNet-50 and BERT through torch.compile on openvino, compared with OpenVINO alone; cost of a call.

`OpenVINO` is its own session of the ONNX model that PyTorch's exporter writes of the entire module, fed with arrays.
Both take turns in one process. `calls` times small networks on `null`, which computes nothing, and on PyTorch's
backend `eager`, which computes them. Times are medians.
"""

from __future__ import annotations

import argparse
import io
import logging
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

import nnadapter as nna
from benchmarks.harness import Results, interleaved, select
from benchmarks.models.pytorch_models import Made, pictures, resnet50, tokens

Run = Callable[[], Any]
_PROPERTIES = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32", "EXECUTION_MODE_HINT": "ACCURACY"}


def _bert(length: int = 128) -> Made:
    """Return BERT as published, 12 layers of 768, for one row of tokens."""
    import transformers

    configuration = transformers.BertConfig(return_dict=False)
    return transformers.BertModel(configuration).eval(), {"input_ids": tokens(1, length)}


_MODELS: dict[str, Callable[[], Made]] = {
    "ResNet-50": lambda: (resnet50().eval(), {"input": pictures(224)[:1]}),
    "BERT": _bert,
}
_CALLS = "calls"
_SMALL = {
    "4 weights": nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)),
    "140 weights": nn.Sequential(*(nn.Linear(16, 16) for _ in range(70))),
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("names", nargs="*", metavar="MODEL", help=f"of {', '.join((*_MODELS, _CALLS))}")
    parser.add_argument("--rounds", type=int, default=10)


def run(options: argparse.Namespace, results: Results) -> None:
    """Measure models, then calls."""
    warnings.simplefilter("ignore")
    logging.disable()
    names = select(options.names, (*_MODELS, _CALLS))
    if [*names] != [_CALLS]:
        table = results.table("Models")
        for name in names:
            if name != _CALLS:
                table.add({"model": name, **_measure_model(*_MODELS[name](), options.rounds)})
    if _CALLS in names:
        table = results.table("Calls")
        for name, module in _SMALL.items():
            table.add({"network": name, **_measure_call(module.eval(), options.rounds)})


def _measure_model(module: Any, inputs: dict[str, Any], rounds: int) -> dict[str, float]:
    ours = torch.compile(module, backend=nna.torch.nnadapter, options={"devices": ["openvino"]})
    ways = {
        "PyTorch ms": _in_pytorch(module, inputs),
        "torch.compile on openvino ms": _in_pytorch(ours, inputs),
        "OpenVINO ms": _in_openvino(module, inputs),
    }
    eager, ours_name, peer = ways
    for way in (ours_name, peer):
        np.testing.assert_allclose(np.asarray(ways[way]()), np.asarray(ways[eager]()), rtol=1e-3, atol=1e-3)
    times = {way: 1e3 * seconds for way, seconds in interleaved(ways, rounds, pause=0.2, turn=0.5).items()}
    return {**times, "over OpenVINO": times[ours_name] / times[peer]}


def _measure_call(module: nn.Module, rounds: int) -> dict[str, float]:
    inputs, on_null = {"input": torch.randn(1, 16)}, {"devices": ["null"]}
    ways = {
        "eager us": _in_pytorch(torch.compile(module, backend="eager"), inputs),
        "null us": _in_pytorch(torch.compile(module, backend=nna.torch.nnadapter, options=on_null), inputs),
    }
    times = {}
    for way, call in ways.items():  # each separately: PyTorch searches what it compiled of a module, the latest first
        torch._dynamo.reset()
        call()
        times[way] = 1e6 * interleaved({way: call}, rounds, turn=0.2)[way]
    return {**times, "more us": times["null us"] - times["eager us"]}


def _in_pytorch(function: Callable[..., Any], inputs: dict[str, Any]) -> Run:
    """Return a call without gradients that gives the first result."""

    def once() -> Any:
        with torch.no_grad():
            results = function(**inputs)
        return results if isinstance(results, torch.Tensor) else results[0]

    return once


def _in_openvino(module: Any, inputs: dict[str, Any]) -> Run:
    """Return a call of OpenVINO's own session of the module as an ONNX model."""
    import openvino

    written = io.BytesIO()
    torch.onnx.export(module, (), kwargs=inputs, dynamo=True, verbose=False).save(written)
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(io.BytesIO(written.getvalue())), "CPU", _PROPERTIES)
    feeds = [tensor.numpy() for tensor in inputs.values()]
    return lambda: next(iter(compiled(feeds).values()))
