"""Whole networks on fake_npu beside ONNX Runtime with the same threads: nets that onnx ships, and RapidOCR's.

    python benchmarks/networks.py [--rounds 20] [--json FILE]

The weights of onnx's light nets are constant, which makes no difference to the kernels measured here.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import onnx.backend.test
import onnxruntime
import rapidocr

sys.path.insert(0, str(Path(__file__).parent))

from timing import interleaved, table

import nnadapter as nna
from nnadapter.feeds import random_feed

LIGHT = Path(onnx.backend.test.__file__).parent / "data" / "light"
OCR = Path(rapidocr.__file__).parent / "models"
SHAPES = {"det": {"x": (1, 3, 480, 640)}, "rec": {"x": (1, 3, 48, 320)}, "cls": {"x": (1, 3, 48, 192)}}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = list(measurements(arguments.rounds))
    print(
        table(
            ["model", "fake_npu ms", "ONNX Runtime ms", "times"],
            [[r["model"], f"{r['ours'] * 1e3:.1f}", f"{r['theirs'] * 1e3:.1f}", f"{r['ratio']:.2f}"] for r in rows],
        )
    )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2))


def measurements(rounds: int) -> Iterator[dict[str, object]]:
    """One row per model."""
    for path in [*sorted(LIGHT.glob("*.onnx")), *sorted(OCR.glob("*.onnx"))]:
        shapes = next((shapes for kind, shapes in SHAPES.items() if kind in path.stem), None)
        feed = random_feed(path, shapes if path.parent == OCR else None)
        options = onnxruntime.SessionOptions()
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # it would disturb its neighbour
        options.log_severity_level = 3
        theirs = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        with nna.InferenceSession(path, devices="fake_npu") as ours:
            runs = {"ours": partial(ours.run, None, feed), "theirs": partial(theirs.run, None, feed)}
            seconds = interleaved(runs, rounds)
        yield {"model": path.stem, **seconds, "ratio": seconds["ours"] / seconds["theirs"]}


if __name__ == "__main__":
    main()
