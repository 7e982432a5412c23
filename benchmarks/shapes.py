"""What an input shape costs that was never seen before, and whether memory stays flat when there are very many.

    python benchmarks/shapes.py [--device fake_npu] [--count 20] [--json FILE]
                                [--runs 10000 --shapes 200 --max-plans 50]
    python benchmarks/shapes.py --layers 24 [--device null] [--json FILE]

For each of RapidOCR's models, whose shapes are open: `session.prepare` of new shapes, and what their first run takes
more than later ones, beside one of those.
The first shapes stand apart, since what is made once per model is made with them. With `--runs`, the text recognizer
then runs that often over `--shapes` shapes in random order, more than the session keeps plans for. With `--layers`, a
narrow language model of so many layers (24: 1,049 nodes) runs at 100 lengths instead, of its text and of its cache, and
so does an encoder of the form of BERT: what a length takes more the first time than the next, and how much of that its
device's steps take.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import rapidocr

sys.path.insert(0, str(Path(__file__).parents[1]))

import nnadapter as nna
from benchmarks.models.encoders import encoder_model
from benchmarks.models.language_models import Sizes, cache_names, first_feed, language_model
from benchmarks.timing import table

OCR = Path(rapidocr.__file__).parent / "models"
FIRST = 3
"""How many shapes stand apart."""
MOST = 70
"""Shapes per model: those of the classifier are drawn from 78."""
RUNS = 3
"""Of every shape; their median counts."""
LOOKS = 10
"""At the resident memory, evenly spread over the runs."""
Shape = tuple[int, ...]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="fake_npu")
    parser.add_argument("--count", type=int, default=20, help="new shapes per model")
    parser.add_argument("--runs", type=int, default=0)
    parser.add_argument("--shapes", type=int, default=200, help="different shapes among the runs")
    parser.add_argument("--max-plans", type=int, default=50, help="plans that the session of these runs keeps")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--layers", type=int, help="new lengths of a language model of so many layers")
    arguments = parser.parse_args()
    if not FIRST < arguments.count <= MOST:
        parser.error(f"--count is {arguments.count}, expected {FIRST + 1} to {MOST}: {FIRST} stand apart")
    if arguments.layers:
        head = ["lengths of", "nodes", "new, ms more", "of it in the device", "run ms", "plans"]
        lengths = new_lengths(arguments)
        print(table(head, lengths))
        if arguments.json:
            arguments.json.write_text(json.dumps([dict(zip(head, row, strict=True)) for row in lengths], indent=2))
        return
    rows = [row for kind in SHAPES for row in new_shapes(kind, arguments.device, arguments.count)]
    print(table(["model", "shapes", "prepare ms", "first run ms", "run ms", "new shape / run"], list(map(cells, rows))))
    options = nna.Options(max_plans=arguments.max_plans)
    memory = list(resident_memory(arguments.device, options, arguments.runs, arguments.shapes))
    if memory:
        print()
        print(table(["runs", "resident MiB", "plans made"], [[r["runs"], r["mebibytes"], r["made"]] for r in memory]))
    if arguments.json:
        arguments.json.write_text(json.dumps({"new_shapes": rows, "memory": memory}, indent=2))


def detector_shape(generator: np.random.Generator) -> Shape:
    """Height and width as RapidOCR scales pictures: multiples of 32."""
    height, width = generator.integers(4, 21, 2).tolist()
    return (1, 3, 32 * height, 32 * width)


def recognizer_shape(generator: np.random.Generator) -> Shape:
    """A line of text as wide as it is."""
    return (1, 3, 48, int(generator.integers(100, 801)))


def classifier_shape(generator: np.random.Generator) -> Shape:
    """Some lines of text, scaled."""
    batch, width = generator.integers([1, 12], [7, 25]).tolist()
    return (batch, 3, 48, 16 * width)


SHAPES: dict[str, Callable[[np.random.Generator], Shape]] = {
    "det": detector_shape,
    "rec": recognizer_shape,
    "cls": classifier_shape,
}
"""Part of a model's file name -> a shape such as RapidOCR feeds it."""


def new_shapes(kind: str, device: str, count: int) -> Iterator[dict[str, Any]]:
    """Two rows for the model of that kind: the first shapes, and the others."""
    (path, *_) = sorted(OCR.glob(f"*{kind}*.onnx"))
    with nna.InferenceSession(path, devices=device) as session:
        taken = [seconds_of(session, shape) for shape in different(SHAPES[kind], count)]
    for name, part in {f"first {FIRST}": taken[:FIRST], f"{count - FIRST} more": taken[FIRST:]}.items():
        prepare, first, run = (statistics.median(column) for column in zip(*part, strict=True))
        row = {"prepare": prepare, "first_run": first, "run": run}
        ratio = statistics.median((prepare + first - run) / run for prepare, first, run in part)
        yield {"model": path.stem, "shapes": name, **row, "ratio": ratio}


