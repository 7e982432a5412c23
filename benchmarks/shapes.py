"""Cost of a new input shape, and memory over very many shapes.

For each of RapidOCR's models, which have dynamic shapes: `session.prepare` of new shapes, and how much longer their
first run takes than later ones. The first three shapes are separate rows, since work that is done once per model is
part of them. With `--runs`, the text recognizer runs that often over `--shapes` shapes in random order, which are more
than the session keeps plans for.

With `--layers`, a narrow language model of so many layers (24 have 1,049 nodes) runs at 100 lengths of its text and of
its cache instead, and so does an encoder like BERT. The rows show how much longer the first run at a length takes than
later ones, and how much of that the device's steps take.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import rapidocr

import nnadapter as nna
from benchmarks.harness import Results, UsageError, seconds_of
from benchmarks.models.encoders import encoder_model
from benchmarks.models.language_models import Sizes, cache_names, first_feed, language_model

_OCR = Path(rapidocr.__file__).parent / "models"
_FIRST = 3
"""The number of shapes that get a row of their own."""
_MOST = 70
"""Shapes per model; the classifier's are drawn from 78."""
_RUNS = 3
"""Runs of every shape; the median counts."""
_SAMPLES = 10
"""Samples of the resident memory, evenly spread over the runs."""
_Shape = tuple[int, ...]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this benchmark."""
    parser.add_argument("--device", default="fake_npu")
    parser.add_argument("--count", type=int, default=20, help="new shapes per model")
    parser.add_argument("--runs", type=int, default=0)
    parser.add_argument("--shapes", type=int, default=200, help="different shapes among the runs")
    parser.add_argument("--max-plans", type=int, default=50, help="plans that the session of these runs keeps")
    parser.add_argument("--layers", type=int, help="new lengths of a language model with so many layers")


def run(options: argparse.Namespace, results: Results) -> None:
    """Measure new shapes, or new lengths with `--layers`."""
    if not _FIRST < options.count <= _MOST:
        raise UsageError(f"--count is {options.count}, expected {_FIRST + 1} to {_MOST}: {_FIRST} are separate")
    if options.layers:
        table = results.table()
        for kind in ("text", "cache", "encoder"):
            table.add(_new_lengths(kind, options.layers, options.device))
        return
    table = results.table()
    for kind in _SHAPES:
        for row in _new_shapes(kind, options.device, options.count):
            table.add(row)
    if options.runs:
        table = results.table()
        session_options = nna.Options(max_plans=options.max_plans)
        for row in _resident_memory(options.device, session_options, options.runs, options.shapes):
            table.add(row)


def _detector_shape(generator: np.random.Generator) -> _Shape:
    """Height and width as RapidOCR scales pictures: multiples of 32."""
    height, width = generator.integers(4, 21, 2).tolist()
    return (1, 3, 32 * height, 32 * width)


def _recognizer_shape(generator: np.random.Generator) -> _Shape:
    """A line of text, in its own width."""
    return (1, 3, 48, int(generator.integers(100, 801)))


def _classifier_shape(generator: np.random.Generator) -> _Shape:
    """Some lines of text, scaled."""
    batch, width = generator.integers([1, 12], [7, 25]).tolist()
    return (batch, 3, 48, 16 * width)


_SHAPES: dict[str, Callable[[np.random.Generator], _Shape]] = {
    "det": _detector_shape,
    "rec": _recognizer_shape,
    "cls": _classifier_shape,
}
"""Part of a model's file name -> a shape such as RapidOCR feeds it."""


def _new_shapes(kind: str, device: str, count: int) -> Iterator[dict[str, Any]]:
    """Yield two rows for the model of a kind: the first shapes, and the others."""
    (path, *_) = sorted(_OCR.glob(f"*{kind}*.onnx"))
    with nna.InferenceSession(path, devices=device) as session:
        durations = [_seconds_of_shape(session, shape) for shape in _different(_SHAPES[kind], count)]
    for name, part in {f"first {_FIRST}": durations[:_FIRST], f"{count - _FIRST} more": durations[_FIRST:]}.items():
        prepare, first, later = (statistics.median(column) for column in zip(*part, strict=True))
        yield {
            "model": path.stem,
            "shapes": name,
            "prepare ms": 1e3 * prepare,
            "first run ms": 1e3 * first,
            "run ms": 1e3 * later,
            "new shape / run": statistics.median((prepare + first - later) / later for prepare, first, later in part),
        }


