"""False alarms of the accuracy checks, and their cost.

Every network runs with `Options(verify="once", shadow=1)`. An incident is a false alarm, and the benchmark fails. The
columns of times are the first run, plain and checked, and a later run: plain, verified before, and compared itself.
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import rapidocr

import nnadapter as nna
from benchmarks.harness import Results, random_feed, seconds_of, select_containing
from benchmarks.models.networks import networks
from benchmarks.models.quantized_models import mobilenet, quantized, resnet, transformer

DEVICES = {
    "fake_npu": "fake_npu",
    "fake_npu float16": ("fake_npu", {"precision": "float16"}),
    "openvino": "openvino",
}
_RUNS = 5
_SHAPES = {"det": (1, 3, 320, 320), "rec": (1, 3, 48, 320), "cls": (1, 3, 48, 192)}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--device", choices=DEVICES, action="append")
    parser.add_argument("--only", default="", help="a part of the network's name")


def run(options: argparse.Namespace, results: Results) -> None:
    """Run every network on every device."""
    table, makers = results.table(), dict(_models())
    for name in select_containing([options.only], makers):
        model = makers[name]()
        for device in options.device or DEVICES:
            table.add(_row(name, model, device))
    alarms = sum(row["alarms"] for row in table.rows)
    if alarms:
        results.fail(f"{alarms} false alarms on {len(table.rows)} networks and devices")


def _models() -> Iterator[tuple[str, Callable[[], onnx.ModelProto]]]:
    folder = Path(rapidocr.__file__).parent / "models"
    for kind in _SHAPES:
        path = next(path for path in sorted(folder.glob(f"*{kind}*.onnx")))
        yield f"RapidOCR {kind}", lambda path=path: onnx.load(path)
    yield from networks().items()
    yield "quantized ResNet", lambda: quantized(resnet((1, 1, 1, 1), is_deep=False, size=64))
    yield "quantized MobileNet", lambda: quantized(mobilenet(64), "uint8", per_channel=True)
    yield "quantized transformer", lambda: quantized(transformer(2, 128, 4, 32))


def _row(name: str, model: onnx.ModelProto, device: str) -> dict[str, Any]:
    shapes = {"x": _SHAPES[name.split()[1]]} if name.startswith("RapidOCR") else None
    feeds = [random_feed(model, shapes)]
    random = np.random.default_rng(0)
    for _ in range(_RUNS):
        feeds.append({key: _like(value, random) for key, value in feeds[0].items()})
    first, later, notes, incident_count = {}, {}, set(), 0
    for kind, options in (("plain", {}), ("verify", {"verify": "once"}), ("shadow", {"verify": "once", "shadow": 1})):
        chosen = nna.Options(cache_dir=False, **options)
        with warnings.catch_warnings(), nna.InferenceSession(model, devices=DEVICES[device], options=chosen) as session:
            warnings.simplefilter("ignore")
            if shapes:
                session.prepare(shapes)
            durations = [seconds_of(partial(session.run, None, feed)) for feed in feeds]
            first[kind], later[kind] = 1e3 * durations[0], 1e3 * statistics.median(durations[1:])
            incident_count += sum(incident.stage == "accuracy" for incident in session.report().incidents)
            notes.update(note for note in session.report().notes if "differs" in note or "compared" in note)
    return {
        "network": name,
        "device": device,
        "alarms": incident_count,
        "notes": "; ".join(sorted(notes)) or "none",
        "first ms": first["plain"],
        "checked ms": first["verify"],
        "later ms": later["plain"],
        "verified ms": later["verify"],
        "shadow ms": later["shadow"],
    }


def _like(value: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return other random numbers; integers, which may be positions, stay the same."""
    return random.standard_normal(value.shape).astype(value.dtype) if value.dtype.kind == "f" else value
