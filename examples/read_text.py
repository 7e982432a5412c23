"""Read text from images with unmodified RapidOCR, while its three models run on an accelerator.

    python examples/read_text.py [PICTURE...] [-d fake_npu] [--switch-off Erf,HardSigmoid,Resize] [--check] [-o DIR]
    python examples/read_text.py --device-of cls=qnn --check

RapidOCR imports onnxruntime and creates sessions. Here `nna.ort` replaces that module, so nodes that the device
supports run there, and the others on ONNX Runtime. Then the same inputs run through ONNX Runtime alone, to compare
results and times. With `--check`, plain ONNX Runtime reads all images first; if any text differs, the exit code is 1.

`fake_npu` is a reference device in numpy, written for readability. It is slower than ONNX Runtime, which is compiled
for the processor.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, ClassVar

import numpy as np
import onnxruntime
from drawing import draw_reading

import nnadapter as nna

HERE = Path(__file__).parent
PICTURES = sorted((HERE / "pictures").glob("*.png"))
REFERENCE = (
    "fake_npu is a reference in numpy, no accelerator: it shows what a driver does.\n"
    "It takes longer than ONNX Runtime, whose code is compiled for this processor.\n"
)
"""Printed if the device is fake_npu."""
Run = tuple[Mapping[str, np.ndarray], list[np.ndarray]]
"""Feed and results of a run."""


@dataclass(frozen=True, eq=False, slots=True)
class Reading:
    """Text that RapidOCR read from one image."""

    boxes: Sequence[np.ndarray]
    """Corners `[4, 2]` of each line."""
    texts: tuple[str, ...]
    scores: tuple[float, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Comparison:
    """Comparison of one model on our devices with ONNX Runtime, over all its inputs."""

    ours_ms: float
    """Median duration of a run."""
    theirs_ms: float
    largest_difference: float


class RecordingSession(nna.ort.InferenceSession):
    """Session with ONNX Runtime's interface that records feeds and results."""

    opened: ClassVar[list[RecordingSession]] = []
    """All sessions of this process, in order."""
    devices_for: ClassVar[Callable[[Path], list[Any]]]
    """Returns the devices of a model."""

    def __init__(self, path_or_bytes: Any, *arguments: Any, **named: Any) -> None:
        nna.ort.use(type(self).devices_for(Path(path_or_bytes)))
        super().__init__(path_or_bytes, *arguments, **named)
        self.path = Path(path_or_bytes)
        self.runs: list[Run] = []
        self.opened.append(self)

    def run(self, output_names: Any, input_feed: Any, run_options: Any = None) -> list[Any]:
        results = super().run(output_names, input_feed, run_options)
        self.runs.append((input_feed, results))
        return results


def main() -> int:
    """Read, print and compare; return 1 if a text differs from ONNX Runtime's."""
    chosen = parse_arguments()
    if "fake_npu" in chosen.device.split(","):
        print(REFERENCE, flush=True)
    expected = read_all(chosen.pictures) if chosen.check else {}
    RecordingSession.devices_for = staticmethod(partial(devices_of, chosen))
    nna.ort.InferenceSession = RecordingSession
    nna.ort.install()
    try:
        readings = read_all(chosen.pictures)
    finally:
        nna.ort.uninstall()
    print_readings(readings, expected)
    save_drawings(readings, chosen.out, chosen.font)
    for session in RecordingSession.opened:
        print_model(session)
    return int(any(readings[path].texts != reading.texts for path, reading in expected.items()))


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Read text from pictures on an accelerator.")
    parser.add_argument("pictures", nargs="*", type=Path, default=PICTURES, help="pictures (default: all in pictures/)")
    parser.add_argument(
        "-d", "--device", default="fake_npu", help="devices before the CPU, with commas (default: fake_npu)"
    )
    parser.add_argument(
        "--device-of",
        type=lambda text: text.rpartition("=")[::2],
        action="append",
        default=[],
        metavar="PART=DEVICE",
        help="another device for models with PART in their file name",
    )
    parser.add_argument("--switch-off", type=lambda text: text.split(","), help="operations that the device refuses")
    parser.add_argument("--check", action="store_true", help="compare the text with plain ONNX Runtime's")
    parser.add_argument("-o", "--out", type=Path, default=HERE / "out", help="folder for drawings (default: out/)")
    parser.add_argument("--font", type=Path, help="font file for drawing letters that Pillow's own font lacks")
    return parser.parse_args()


