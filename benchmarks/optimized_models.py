"""Models as ONNX Runtime's optimizers write them, on a device: what it takes of them, and how far results are apart.

    python benchmarks/optimized_models.py [NAME...] [-d fake_npu] [--json FILE]

Models whose names contain a NAME, or all. What is off is the root of the mean square beside ONNX Runtime's results on
the same file without further optimization, as a part of these, for the output that is worst. A row fails that is off by
more than 1e-4, or of whose floating-point operations less than 95 % run on the device.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import onnxruntime

import nnadapter as nna
from benchmarks.choosing import containing
from benchmarks.models.optimized_models import MODELS, Optimized, optimized
from benchmarks.timing import table
from benchmarks.written_models import LEAST_FLOPS, off

HEAD = ("model", "fused nodes", "nodes", "FLOPs", "segments", "off", "")
MOST_OFF = 1e-4


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("-d", "--device", default="fake_npu")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)  # the optimizer's advice
    warnings.simplefilter("ignore")
    rows = [row_of(each, arguments.device) for each in optimized(containing(parser, arguments.names, MODELS))]
    print(table(HEAD, list(map(_cells, rows))))
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2))
    sys.exit(not all(row["passes"] for row in rows))


def row_of(model: Optimized, device: str) -> dict[str, Any]:
    """What a device takes of a model, and how far its results are off."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    right = onnxruntime.InferenceSession(model.model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    wanted = right.run(None, dict(model.feeds))
    with nna.InferenceSession(model.model, devices=[device, "cpu"], options=nna.Options(fallback="allow")) as session:
        results = session.run(None, model.feeds)
        report = session.report()
    apart = off(results, wanted)
    fused = Counter(node.op_type for node in model.model.graph.node if node.domain)
    return {
        "model": model.name,
        "fused": dict(fused),
        "nodes": report.coverage.nodes,
        "flops": report.coverage.flops,
        "segments": len(report.segments),
        "off": apart,
        "passes": apart <= MOST_OFF and report.coverage.flops >= LEAST_FLOPS,
    }


def _cells(row: dict[str, Any]) -> list[object]:
    shares = [f"{row[name]:.1%}" for name in ("nodes", "flops")]
    return [
        row["model"],
        sum(row["fused"].values()),
        *shares,
        row["segments"],
        f"{row['off']:.1e}",
        "" if row["passes"] else "FAILS",
    ]


if __name__ == "__main__":
    main()
