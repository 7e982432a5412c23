"""Models as ONNX Runtime's tools write them, on a device: what it takes of them, and how far the results are apart.

    python benchmarks/written_models.py [NAME...] [-d fake_npu] [--json FILE]

Models whose names contain a NAME, or all. What is off is the root of the mean square beside ONNX Runtime's results on
the same file without optimization, as a part of these, for the output that is worst. Beside it is what quantizing
changed: ONNX Runtime's results on the file beside its results before. A device that rounds a number up where ONNX
Runtime rounds it down is off by less than that; more is a mistake. So a row fails that is off by more, or of whose
floating-point operations less than 95 % run on the device.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

sys.path.insert(0, str(Path(__file__).parents[1]))

import nnadapter as nna
from benchmarks.choosing import containing
from benchmarks.models.quantized_models import MODELS, Feeds, Written, feeds_of, written
from benchmarks.timing import table

HEAD = ("model", "nodes", "FLOPs", "segments", "off", "by quantizing", "")
LEAST_FLOPS = 0.95


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("-d", "--device", default="fake_npu")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)  # the quantizers' advice
    warnings.simplefilter("ignore")
    rows = [row_of(each, arguments.device) for each in written(containing(parser, arguments.names, MODELS))]
    print(table(HEAD, list(map(_cells, rows))))
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2))
    sys.exit(not all(row["passes"] for row in rows))


def row_of(model: Written, device: str) -> dict[str, Any]:
    """What a device takes of a model, and how far its results are off."""
    feeds = feeds_of(model.before, seed=5)
    right = _onnxruntime(model.model, feeds)
    by_quantizing = off(right, _onnxruntime(model.before, feeds))
    with nna.InferenceSession(model.model, devices=[device, "cpu"], options=nna.Options(fallback="allow")) as session:
        results = session.run(None, feeds)
        report = session.report()
    apart = off(results, right)
    return {
        "model": model.name,
        "nodes": report.coverage.nodes,
        "flops": report.coverage.flops,
        "segments": len(report.segments),
        "off": apart,
        "by_quantizing": by_quantizing,
        "passes": apart <= by_quantizing and report.coverage.flops >= LEAST_FLOPS,
    }


def off(results: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> float:
    """The root of the mean square of the difference as a part of what is wanted, of the worst output."""
    pairs = zip(results, wanted, strict=True)
    return max(float(np.sqrt(((got - want) ** 2).mean() / (want**2).mean())) for got, want in pairs)


def _onnxruntime(model: onnx.ModelProto, feeds: Feeds) -> Sequence[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    results: Sequence[np.ndarray] = session.run(None, dict(feeds))
    return results


def _cells(row: dict[str, Any]) -> list[object]:
    shares = [f"{row[name]:.1%}" for name in ("nodes", "flops")]
    errors = [f"{row[name]:.1e}" for name in ("off", "by_quantizing")]
    return [row["model"], *shares, row["segments"], *errors, "" if row["passes"] else "FAILS"]


if __name__ == "__main__":
    main()
