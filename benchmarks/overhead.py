"""What a run costs beside the work: on `null`, which computes nothing, and on `cpu` alone beside ONNX Runtime's run.

On `null` also with a trace of the session, as `Options(trace=...)` keeps one.

    python benchmarks/overhead.py [--rounds 2000] [--json FILE]

Each model is one node or two. ONNX Runtime's threads do not spin, so that one side does not disturb the other.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import onnx.parser
import onnxruntime

sys.path.insert(0, str(Path(__file__).parents[1]))

import nnadapter as nna
from benchmarks.timing import interleaved, table

HEAD = '<ir_version: 10, opset_import: ["" : 17]>'
ONE = f"{HEAD} one (float[N, 4] x) => (float[N, 4] y) {{ y = Relu(x) }}"
THREE = f"""{HEAD} three (float[N, 4] x, float[N, 4] z, float[N, 4] w) => (float[N, 4] y, float[N, 4] v) {{
    a = Add(x, z)  y = Mul(a, w)  v = Sub(a, w)
}}"""
FLAT = f"{HEAD} flat (float[N] x) => (float[N] y) {{ y = Relu(x) }}"
FLOATS = {"64 floats": 64, "4 KB": 1_000, "1 MB": 250_000, "100 MB": 25_000_000}
LARGE = 1_000_000
"""Elements from which on a hundredth of the rounds is enough."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2_000)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    null, cpu = list(on_null(arguments.rounds)), list(on_cpu(arguments.rounds))
    rows = [[row["feed"], f"{row['ours'] * 1e6:.1f}", f"{row['traced'] * 1e6:.1f}"] for row in null]
    print(table(["run on null", "us", "with a trace us"], rows), end="\n\n")
    rows = [[r["feed"], f"{r['ours'] * 1e6:.1f}", f"{r['theirs'] * 1e6:.1f}", f"{r['ratio']:.3f}"] for r in cpu]
    print(table(["run on cpu", "us", "ONNX Runtime us", "times"], rows))
    if arguments.json:
        arguments.json.write_text(json.dumps({"null": null, "cpu": cpu}, indent=2))


def on_null(rounds: int) -> Iterator[dict[str, object]]:
    """One row per model: seconds of a run of one segment that computes nothing, without a trace and with one."""
    x = np.ones((1, 4), np.float32)
    for name, text in {"1 input, 1 output": ONE, "3 inputs, 2 outputs": THREE}.items():
        model = onnx.parser.parse_model(text)
        feed = {value.name: x for value in model.graph.input}
        with (
            TemporaryDirectory() as folder,
            nna.InferenceSession(model, devices="null") as ours,
            nna.InferenceSession(model, devices="null", options=nna.Options(trace=f"{folder}/trace.json")) as traced,
        ):
            # One after the other: in turn, each would find the other's things in the processor's caches.
            plain = interleaved({"ours": partial(ours.run, None, feed)}, rounds)
            yield {"feed": name, **plain, **interleaved({"traced": partial(traced.run, None, feed)}, rounds)}


def on_cpu(rounds: int) -> Iterator[dict[str, object]]:
    """One row per size: seconds of a run, ours and ONNX Runtime's."""
    model = onnx.parser.parse_model(FLAT)
    theirs = onnxruntime.InferenceSession(model.SerializeToString(), options(), providers=["CPUExecutionProvider"])
    with nna.InferenceSession(model, options(), devices="cpu") as ours:
        for name, size in FLOATS.items():
            feed = {"x": np.ones(size, np.float32)}
            runs = {"ours": partial(ours.run, None, feed), "theirs": partial(theirs.run, None, feed)}
            seconds = interleaved(runs, rounds if size < LARGE else max(rounds // 100, 5))
            yield {"feed": name, **seconds, "ratio": seconds["ours"] / seconds["theirs"]}


def options() -> onnxruntime.SessionOptions:
    """Threads that sleep when they have nothing to do."""
    made = onnxruntime.SessionOptions()
    made.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return made


if __name__ == "__main__":
    main()
