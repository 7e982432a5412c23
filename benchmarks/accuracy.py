"""What checks of accuracy find where nothing is wrong, and what they cost.

    python benchmarks/accuracy.py                      # some minutes
    python benchmarks/accuracy.py --device openvino --only RapidOCR

Every network runs with `Options(verify="once", shadow=1)`: a false alarm is an incident, and the exit code is 1. The
columns of times are the first run, plain and checked, and a later run: plain, verified before, and itself compared.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
import numpy as np
import onnx
import rapidocr

import nnadapter as nna
from benchmarks.choosing import containing
from benchmarks.models.networks import networks
from benchmarks.models.quantized_models import mobilenet, quantized, resnet, transformer
from benchmarks.timing import table
from nnadapter.offering.feeds import random_feed

DEVICES = {
    "fake_npu": "fake_npu",
    "fake_npu float16": ("fake_npu", {"precision": "float16"}),
    "openvino": "openvino",
}
_RUNS = 5
_SHAPES = {"det": (1, 3, 320, 320), "rec": (1, 3, 48, 320), "cls": (1, 3, 48, 192)}


def main() -> None:
    """Print a row for every network on every device."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=DEVICES, action="append")
    parser.add_argument("--only", default="", help="A part of the network's name.")
    arguments = parser.parse_args()
    rows, alarms, makers = [], 0, dict(_models())
    for name in containing(parser, [arguments.only], makers):
        model = makers[name]()
        for device in arguments.device or DEVICES:
            row, found = _row(name, model, device)
            rows.append(row)
            alarms += found
            print(" | ".join(map(str, row)), file=sys.stderr)
    head = ["network", "device", "alarms", "said", "first ms", "checked ms", "later ms", "verified ms", "shadow ms"]
    print(table(head, rows))
    print(f"{alarms} false alarms on {len(rows)} networks and devices")
    sys.exit(1 if alarms else 0)


def _models() -> Iterator[tuple[str, Callable[[], onnx.ModelProto]]]:
    folder = Path(rapidocr.__file__).parent / "models"
    for kind in _SHAPES:
        path = next(path for path in sorted(folder.glob(f"*{kind}*.onnx")))
        yield f"RapidOCR {kind}", lambda path=path: onnx.load(path)
    yield from networks().items()
    yield "quantized ResNet", lambda: quantized(resnet((1, 1, 1, 1), is_deep=False, size=64))
    yield "quantized MobileNet", lambda: quantized(mobilenet(64), "uint8", per_channel=True)
    yield "quantized transformer", lambda: quantized(transformer(2, 128, 4, 32))


def _row(name: str, model: onnx.ModelProto, device: str) -> tuple[list[object], int]:
    shapes = {"x": _SHAPES[name.split()[1]]} if name.startswith("RapidOCR") else None
    feeds = [random_feed(model, shapes)]
    random = np.random.default_rng(0)
    for _ in range(_RUNS):
        feeds.append({key: _like(value, random) for key, value in feeds[0].items()})
    first, later, notes, found = {}, {}, set(), 0
    for kind, options in (("plain", {}), ("verify", {"verify": "once"}), ("shadow", {"verify": "once", "shadow": 1})):
        chosen = nna.Options(cache_dir=False, **options)
        with warnings.catch_warnings(), nna.InferenceSession(model, devices=DEVICES[device], options=chosen) as session:
            warnings.simplefilter("ignore")
            if shapes:
                session.prepare(shapes)
            taken = [_seconds(session, feed) for feed in feeds]
            first[kind], later[kind] = 1e3 * taken[0], 1e3 * statistics.median(taken[1:])
            found += sum(each.stage == "accuracy" for each in session.report().incidents)
            notes.update(note for note in session.report().notes if "differs" in note or "compared" in note)
    times = (first["plain"], first["verify"], later["plain"], later["verify"], later["shadow"])
    return [name, device, found, "; ".join(sorted(notes)) or "nothing", *(f"{each:.1f}" for each in times)], found


def _like(value: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Other numbers of the same kind; integers, which may be positions, stay."""
    return random.standard_normal(value.shape).astype(value.dtype) if value.dtype.kind == "f" else value


def _seconds(session: nna.InferenceSession, feed: Mapping[str, np.ndarray]) -> float:
    started = time.perf_counter()
    session.run(None, feed)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
