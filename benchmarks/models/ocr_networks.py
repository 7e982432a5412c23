"""RapidOCR's three models, with rendered text.

The text is drawn in several fonts and sizes, with contrast, blur, noise and a slight rotation. The seed is fixed, so
lines are the same wherever the same fonts are installed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache, partial
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import version_converter
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from benchmarks.models.trained import Array, Feed, Outputs, Trained, accuracy, in_onnxruntime

_OPSET = 17
_LINES, _PAGES = 300, 24
_CALIBRATION_LINES, _CALIBRATION_PAGES = 32, 8
_HEIGHT = 48
"""Height of a line in pixels."""
_WIDTHS = {"rec": 320, "cls": 192}
_PAGE = (640, 480)
"""Width and height of a page."""
_THRESHOLD = 0.3
"""Lower bound of RapidOCR for pixels of text."""
_FONTS = (
    "DejaVuSans",
    "DejaVuSans-Bold",
    "DejaVuSans-Oblique",
    "DejaVuSansCondensed",
    "DejaVuSansMono",
    "DejaVuSerif",
    "DejaVuSerif-Bold",
)
_TEXT = """
able above acid actual after again agent air album alert alpha amber angle apple april arrow autumn bank basic beach
below berry bird black blue board boat book bottle bread bridge bright brown buffer cable camera candle carbon castle
chair chart city clean clock cloud coast coffee cold copper corner cotton cream crystal dance dark data delta desert
device doctor door dream early earth east echo edge eight engine evening fabric factor farm fast field final fire first
flag flower forest fresh fruit garden gate glass global gold grain graph green guest half hand harbor heavy honey hotel
house hundred ice index iron island jacket june kernel kind king kitchen lake lamp large laser leaf lemon level light
limit lunch machine magic map market matrix memory metal middle milk minute model monday moon motor music narrow network
night north number ocean office olive open orange order oxygen paper park pencil phone piano pilot planet plate point
price proof quick quiet radio rain range ready red report river road rocket round salt sample school second seven shadow
sharp silver simple small snow solid south spring square station stone storm street sugar summer sunday table tensor
tiger total tower train travel tree value vector violet voice wagon water west white window winter wire yellow zero zone
"""
_WORDS = _TEXT.split()


def recognition(name: str, folder: Path, samples: int | None = None) -> Trained:
    """Return the recognition of lines; its metric is the share of right characters."""
    model, letters = _model("rec", (1, 3, _HEIGHT, _WIDTHS["rec"]))
    lines, further = _lines(samples or _LINES, seed=0), _lines(_CALIBRATION_LINES, seed=1)
    return Trained(
        name=name,
        model=model,
        samples=tuple(_line_feed(picture, "rec") for _, picture in lines),
        items=tuple(text for text, _ in lines),
        calibration=tuple(_line_feed(picture, "rec") for _, picture in further),
        metric=partial(_characters_right, ("", *letters, " ")),
        unit="% of characters",
    )


def direction(name: str, folder: Path, samples: int | None = None) -> Trained:
    """Return the classifier of upright and turned lines; its metric is the share of right directions."""
    lines, further = _lines(samples or _LINES, seed=2), _lines(_CALIBRATION_LINES, seed=3)
    return Trained(
        name=name,
        model=_model("cls", (1, 3, _HEIGHT, _WIDTHS["cls"]))[0],
        samples=tuple(_turned_feeds(lines)),
        items=tuple(number % 2 for number in range(len(lines))),
        calibration=tuple(_turned_feeds(further)),
        metric=accuracy,
        unit="% of lines",
    )


def detection(name: str, folder: Path, samples: int | None = None) -> Trained:
    """Return the detection of text; its metric is the overlap of the pixels of text with those of float32."""
    width, height = _PAGE
    model, _ = _model("det", (1, 3, height, width))
    feeds = tuple(_pages(samples or _PAGES, seed=4))
    run = in_onnxruntime(model)
    return Trained(
        name=name,
        model=model,
        samples=feeds,
        items=tuple(run(feed)[0] > _THRESHOLD for feed in feeds),
        calibration=tuple(_pages(_CALIBRATION_PAGES, seed=5)),
        metric=_overlap,
        unit="% of union",
    )


def _model(kind: str, shape: Sequence[int]) -> tuple[onnx.ModelProto, list[str]]:
    """Return a model with a fixed shape of its input at a newer opset, and the characters in its metadata."""
    package = find_spec("rapidocr")
    (folder,) = package.submodule_search_locations or () if package else ()
    model = onnx.load(next((Path(folder) / "models").glob(f"*_{kind}_*.onnx")))
    letters = [entry.value.splitlines() for entry in model.metadata_props if entry.key == "character"]
    for dimension, size in zip(model.graph.input[0].type.tensor_type.shape.dim, shape, strict=True):
        dimension.dim_value = size
    model.graph.output[0].type.tensor_type.ClearField("shape")
    del model.graph.value_info[:]  # of the dynamic shapes
    converted = version_converter.convert_version(model, _OPSET)
    return onnx.shape_inference.infer_shapes(converted), letters[0] if letters else []


def _characters_right(alphabet: Sequence[str], outputs: Sequence[Outputs], texts: Sequence[str]) -> float:
    read = [_decoded(alphabet, scores[0]) for (scores, *_) in outputs]
    right = [max(len(text) - edit_distance(text, other), 0) for text, other in zip(texts, read, strict=True)]
    return 100 * sum(right) / sum(map(len, texts))


def _decoded(alphabet: Sequence[str], scores: Array) -> str:
    """Return the text of scores `[columns, letters]` (CTC): repeated letters count once, letter 0 is blank."""
    return "".join(alphabet[letter] for letter, _ in groupby(scores.argmax(1).tolist()))


def edit_distance(first: str, second: str) -> int:
    """Return the number of characters to insert, delete or replace to change one text into the other."""
    row = list(range(len(second) + 1))
    for number, letter in enumerate(first, 1):
        diagonal, row[0] = row[0], number
        for column, other in enumerate(second, 1):
            changed = min(row[column] + 1, row[column - 1] + 1, diagonal + (letter != other))
            diagonal, row[column] = row[column], changed
    return row[-1]


def _overlap(outputs: Sequence[Outputs], expected: Sequence[Array]) -> float:
    shares = []
    for (scores, *_), right in zip(outputs, expected, strict=True):
        text = scores > _THRESHOLD
        union = (text | right).sum()
        shares.append((text & right).sum() / union if union else 1.0)
    return 100 * float(np.mean(shares))


def _lines(count: int, seed: int) -> list[tuple[str, Image.Image]]:
    """Return texts and their pictures."""
    lines = []
    for number in range(count):
        generator = np.random.default_rng([seed, number])
        text = _text(generator)
        lines.append((text, _worn(_drawn_line(text, generator), generator)))
    return lines


def _text(generator: np.random.Generator) -> str:
    """Return words or numbers of 6 to 17 characters."""
    while True:
        kind = generator.integers(6)
        if kind < 3:
            text = " ".join(generator.choice(_WORDS, generator.integers(1, 4)))
            text = (text, text.capitalize(), text.upper())[kind]
        elif kind == 3:
            text = f"{generator.choice(_WORDS)} {generator.integers(1000):d}-{generator.integers(100):02d}"
        elif kind == 4:
            text = f"{generator.integers(10_000_000) / 100:,.2f} {generator.choice(['kg', 'EUR', 'ms', '%', 'W'])}"
        else:
            text = f"{generator.integers(2000, 2040)}-{generator.integers(1, 13):02d}-{generator.integers(1, 29):02d}"
        if 6 <= len(text) <= 17:
            return text


@cache
def _font(number: int, size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Return a font by number, or Pillow's own if it is not installed."""
    try:
        return ImageFont.truetype(f"{_FONTS[number]}.ttf", size)
    except OSError:
        return ImageFont.load_default(size)


