"""Inference of ResNet-50 and BERT through torch.compile on openvino, beside OpenVINO by itself; what a call costs.

    python benchmarks/pytorch_speed.py [ResNet-50] [BERT] [calls] [--rounds 20]

`OpenVINO` is its own session of what PyTorch's exporter writes of the whole module, fed with arrays; both take turns in
one process. `calls` are those of small networks on `null`, which computes nothing, beside PyTorch's back end `eager`,
which computes them. Times are medians.
"""

from __future__ import annotations

import argparse
import io
import logging
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))

import nnadapter as nna
from benchmarks.choosing import named
from benchmarks.models.pytorch_models import Made, pictures, resnet50, tokens
from benchmarks.timing import interleaved, table

Run = Callable[[], Any]
_PROPERTIES = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32", "EXECUTION_MODE_HINT": "ACCURACY"}


def bert(length: int = 128) -> Made:
    """BERT as published, 12 layers of 768, for one row of tokens."""
    configuration = transformers.BertConfig(return_dict=False)
    return transformers.BertModel(configuration).eval(), {"input_ids": tokens(1, length)}


_MODELS: dict[str, Callable[[], Made]] = {
    "ResNet-50": lambda: (resnet50().eval(), {"input": pictures(224)[:1]}),
    "BERT": bert,
}
_CALLS = "calls"
_SMALL = {
    "4 weights": nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)),
    "140 weights": nn.Sequential(*(nn.Linear(16, 16) for _ in range(70))),
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="MODEL")
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable()
    head = (
        "model",
        "PyTorch, ms",
        "torch.compile on openvino, ms",
        "OpenVINO, ms",
        "over OpenVINO",
    )
    names = named(parser, arguments.names, (*_MODELS, _CALLS))
    rows = [row_of(name, *_MODELS[name](), arguments.rounds) for name in names if name != _CALLS]
    if rows:
        print(table(head, rows), end="\n\n")
    if _CALLS in names:
        calls = [call_of(name, module.eval(), arguments.rounds) for name, module in _SMALL.items()]
        print(table(("a call with", "eager, us", "null, us", "more, us"), calls))


def row_of(name: str, module: Any, inputs: dict[str, Any], rounds: int) -> list[str]:
    """The times of one model."""
    ways = {
        "eager": in_pytorch(module, inputs),
        "ours": in_pytorch(
            torch.compile(module, backend=nna.torch.nnadapter, options={"devices": ["openvino"]}), inputs
        ),
        "plain": in_openvino(module, inputs),
    }
    for way in ("ours", "plain"):
        np.testing.assert_allclose(np.asarray(ways[way]()), np.asarray(ways["eager"]()), rtol=1e-3, atol=1e-3)
    times = {way: 1e3 * seconds for way, seconds in interleaved(ways, rounds, pause=0.2, turn=0.5).items()}
    return [name, *(f"{times[way]:.2f}" for way in ways), f"{times['ours'] / times['plain']:.3f}"]


def call_of(name: str, module: nn.Module, rounds: int) -> list[str]:
    """What a call of a network takes, in us."""
    inputs, on_null = {"input": torch.randn(1, 16)}, {"devices": ["null"]}
    ways = {
        "eager": in_pytorch(torch.compile(module, backend="eager"), inputs),
        "null": in_pytorch(torch.compile(module, backend=nna.torch.nnadapter, options=on_null), inputs),
    }
    times = {}
    for (
        way,
        run,
    ) in ways.items():  # each by itself: PyTorch looks through what it compiled of a module, the latest first
        torch._dynamo.reset()
        run()
        times[way] = 1e6 * interleaved({way: run}, rounds, turn=0.2)[way]
    return [name, *(f"{times[way]:.1f}" for way in ways), f"{times['null'] - times['eager']:.1f}"]


def in_pytorch(run: Callable[..., Any], inputs: dict[str, Any]) -> Run:
    """Call it, and return its first result."""

    def once() -> Any:
        with torch.no_grad():
            results = run(**inputs)
        return results if isinstance(results, torch.Tensor) else results[0]

    return once


def in_openvino(module: Any, inputs: dict[str, Any]) -> Run:
    """OpenVINO's own session of the module as an ONNX model."""
    import openvino

    written = io.BytesIO()
    torch.onnx.export(module, (), kwargs=inputs, dynamo=True, verbose=False).save(written)
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(io.BytesIO(written.getvalue())), "CPU", _PROPERTIES)
    feeds = [each.numpy() for each in inputs.values()]
    return lambda: next(iter(compiled(feeds).values()))


if __name__ == "__main__":
    main()
