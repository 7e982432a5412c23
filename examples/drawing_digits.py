"""Drawing of a training: the loss curve on the left, digits with answers on the right."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

INK, WRONG, LINES = "#205080", "#c02020", "#b0b0b0"
WIDTH, HEIGHT, MARGIN = 480, 400, 48
CELL, COLUMNS, ROWS = 80, 6, 5
"""Pixels of a digit with its answer; columns and rows of digits."""


def draw_training(
    losses: Sequence[float], pictures: np.ndarray, answers: np.ndarray, truths: np.ndarray
) -> Image.Image:
    """Return the image.

    Args:
        losses: loss of every step.
        pictures: digits [N, 8, 8] from 0 to 1; wrong answers are shown first.
        answers: recognized digits, [N].
        truths: correct digits, [N].
    """
    canvas = Image.new("RGB", (WIDTH + CELL * COLUMNS, HEIGHT), "white")
    draw_curve(ImageDraw.Draw(canvas), losses)
    shown = np.argsort(answers == truths, kind="stable")[: COLUMNS * ROWS]
    for place, digit in enumerate(shown):
        row, column = divmod(place, COLUMNS)
        corner = (WIDTH + column * CELL, row * CELL)
        draw_digit(canvas, corner, pictures[digit], int(answers[digit]), int(truths[digit]))
    return canvas


def draw_curve(pen: ImageDraw.ImageDraw, losses: Sequence[float]) -> None:
    """Draw the loss curve, with lines at whole numbers."""
    font, most = ImageFont.load_default(16), max(*losses, 1.0)
    bottom, right = HEIGHT - MARGIN, WIDTH - MARGIN // 2

    def height(loss: float) -> float:
        return bottom - (bottom - MARGIN // 2) * loss / most

    for line in range(int(most) + 1):
        pen.line([(MARGIN, height(line)), (right, height(line))], fill=LINES)
        pen.text((MARGIN - 18, height(line) - 9), str(line), fill=INK, font=font)
    across = np.linspace(MARGIN, right, len(losses))
    pen.line([(float(x), height(loss)) for x, loss in zip(across, losses, strict=True)], fill=INK, width=2)
    pen.text((MARGIN, bottom + 12), f"loss over {len(losses)} steps", fill=INK, font=font)


def draw_digit(canvas: Image.Image, corner: tuple[int, int], picture: np.ndarray, answer: int, truth: int) -> None:
    """Draw a digit and its answer; if it is wrong, also the correct digit."""
    ink = Image.fromarray((255 * (1 - picture)).astype(np.uint8)).resize(
        (CELL - 32, CELL - 32), Image.Resampling.NEAREST
    )
    left, top = corner
    canvas.paste(ink, (left + 4, top + 16))
    pen, font = ImageDraw.Draw(canvas), ImageFont.load_default(22)
    pen.text((left + CELL - 24, top + 12), str(answer), fill=INK if answer == truth else WRONG, font=font)
    if answer != truth:
        pen.text((left + CELL - 24, top + 42), str(truth), fill=LINES, font=font)