def _drawn_line(text: str, generator: np.random.Generator) -> Image.Image:
    size = int(generator.integers(10, 41))
    paper, ink = _colors(generator)
    font = _font(int(generator.integers(len(_FONTS))), size)
    picture = Image.new("RGB", (round(font.getlength(text)) + size // 2, round(1.5 * size)), paper)
    ImageDraw.Draw(picture).text((size // 4, picture.height / 2), text, fill=ink, font=font, anchor="lm")
    return picture.rotate(generator.uniform(-1.5, 1.5), resample=Image.Resampling.BICUBIC, fillcolor=paper)


def _colors(generator: np.random.Generator) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the colors of paper and ink, one light and one dark."""
    light, dark = generator.integers(140, 256, 3), generator.integers(0, 110, 3)
    colors = tuple(light.tolist()), tuple(dark.tolist())
    return colors if generator.random() < 0.75 else colors[::-1]


def _worn(picture: Image.Image, generator: np.random.Generator) -> Image.Image:
    """Return a picture with blur and noise."""
    blurred = picture.filter(ImageFilter.GaussianBlur(generator.uniform(0, 1.3)))
    noise = generator.normal(0, generator.uniform(0, 40), (picture.height, picture.width, 3))
    return Image.fromarray(np.clip(np.asarray(blurred) + noise, 0, 255).astype(np.uint8))


def _line_feed(picture: Image.Image, kind: str) -> Feed:
    """Return a line scaled to the height of the network, with zeros to the right of it."""
    width = min(math.ceil(picture.width * _HEIGHT / picture.height), _WIDTHS[kind])
    array = np.zeros((1, 3, _HEIGHT, _WIDTHS[kind]), np.float32)
    array[..., :width] = _normalized(picture.resize((width, _HEIGHT), Image.Resampling.BILINEAR))
    return {"x": array}


def _turned_feeds(lines: Sequence[tuple[str, Image.Image]]) -> Iterator[Feed]:
    for number, (_, picture) in enumerate(lines):
        yield _line_feed(picture.rotate(180) if number % 2 else picture, "cls")


def _normalized(picture: Image.Image) -> Array:
    """Return channels blue, green, red from -1 to 1."""
    array: Any = np.asarray(picture, np.float32)[..., ::-1].transpose(2, 0, 1)
    return np.ascontiguousarray(array / 127.5 - 1)


def _pages(count: int, seed: int) -> Iterator[Feed]:
    """Yield pages with lines of one size, slightly rotated."""
    generator = np.random.default_rng(seed)
    for _ in range(count):
        paper, ink = _colors(generator)
        page = Image.new("RGB", _PAGE, paper)
        size, font = int(generator.integers(14, 33)), int(generator.integers(len(_FONTS)))
        for top in range(size, _PAGE[1] - 2 * size, int(size * generator.uniform(1.5, 3))):
            text = " ".join(_text(generator) for _ in range(generator.integers(1, 4)))
            left = int(generator.integers(10, 120))
            ImageDraw.Draw(page).text((left, top), text, fill=ink, font=_font(font, size))
        page = page.rotate(generator.uniform(-3, 3), resample=Image.Resampling.BICUBIC, fillcolor=paper)
        yield {"x": _normalized(_worn(page, generator))[None]}
