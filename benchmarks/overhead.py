"""Overhead of a run: on `null`, which computes nothing, and on `cpu` compared with ONNX Runtime's run.

Each model has one to three nodes. On `null`, a session with a trace (`Options(trace=...)`) is measured as well. ONNX
Runtime's threads do not spin, so that one side does not disturb the other.
"""

from __future__ import annotations

import argparse
from functools import partial
from tempfile import TemporaryDirectory

import numpy as np
import onnx.parser
import onnxruntime

import nnadapter as nna
from benchmarks.harness import Results, Table, interleaved

_HEAD = '<ir_version: 10, opset_import: ["" : 17]>'
_ONE = f"{_HEAD} one (float[N, 4] x) => (float[N, 4] y) {{ y = Relu(x) }}"
_THREE = f"""{_HEAD} three (float[N, 4] x, float[N, 4] z, float[N, 4] w) => (float[N, 4] y, float[N, 4] v) {{
    a = Add(x, z)  y = Mul(a, w)  v = Sub(a, w)
}}"""
_FLAT = f"{_HEAD} flat (float[N] x) => (float[N] y) {{ y = Relu(x) }}"
_ELEMENTS = {"64 floats": 64, "4 KB": 1_000, "1 MB": 250_000, "100 MB": 25_000_000}
_LARGE = 1_000_000
"""Elements above this number need only a hundredth of the rounds."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--rounds", type=int, default=2_000)


def run(options: argparse.Namespace, results: Results) -> None:
    """Measure runs on `null`, then on `cpu`."""
    _measure_null(options.rounds, results.table("A run of one segment on null"))
    _measure_cpu(options.rounds, results.table("A run on cpu"))


def _measure_null(rounds: int, table: Table) -> None:
    x = np.ones((1, 4), np.float32)
    for name, text in {"1 input, 1 output": _ONE, "3 inputs, 2 outputs": _THREE}.items():
        model = onnx.parser.parse_model(text)
        feed = {value.name: x for value in model.graph.input}
        with (
            TemporaryDirectory() as folder,
            nna.InferenceSession(model, devices="null") as plain,
            nna.InferenceSession(model, devices="null", options=nna.Options(trace=f"{folder}/trace.json")) as traced,
        ):
            # One after the other: in turn, each would find the processor's caches filled by the other.
            seconds = {
                **interleaved({"plain": partial(plain.run, None, feed)}, rounds),
                **interleaved({"traced": partial(traced.run, None, feed)}, rounds),
            }
        table.add({"feed": name, "us": 1e6 * seconds["plain"], "with a trace, us": 1e6 * seconds["traced"]})


def _measure_cpu(rounds: int, table: Table) -> None:
    model = onnx.parser.parse_model(_FLAT)
    peer = onnxruntime.InferenceSession(model.SerializeToString(), _options(), providers=["CPUExecutionProvider"])
    with nna.InferenceSession(model, _options(), devices="cpu") as session:
        for name, size in _ELEMENTS.items():
            feed = {"x": np.ones(size, np.float32)}
            runs = {"session": partial(session.run, None, feed), "peer": partial(peer.run, None, feed)}
            seconds = interleaved(runs, rounds if size < _LARGE else max(rounds // 100, 5))
            table.add(
                {
                    "feed": name,
                    "us": 1e6 * seconds["session"],
                    "ONNX Runtime us": 1e6 * seconds["peer"],
                    "ratio": seconds["session"] / seconds["peer"],
                }
            )


def _options() -> onnxruntime.SessionOptions:
    """Return options that let idle threads sleep."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options
