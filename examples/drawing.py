"""Drawing of recognized text: boxes on the image, text next to it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

INK = "#c02020"


def draw_reading(
    picture: Path, boxes: Sequence[np.ndarray], texts: Sequence[str], font_path: Path | None = None
) -> Image.Image:
    """Return the image with boxes in the left half, and the text in the right half.

    Args:
        picture: path of the image.
        boxes: corners `[4, 2]` of each text as (x, y) in pixels.
        texts: recognized texts.
        font_path: a font for characters that Pillow's font lacks, such as Chinese ones.
    """
    with Image.open(picture) as opened:
        original = opened.convert("RGB")
    canvas = Image.new("RGB", (original.width * 2, original.height), "white")
    canvas.paste(original)
    pen = ImageDraw.Draw(canvas)
    for box, text in zip(boxes, texts, strict=True):
        corners = [(float(x), float(y)) for x, y in box]
        pen.polygon(corners, outline=INK, width=2)
        corner = (original.width + min(x for x, _ in corners), min(y for _, y in corners))
        pen.text(corner, text, fill=INK, font=fitting_font(text, corners, font_path))
    return canvas


def fitting_font(
    text: str, corners: Sequence[tuple[float, float]], font_path: Path | None
) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Return a font in which `text` is as wide as its box."""
    trial = 100
    width = max(x for x, _ in corners) - min(x for x, _ in corners)
    size = max(8.0, trial * width / max(1.0, font_of(trial, font_path).getlength(text)))
    return font_of(size, font_path)


def font_of(size: float, font_path: Path | None) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """Return a font, by default Pillow's, in a size in pixels."""
    return ImageFont.truetype(font_path, size) if font_path else ImageFont.load_default(size)