def new_lengths(arguments: argparse.Namespace) -> list[list[object]]:
    """A row for each way in which lengths are new."""
    return [new_lengths_of(kind, arguments.layers, arguments.device) for kind in ("text", "cache", "encoder")]


def new_lengths_of(kind: str, layers: int, device: str) -> list[object]:
    """A row: what a length takes more, over 100 lengths in random order."""
    sizes = Sizes(layers=layers, width=32, heads=2, words=100)
    model = encoder_model(layers, width=32) if kind == "encoder" else language_model(sizes)
    more, inside, again = [], [], []
    with nna.InferenceSession(model, devices=device, options=nna.Options(fallback="allow")) as session:
        for length in np.random.default_rng(0).permutation(np.arange(2, 102 + FIRST)).tolist():
            feed = length_feed(kind, sizes, length)
            first, *later = (whole_and_steps(session, feed) for _ in range(RUNS + 1))
            least = min(later)
            more.append(first[0] - least[0])
            inside.append(first[1] - least[1])
            again.append(least[0])
        plans = session.report().plans
    figures = (f"{1e3 * statistics.median(column[FIRST:]):.3f}" for column in (more, inside, again))
    return [kind, len(model.graph.node), *figures, plans.made if plans else 0]


def length_feed(kind: str, sizes: Sizes, length: int) -> dict[str, np.ndarray]:
    """A feed of so long a text, or cache."""
    if kind == "encoder":
        return {"ids": np.zeros((1, length), np.int64), "mask": np.ones((1, length), np.int64)}
    feed = first_feed(sizes, [1] * (length if kind == "text" else 1))
    if kind == "cache":
        cache = np.zeros((1, sizes.heads, length, sizes.depth), np.float32)
        feed.update({f"past.{name}": cache for name in cache_names(sizes)})
    return feed


def whole_and_steps(session: nna.InferenceSession, feed: dict[str, np.ndarray]) -> tuple[float, float]:
    """Seconds of a run, and of its steps alone."""
    whole = seconds(lambda: session.run(None, feed))
    return whole, session.provenance.seconds


def different(draw: Callable[[np.random.Generator], Shape], count: int) -> Sequence[Shape]:
    """As many shapes, no two alike, the same each time."""
    generator = np.random.default_rng(0)
    found: dict[Shape, None] = {}
    while len(found) < count:
        found[draw(generator)] = None
    return list(found)


def seconds_of(session: nna.InferenceSession, shape: Shape) -> tuple[float, float, float]:
    """Seconds to prepare a new shape, for its first run, which makes its buffers, and for a later one."""
    feed = feed_of(shape)
    prepare = seconds(lambda: session.prepare({"x": shape}))
    first, *later = (seconds(lambda: session.run(None, feed)) for _ in range(RUNS + 1))
    return prepare, first, statistics.median(later)


def feed_of(shape: Shape) -> dict[str, np.ndarray]:
    """A picture of noise."""
    return {"x": np.random.default_rng(0).random(shape, np.float32)}


def seconds(work: Callable[[], object]) -> float:
    """How long it takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def resident_memory(device: str, options: nna.Options, runs: int, shapes: int) -> Iterator[dict[str, Any]]:
    """A row every tenth of the runs, which are over shapes in random order."""
    if not runs:
        return
    every = max(runs // LOOKS, 1)
    (path, *_) = sorted(OCR.glob("*rec*.onnx"))
    widths = np.random.default_rng(0).integers(0, shapes, runs).tolist()
    with nna.InferenceSession(path, devices=device, options=options) as session:
        for done, width in enumerate(widths, 1):
            session.run(None, feed_of((1, 3, 48, 32 + width)))
            if done % every == 0:
                plans = session.report().plans
                yield {"runs": done, "mebibytes": resident_mebibytes(), "made": plans.made if plans else 0}


def resident_mebibytes() -> int:
    """Resident memory of this process. Source: proc(5), the second number of statm."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") >> 20


def cells(row: dict[str, Any]) -> list[object]:
    """A row as it is printed."""
    return [
        row["model"],
        row["shapes"],
        *(f"{row[name] * 1e3:.1f}" for name in ("prepare", "first_run", "run")),
        f"{row['ratio']:.2f}",
    ]


if __name__ == "__main__":
    main()