def devices_of(chosen: argparse.Namespace, model: Path) -> list[Any]:
    """Return the devices of a model with options; the CPU is implied."""
    for part, device in chosen.device_of:
        if part in model.name:
            return [device]
    options = {"switched_off": chosen.switch_off} if chosen.switch_off else {}
    return [(name, options) for name in chosen.device.split(",")]


def read_all(pictures: Sequence[Path]) -> dict[Path, Reading]:
    """Return RapidOCR's readings with the module that is currently `onnxruntime`."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "rapidocr"]:
        del sys.modules[name]  # otherwise it would reuse the session class imported before
    from rapidocr import RapidOCR

    reader = RapidOCR(params={"Global.log_level": "error"})
    return {picture: read(reader, picture) for picture in pictures}


def read(reader: Any, picture: Path) -> Reading:
    """Return the text that `reader` reads from one image."""
    result = reader(str(picture))
    if result.txts is None:
        return Reading((), (), ())
    return Reading(result.boxes, tuple(result.txts), tuple(result.scores))


def print_readings(readings: Mapping[Path, Reading], expected: Mapping[Path, Reading]) -> None:
    """Print every line with its score; and if known, a comparison with ONNX Runtime's text."""
    for path, reading in readings.items():
        print(path.name)
        for text, score in zip(reading.texts, reading.scores, strict=True):
            print(f"  {score:.3f}  {text}")
        if path in expected:
            print(f"  same text as ONNX Runtime: {'yes' if reading.texts == expected[path].texts else 'no'}")


def save_drawings(readings: Mapping[Path, Reading], folder: Path, font: Path | None) -> None:
    """Save every image with boxes and text."""
    folder.mkdir(parents=True, exist_ok=True)
    for path, reading in readings.items():
        draw_reading(path, reading.boxes, reading.texts, font).save(folder / f"{path.stem}.png")
    print(f"drawings are in {folder}")


def print_model(session: RecordingSession) -> None:
    """Print devices, refusals with reasons, and the comparison with ONNX Runtime."""
    report = session.report()
    runs = tuple(session.runs)  # the timed runs below are recorded too
    compared = compare(session, runs)
    away = sum(segment.device != "cpu" for segment in report.segments)
    fewest = "the fewest possible" if report.exact else "not proved to be the fewest"
    print(f"\n{session.path.stem}: {len(runs)} runs, {report.plans.compiled} plans")
    print(f"  coverage    {report.coverage.nodes:.1%} of nodes, {report.coverage.flops:.1%} of FLOPs")
    print(f"  segments    {len(report.segments)}, {away} of them off the CPU; {fewest}")
    for (device, op_type, reason), nodes in report.refusals().items():
        print(f"  refused     {device}: {len(nodes)} x {op_type}, {reason}: {nodes[0].refusals[0].detail}")
    for note in report.notes:
        print(f"  note        {note}")
    ratio = compared.ours_ms / compared.theirs_ms
    print(f"  time        {compared.ours_ms:.1f} ms, ONNX Runtime {compared.theirs_ms:.1f} ms: {ratio:.1f} times")
    print(f"  difference  at most {compared.largest_difference:.2g}")


def compare(session: RecordingSession, runs: Sequence[Run]) -> Comparison:
    """Run all recorded feeds in ONNX Runtime too, and time both sessions when warm."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(
        "session.intra_op.allow_spinning", "0"
    )  # spinning threads slow down the other session
    plain = onnxruntime.InferenceSession(session.path, options, providers=["CPUExecutionProvider"])
    differences = [difference(results, plain.run(None, feed)) for feed, results in runs]
    feeds = [feed for feed, _ in runs]
    return Comparison(median_ms(session, feeds), median_ms(plain, feeds), max(differences))


def difference(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> float:
    """Return the largest absolute difference of results."""
    return max(float(np.abs(mine - other).max(initial=0)) for mine, other in zip(ours, theirs, strict=True))


def median_ms(session: Any, feeds: Sequence[Mapping[str, np.ndarray]]) -> float:
    """Return the median duration of a run over all feeds."""
    return median(time_ms(session, feed) for feed in feeds)


def time_ms(session: Any, feed: Mapping[str, np.ndarray]) -> float:
    """Return the duration of one run."""
    started = perf_counter()
    session.run(None, feed)
    return (perf_counter() - started) * 1e3


if __name__ == "__main__":
    sys.exit(main())
