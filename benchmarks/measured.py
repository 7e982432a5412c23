"""Policy `measured` beside ONNX Runtime alone and beside everything that the devices take.

    python benchmarks/measured.py MODEL... [--devices fake_npu] [--rounds 15] [--json FILE]

All three take turns with the same random feed. The last column is the time of what was measured over the better of the
two others; 1.05 is what noise may add. Nothing is remembered from earlier runs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import warnings
from functools import partial
from pathlib import Path

import onnxruntime

sys.path.insert(0, str(Path(__file__).parents[1]))  # before this script's folder, which holds a partition.py too

import nnadapter as nna
from benchmarks.timing import interleaved, table
from nnadapter.feeds import random_feed


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--devices", default="fake_npu")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", nna.errors.FallbackWarning)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["NNADAPTER_CACHE_DIR"] = folder
        for model in arguments.models:
            rows.append(measure(model, arguments.devices.split(","), arguments.rounds))
            print(f"{rows[-1]['model']}: {rows[-1]['ratio']:.3f}", file=sys.stderr)
    head = ["model", "chosen", "all on cpu ms", "everything supported ms", "measured ms", "over the better"]
    print(table(head, [_cells(row) for row in rows]))
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2))


def measure(model: str, devices: list[str], rounds: int) -> dict[str, object]:
    """Return the medians of one model's runs, in seconds."""
    feed = random_feed(model)
    host = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    with (
        nna.InferenceSession(model, devices=devices) as supported,
        nna.InferenceSession(model, devices=devices, options=nna.Options(policy="measured")) as measured,
    ):
        measured.run(None, feed)
        cost = measured.report().cost
        assert cost is not None, "what was measured is known"
        runs = {
            "cpu": partial(host.run, None, feed),
            "supported": partial(supported.run, None, feed),
            "measured": partial(measured.run, None, feed),
        }
        found = interleaved(runs, rounds, pause=0.02)  # threads of the one before stop looking for work
    ratio = found["measured"] / min(found["cpu"], found["supported"])
    return {"model": Path(model).name, "chosen": cost.candidates[0].name, **found, "ratio": ratio}


def _cells(row: dict[str, object]) -> list[str]:
    milliseconds = [f"{float(str(row[name])) * 1e3:.2f}" for name in ("cpu", "supported", "measured")]
    return [str(row["model"]), str(row["chosen"]), *milliseconds, f"{row['ratio']:.3f}"]


if __name__ == "__main__":
    main()
