"""PyTorch models through torch.compile: does each finish, is it right, how much of it goes to the device.

    python benchmarks/pytorch.py [MODEL...] [-d fake_npu] [--train] [--long]

Results are compared with PyTorch's own; `--train` compares gradients of the sum of squares of all results instead.
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

import torch

import nnadapter as nna
from benchmarks.pytorch_models import Made, models
from benchmarks.timing import table

_HEAD = (
    "model",
    "graphs",
    "breaks",
    "operators",
    "in sessions",
    "nodes off the CPU",
    "FLOPs off the CPU",
    "error",
    "s",
)


def main() -> None:
    """Print a row for each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="MODEL")
    parser.add_argument("-d", "--device", default="fake_npu")
    parser.add_argument("--train", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    known = models()
    rows = [row_of(name, known[name](), arguments.device, arguments.train) for name in arguments.names or known]
    print(table(_HEAD, rows))


def row_of(name: str, made: Made, device: str, train: bool) -> tuple[object, ...]:
    """What came of one model."""
    torch._dynamo.reset()
    module, inputs = made
    began = time.perf_counter()
    try:
        run = torch.compile(module, backend=nna.torch.nnadapter, options={"devices": [device], "fallback": "allow"})
        error = (gradients_apart if train else results_apart)(module, run, inputs)
    except Exception as failure:  # noqa: BLE001  a row says so
        return (name, *[""] * 6, f"{type(failure).__name__}: {str(failure).strip().splitlines()[0][:120]}", "")
    report = nna.torch.report(run)
    operators, delegated = (sum(getattr(graph, key) for graph in report.graphs) for key in ("operators", "delegated"))
    nodes = [sum(counts) for counts in zip(*(graph.nodes for graph in report.graphs), strict=True)] or [0, 0]
    share = f"{nodes[0]} of {nodes[1]}"
    seconds = f"{time.perf_counter() - began:.1f}"
    shown = (len(report.graphs), len(report.breaks), operators, delegated, share, f"{report.flops_coverage:.1%}")
    return (name, *shown, f"{error:.1e}", seconds)


def results_apart(module: Any, run: Any, inputs: dict[str, Any]) -> float:
    """The largest difference of results, as a share of what is expected."""
    with torch.no_grad():
        expected, found = tensors_of(module(**inputs)), tensors_of(run(**inputs))
    return apart(found, expected)


def gradients_apart(module: Any, run: Any, inputs: dict[str, Any]) -> float:
    """The largest difference of gradients of parameters, as a share of what is expected."""
    given = {}
    for called in (module, run):
        module.zero_grad()
        results = [each for each in tensors_of(called(**inputs)) if each.requires_grad]
        sum(each.square().sum() for each in results).backward()
        given[called] = [each.grad.clone() for each in module.parameters() if each.grad is not None]
    return apart(given[run], given[module])


def apart(found: list[Any], expected: list[Any]) -> float:
    """The largest difference of two rows of tensors, as a share of the largest value expected in each."""
    assert len(found) == len(expected), f"{len(found)} tensors, expected {len(expected)}"
    pairs = zip(found, expected, strict=True)
    return max((_difference(one.detach().double(), other.detach().double()) for one, other in pairs), default=0.0)


def _difference(found: Any, expected: Any) -> float:
    scale = max(float(expected.abs().max()), 1e-3) if expected.numel() else 1.0
    return float((found - expected).abs().max()) / scale if expected.numel() else 0.0


def tensors_of(results: Any) -> list[Any]:
    """All tensors in what a model gives, in order; caches are left out."""
    if isinstance(results, torch.Tensor):
        return [results]
    if isinstance(results, dict):
        return [each for value in results.values() for each in tensors_of(value)]
    if isinstance(results, (tuple, list)):
        return [each for value in results for each in tensors_of(value)]
    return []


if __name__ == "__main__":
    main()
