"""Read text from pictures with RapidOCR, unchanged, while its three models run on an accelerator.

    python examples/read_text.py [PICTURE...] [-d fake_npu] [--switch-off Erf,HardSigmoid,Resize] [--check] [-o DIR]
    python examples/read_text.py --device-of cls=qnn --check

RapidOCR imports onnxruntime and asks it for sessions. Here `nna.ort` stands in for that module, so its sessions are
ours: what the device takes runs there, the rest on ONNX Runtime. For every model the same inputs then run through ONNX
Runtime alone, to compare results and times. `--check` also reads all pictures with plain ONNX Runtime first; if any
text differs, the exit status is 1.

`fake_npu` is a reference: a device in numpy that shows what a driver does. It is slower than ONNX Runtime, whose code
is compiled for the processor.
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
"""Said beforehand where the device is chosen."""
Run = tuple[Mapping[str, np.ndarray], list[np.ndarray]]
"""What a session was fed, and its results."""


@dataclass(frozen=True, eq=False, slots=True)
class Reading:
    """What RapidOCR read from one picture."""

    boxes: Sequence[np.ndarray]
    """Per line, its four corners `[4, 2]`."""
    texts: tuple[str, ...]
    scores: tuple[float, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Comparison:
    """One model on our devices against ONNX Runtime, over all inputs that it met."""

    ours_ms: float
    """Median duration of a run."""
    theirs_ms: float
    largest_difference: float


class RecordingSession(nna.ort.InferenceSession):
    """Our session as clients of ONNX Runtime see it, keeping what goes in and what comes out."""

    opened: ClassVar[list[RecordingSession]] = []
    """All sessions of this process, in order."""
    devices_for: ClassVar[Callable[[Path], list[Any]]]
    """Which devices a model runs on."""

    def __init__(self, path_or_bytes: Any, *arguments: Any, **named: Any) -> None:
        nna.ort.use(type(self).devices_for(Path(path_or_bytes)))
        super().__init__(path_or_bytes, *arguments, **named)
        self.path = Path(path_or_bytes)
        self.runs: list[Run] = []
        self.opened.append(self)

    def run(self, output_names: Any, input_feed: Any, run_options: Any = None) -> list[Any]:
        """See `nnadapter.InferenceSession.run`."""
        results = super().run(output_names, input_feed, run_options)
        self.runs.append((input_feed, results))
        return results


def main() -> int:
    """Read, print, compare; 1 if a text differs from ONNX Runtime's."""
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
    """The devices for a model with their options; the CPU is added by itself."""
    for part, device in chosen.device_of:
        if part in model.name:
            return [device]
    options = {"switched_off": chosen.switch_off} if chosen.switch_off else {}
    return [(name, options) for name in chosen.device.split(",")]


def read_all(pictures: Sequence[Path]) -> dict[Path, Reading]:
    """Return what RapidOCR reads, on whichever module is called onnxruntime now."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "rapidocr"]:
        del sys.modules[name]  # else it would keep the sessions' class that it imported before
    from rapidocr import RapidOCR

    reader = RapidOCR(params={"Global.log_level": "error"})
    return {picture: read(reader, picture) for picture in pictures}


def read(reader: Any, picture: Path) -> Reading:
    """Return what `reader` reads from one picture."""
    found = reader(str(picture))
    if found.txts is None:
        return Reading((), (), ())
    return Reading(found.boxes, tuple(found.txts), tuple(found.scores))


def print_readings(readings: Mapping[Path, Reading], expected: Mapping[Path, Reading]) -> None:
    """Print every line with its score and, where it is known what ONNX Runtime reads, whether that is the same."""
    for path, reading in readings.items():
        print(path.name)
        for text, score in zip(reading.texts, reading.scores, strict=True):
            print(f"  {score:.3f}  {text}")
        if path in expected:
            print(f"  same text as ONNX Runtime: {'yes' if reading.texts == expected[path].texts else 'no'}")


def save_drawings(readings: Mapping[Path, Reading], folder: Path, font: Path | None) -> None:
    """Save every picture with boxes and text drawn on it."""
    folder.mkdir(parents=True, exist_ok=True)
    for path, reading in readings.items():
        draw_reading(path, reading.boxes, reading.texts, font).save(folder / f"{path.stem}.png")
    print(f"drawings are in {folder}")


def print_model(session: RecordingSession) -> None:
    """Print what ran where, what was refused and why, and the comparison with ONNX Runtime."""
    report = session.report()
    runs = tuple(session.runs)  # what is timed from here on is recorded as well
    compared = compare(session, runs)
    away = sum(segment.device != "cpu" for segment in report.segments)
    fewest = "the fewest possible" if report.exact else "not proved the fewest"
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
    """Run everything that the session was fed through ONNX Runtime too; both are warm when they are timed."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(
        "session.intra_op.allow_spinning", "0"
    )  # spinning threads slow down the other side
    plain = onnxruntime.InferenceSession(session.path, options, providers=["CPUExecutionProvider"])
    differences = [difference(results, plain.run(None, feed)) for feed, results in runs]
    feeds = [feed for feed, _ in runs]
    return Comparison(median_ms(session, feeds), median_ms(plain, feeds), max(differences))


def difference(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> float:
    """Return the largest absolute difference between two lists of results."""
    return max(float(np.abs(mine - other).max(initial=0)) for mine, other in zip(ours, theirs, strict=True))


def median_ms(session: Any, feeds: Sequence[Mapping[str, np.ndarray]]) -> float:
    """Return the median duration of a run over all feeds."""
    return median(time_ms(session, feed) for feed in feeds)


def time_ms(session: Any, feed: Mapping[str, np.ndarray]) -> float:
    """Return how long one run takes."""
    started = perf_counter()
    session.run(None, feed)
    return (perf_counter() - started) * 1e3


if __name__ == "__main__":
    sys.exit(main())
