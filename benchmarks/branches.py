"""Two branches of a model on two devices: one after the other, and at the same time where the plan says that it pays.

    python benchmarks/branches.py [--rounds 30]

The devices sleep for as long as they say (`tests/latency_driver.py`), so that what is measured is the run and not the
machine. `serial` is the sum of what the steps took, `run` the whole, `longer` the longer branch. Results are compared
bit by bit with those of a session on the CPU.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import onnx.parser

sys.path.insert(0, str(Path(__file__).parents[1]))

import nnadapter as nna
from benchmarks.stream import offer_latency_driver
from benchmarks.timing import table

JOINED = """<ir_version: 10, opset_import: ["" : 17]> g (float[8, 8] x) => (float[8, 8] y) {
    a = Relu(x) b = Neg(x) y = Sub(a, b)
}"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    offer_latency_driver()
    rows = [
        row(first, second, rounds) for first, second in ((5.0, 5.0), (5.0, 2.0), (1.0, 1.0), (0.1, 0.1), (0.0, 5.0))
    ]
    print(table(["branches", "serial ms", "longer ms", "run ms", "at once", "equal"], rows))


def row(first: float, second: float, rounds: int) -> list[object]:
    """One row: medians of runs of two branches that take so many milliseconds."""
    devices = [
        ("latency:0", {"operation_ms": first, "only": ["RELU"]}),
        ("latency:1", {"operation_ms": second, "only": ["NEG"]}),
    ]
    model = onnx.parser.parse_model(JOINED)
    feed = {"x": np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)}
    (expected,) = nna.InferenceSession(model, devices="cpu").run(None, feed)
    with nna.InferenceSession(model, devices=devices) as session:
        (found,) = session.run(None, feed)
        whole, steps = [], []
        for _ in range(rounds):
            started = time.perf_counter()
            session.run(None, feed)
            whole.append(time.perf_counter() - started)
            steps.append([step.seconds for step in session.provenance.steps])
        at_once = "yes" if session.report().borders.alongside else "no"
    serial, longer, run = (
        float(np.median(each)) * 1e3 for each in ([sum(step) for step in steps], [max(step) for step in steps], whole)
    )
    same = "yes" if np.array_equal(found, expected) else "NO"
    return [f"{first:g} and {second:g} ms", f"{serial:.2f}", f"{longer:.2f}", f"{run:.2f}", at_once, same]


if __name__ == "__main__":
    main()
