"""PyTorch models through torch.compile: does each finish, is it right, how much of it goes to the device.

    python benchmarks/pytorch.py [MODEL...] [-d fake_npu] [--json FILE]

Results are compared with PyTorch's own. PyTorch captures LSTM and GRU because it is told to (docs/pytorch.md).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

import nnadapter as nna
from benchmarks.choosing import named
from benchmarks.models.pytorch_models import Made, models
from benchmarks.timing import table


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What came of one model."""

    model: str
    graphs: int = 0
    breaks: int = 0
    operators: int = 0
    """Operators of ATen that do work."""
    in_sessions: int = 0
    """How many of them sessions run."""
    nodes: int = 0
    """Nodes of the sessions that run."""
    off_the_cpu: int = 0
    """How many of them run on the device."""
    flops: float = 0.0
    """The share of FLOPs on the device, 0 to 1."""
    error: float = 0.0
    """The largest difference of results, as a share of the largest value expected."""
    seconds: float = 0.0
    """Until the first result."""
    failure: str = ""
    """What was raised, if anything was."""


_HEAD = (
    "model",
    "graphs",
    "breaks",
    "operators",
    "in sessions",
    "nodes",
    "off the CPU",
    "FLOPs off the CPU",
    "error",
    "s",
)


def main() -> None:
    """Print a row for each model, as it comes, and what they come to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="MODEL")
    parser.add_argument("-d", "--device", default="fake_npu")
    parser.add_argument("--json", type=Path, help="write the rows here as well")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch._dynamo.config.allow_rnn = True
    known, rows = models(), []
    names = named(parser, arguments.names, known)
    print(table(_HEAD, []))
    for name in names:
        rows.append(row_of(name, known[name](), arguments.device))
        print("| " + " | ".join(_shown(rows[-1])) + " |", flush=True)
    print(_sum(rows))
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=2))


def row_of(name: str, made: Made, device: str) -> Row:
    """Run one model in PyTorch and through torch.compile."""
    torch._dynamo.reset()
    module, inputs = made
    run = torch.compile(module, backend=nna.torch.nnadapter, options={"devices": [device], "fallback": "allow"})
    try:
        with torch.no_grad():
            expected = tensors_of(module(**inputs))
            began = time.perf_counter()
            found = tensors_of(run(**inputs))
        seconds = time.perf_counter() - began
        error = apart(found, expected)
    except Exception as failure:  # noqa: BLE001  a row says so
        said = next(iter(str(failure).strip().splitlines()), "")
        return Row(model=name, failure=f"{type(failure).__name__}: {said[:120]}")
    report = nna.torch.report(run)
    nodes = [graph.nodes for graph in report.graphs]
    return Row(
        model=name,
        graphs=len(report.graphs),
        breaks=len(report.breaks),
        operators=sum(graph.operators for graph in report.graphs),
        in_sessions=sum(graph.delegated for graph in report.graphs),
        nodes=sum(running for _, running in nodes),
        off_the_cpu=sum(taken for taken, _ in nodes),
        flops=report.flops_coverage,
        error=error,
        seconds=seconds,
    )


def _shown(row: Row) -> list[str]:
    if row.failure:
        return [row.model, *[""] * 7, row.failure, ""]
    counts = (row.graphs, row.breaks, row.operators, row.in_sessions, row.nodes, row.off_the_cpu)
    return [row.model, *map(str, counts), f"{row.flops:.1%}", f"{row.error:.1e}", f"{row.seconds:.1f}"]


def _sum(rows: Sequence[Row]) -> str:
    done = [row for row in rows if not row.failure]
    whole = sum((row.graphs, row.breaks) == (1, 0) and row.in_sessions == row.operators for row in done)
    taken = sum(row.off_the_cpu == row.nodes for row in done)
    worst = max((row.error for row in done), default=0.0)
    counts = f"{whole} as one graph without a break and whole in sessions, {taken} with all nodes on the device"
    return f"\n{len(done)} of {len(rows)} finish, {counts}; largest error {worst:.1e}"


def apart(found: Sequence[Any], expected: Sequence[Any]) -> float:
    """The largest difference of two rows of tensors, as a share of the largest value expected in each."""
    assert len(found) == len(expected), f"{len(found)} tensors, expected {len(expected)}"
    pairs = zip(found, expected, strict=True)
    return max((_difference(one.detach().double(), other.detach().double()) for one, other in pairs), default=0.0)


def _difference(found: Any, expected: Any) -> float:
    assert found.shape == expected.shape, f"a tensor {list(found.shape)}, expected {list(expected.shape)}"
    scale = max(float(expected.abs().max()), 1e-6) if expected.numel() else 1.0
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