def _new_lengths(kind: str, layers: int, device: str) -> dict[str, Any]:
    """Return how much longer the first run at a length takes, over 100 lengths in random order."""
    sizes = Sizes(layers=layers, width=32, heads=2, words=100)
    model = encoder_model(layers, width=32) if kind == "encoder" else language_model(sizes)
    more, inside, repeats = [], [], []
    with nna.InferenceSession(model, devices=device, options=nna.Options(fallback="allow")) as session:
        for length in np.random.default_rng(0).permutation(np.arange(2, 102 + _FIRST)).tolist():
            feed = _length_feed(kind, sizes, length)
            first, *later = (_seconds_of_run_and_steps(session, feed) for _ in range(_RUNS + 1))
            least = min(later)
            more.append(first[0] - least[0])
            inside.append(first[1] - least[1])
            repeats.append(least[0])
        plans = session.report().plans
    medians = [1e3 * statistics.median(column[_FIRST:]) for column in (more, inside, repeats)]
    return {
        "lengths of": kind,
        "nodes": len(model.graph.node),
        **dict(zip(("new, ms more", "of it in the device", "run ms"), medians, strict=True)),
        "plans": plans.compiled if plans else 0,
    }


def _length_feed(kind: str, sizes: Sizes, length: int) -> dict[str, np.ndarray]:
    """Return a feed with a text, or a cache, of so many tokens."""
    if kind == "encoder":
        return {"ids": np.zeros((1, length), np.int64), "mask": np.ones((1, length), np.int64)}
    feed = first_feed(sizes, [1] * (length if kind == "text" else 1))
    if kind == "cache":
        cache = np.zeros((1, sizes.heads, length, sizes.depth), np.float32)
        feed.update({f"past.{name}": cache for name in cache_names(sizes)})
    return feed


def _seconds_of_run_and_steps(session: nna.InferenceSession, feed: dict[str, np.ndarray]) -> tuple[float, float]:
    """Return the seconds of a run, and of its steps alone."""
    seconds = seconds_of(lambda: session.run(None, feed))
    return seconds, session.provenance.seconds


def _different(draw: Callable[[np.random.Generator], _Shape], count: int) -> Sequence[_Shape]:
    """Return as many different shapes, the same each time."""
    generator = np.random.default_rng(0)
    shapes: dict[_Shape, None] = {}
    while len(shapes) < count:
        shapes[draw(generator)] = None
    return list(shapes)


def _seconds_of_shape(session: nna.InferenceSession, shape: _Shape) -> tuple[float, float, float]:
    """Return the seconds to prepare a new shape, of its first run, which allocates its buffers, and of a later one."""
    feed = _feed(shape)
    prepare = seconds_of(lambda: session.prepare({"x": shape}))
    first, *later = (seconds_of(lambda: session.run(None, feed)) for _ in range(_RUNS + 1))
    return prepare, first, statistics.median(later)


def _feed(shape: _Shape) -> dict[str, np.ndarray]:
    """Return a picture of noise."""
    return {"x": np.random.default_rng(0).random(shape, np.float32)}


def _resident_memory(device: str, options: nna.Options, runs: int, shapes: int) -> Iterator[dict[str, Any]]:
    """Yield a row every tenth of the runs, which are over shapes in random order."""
    every = max(runs // _SAMPLES, 1)
    (path, *_) = sorted(_OCR.glob("*rec*.onnx"))
    widths = np.random.default_rng(0).integers(0, shapes, runs).tolist()
    with nna.InferenceSession(path, devices=device, options=options) as session:
        for position, width in enumerate(widths, 1):
            session.run(None, _feed((1, 3, 48, 32 + width)))
            if position % every == 0:
                plans = session.report().plans
                yield {
                    "runs": position,
                    "resident MiB": _resident_mebibytes(),
                    "plans made": plans.compiled if plans else 0,
                }


def _resident_mebibytes() -> int:
    """Return the resident memory of this process. Source: proc(5), the second number of statm."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20
