"""Models as ONNX Runtime's quantizers and optimizers write them: coverage on a device, and the error of the results.

The error is the root mean square of the difference from ONNX Runtime's results on the same file without further
optimization, relative to these, of the worst output. A quantized model fails if its error is above the error of
quantizing itself, the difference of ONNX Runtime's results before and after: a device that rounds a number up, while
ONNX Runtime rounds it down, stays below. An optimized model fails above 1e-4. A model also fails if less than 95 % of
its FLOPs run on the device.
"""

from __future__ import annotations

import argparse
import logging
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime

import nnadapter as nna
from benchmarks.harness import Results, select_containing
from benchmarks.models import optimized_models, quantized_models
from benchmarks.models.optimized_models import Optimized, optimized
from benchmarks.models.quantized_models import Written, feeds_of, written

_LEAST_FLOPS = 0.95
_ERROR_LIMIT = 1e-4


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("names", nargs="*", metavar="NAME", help="models whose names contain one of these")
    parser.add_argument("-d", "--device", default="fake_npu")
    parser.add_argument("--tool", choices=_TOOLS, action="append", help="both by default")


def run(options: argparse.Namespace, results: Results) -> None:
    """Run every chosen model."""
    logging.disable(logging.WARNING)  # the tools' advice
    warnings.simplefilter("ignore")
    tools = options.tool or list(_TOOLS)
    names_of_tools = [name for tool in tools for name in _TOOLS[tool][0]]
    names = select_containing(options.names, names_of_tools)
    for tool in tools:
        models, rows = _TOOLS[tool]
        chosen = [name for name in models if name in names]
        if not chosen:
            continue
        table = results.table(f"Written by the {tool}s")
        for row in rows(chosen, options.device):
            table.add(_shown(row))
            if not row["passes"]:
                results.fail(f"{row['model']}")


def _quantized_rows(names: Sequence[str], device: str) -> Iterator[dict[str, Any]]:
    return (quantized_row(model, device) for model in written(names))


def _optimized_rows(names: Sequence[str], device: str) -> Iterator[dict[str, Any]]:
    return (optimized_row(model, device) for model in optimized(names))


_TOOLS: Mapping[str, tuple[Mapping[str, Any], Callable[[Sequence[str], str], Iterator[dict[str, Any]]]]] = {
    "quantizer": (quantized_models.MODELS, _quantized_rows),
    "optimizer": (optimized_models.MODELS, _optimized_rows),
}
"""The models that each tool writes, and what returns their rows."""


def quantized_row(model: Written, device: str) -> dict[str, Any]:
    """Return the coverage of a quantized model, its error, and the error of quantizing."""
    feeds = feeds_of(model.before, seed=5)
    right = _run_by_onnxruntime(model.model, feeds)
    error_of_quantizing = _relative_error(right, _run_by_onnxruntime(model.before, feeds))
    row = {"model": model.name, **_run_on_device(model.model, feeds, right, device)}
    is_right = row["error"] <= error_of_quantizing and row["flops"] >= _LEAST_FLOPS
    return {**row, "error of quantizing": error_of_quantizing, "passes": is_right}


def optimized_row(model: Optimized, device: str) -> dict[str, Any]:
    """Return the coverage of an optimized model, its fused nodes, and its error."""
    right = _run_by_onnxruntime(model.model, model.feeds)
    fused = Counter(node.op_type for node in model.model.graph.node if node.domain)
    row = {"model": model.name, "fused": dict(fused), **_run_on_device(model.model, model.feeds, right, device)}
    return {**row, "passes": row["error"] <= _ERROR_LIMIT and row["flops"] >= _LEAST_FLOPS}


def _run_on_device(
    model: onnx.ModelProto, feeds: Mapping[str, np.ndarray], right: Sequence[np.ndarray], device: str
) -> dict[str, Any]:
    with nna.InferenceSession(model, devices=[device, "cpu"], options=nna.Options(fallback="allow")) as session:
        results = session.run(None, feeds)
        report = session.report()
    return {
        "nodes": report.coverage.nodes,
        "flops": report.coverage.flops,
        "segments": len(report.segments),
        "error": _relative_error(results, right),
    }


def _relative_error(actual: Sequence[np.ndarray], right: Sequence[np.ndarray]) -> float:
    """Return the root mean square of the difference relative to the right results, of the worst output."""
    pairs = zip(actual, right, strict=True)
    return max(float(np.sqrt(((got - want) ** 2).mean() / (want**2).mean())) for got, want in pairs)


def _run_by_onnxruntime(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    outputs: Sequence[np.ndarray] = session.run(None, dict(feeds))
    return outputs


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with shares in percent and the number of fused nodes."""
    shown = {"nodes": 100 * row["nodes"], "flops": 100 * row["flops"]}
    if "fused" in row:
        shown["fused"] = sum(row["fused"].values())
    columns = {"nodes": "nodes %", "flops": "FLOPs %", "fused": "fused nodes"}
    return {columns.get(name, name): shown.get(name, value) for name, value in row.items()}
