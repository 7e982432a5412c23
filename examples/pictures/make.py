"""Draw the images of text for `read_text.py`. All text is invented.

    python examples/pictures/make.py [--font FONT] [-o DIR]

The letters are Pillow's scalable font. It has no Chinese characters, so `bilingual.png` is drawn only if `--font` names
a font file that has them.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

HERE = Path(__file__).parent
BLACK, WHITE = "#202020", "#ffffff"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Line of text."""

    text: str
    ink: str = BLACK
    paper: str | None = None
    """Background color of the line."""
    upside_down: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Image of text."""

    lines: Sequence[Line]
    letters: int
    """Size of letters in pixels."""
    size: tuple[int, int] = (640, 480)
    paper: str = WHITE
    angle: float = 0.0
    """Rotation of the page in degrees, counterclockwise."""
    needs_font: bool = False


def plain(text: str) -> list[Line]:
    """Return lines of black text."""
    return [Line(text=line) for line in text.strip().splitlines()]


TURNED = plain("""
Turned by half a circle
A classifier finds that out
line by line and turns each
one before it is read
""")
LINES_TURNED = [
    Line(text="Upright: the first kernel"),
    Line(text="Turned: the second kernel", upside_down=True),
    Line(text="Upright: copy, cast, layout"),
    Line(text="Turned: one more segment", upside_down=True),
    Line(text="Upright: outputs are ready"),
]
SKEWED = plain("""
Weather station seven
Wind from the north west
Clouds in the afternoon
Rain before sunset
""")
SMALL = plain("""
Node 14 runs on the accelerator, node 15 on the processor.
A tensor that crosses the border is moved once.
Small letters lose their shape when a picture is scaled,
so this page shows whether small errors change the text.
Every refusal is kept together with its reason.
""")
DENSE = plain("""
A compiler reads the graph from its inputs to its outputs
and asks for every node which device is able to run it.
Nodes that no device takes are left to the processor. The
rest is cut into as few pieces as the order of the nodes
allows, since each piece costs a launch, and each border
between two pieces costs a copy. Weights are packed when a
piece is compiled and are shared by all plans that read
them. A convolution over a wide picture is split in rows,
so that what it reads and what it writes stay in the fast
memory next to the arithmetic units. If a device is slow,
busy, or lost, the same piece runs again elsewhere with
the same inputs, and the report says when that happened
and why. Nothing is hidden, and nothing is guessed.
""")
COLORED = [
    Line(text="Green light: ready", ink="#0b5d1e", paper="#c8f0d0"),
    Line(text="Yellow light: warming up", ink="#ffe066", paper="#5a4a00"),
    Line(text="Red light: too hot", ink="#ffffff", paper="#b00020"),
    Line(text="Blue light: waiting", ink="#bfe3ff", paper="#12306b"),
    Line(text="Violet light: self test", ink="#4b1d6b", paper="#f3c6e8"),
]
DIGITS = plain("""
2031-04-17  08:35:20
Total 1,284.50    Tax 96.34
3.14159  2.71828  1.41421
Batch 64 x 3 x 224 x 224
75% of 1536 MB at 48.6 C
No. 5508-2217-9034
""")
BILINGUAL = plain("""
设备 Device: 加速器 accelerator
温度 Temperature: 42.5 度
今天多云，下午有小雨
内核已经编译完成 compiled
卷积 convolution 共 53 个
状态 Status: 正常运行
""")

PAGES = {
    "bilingual": Page(lines=BILINGUAL, letters=34, needs_font=True),
    "colored": Page(lines=COLORED, letters=36, paper="#e8e2d4"),
    "dense": Page(lines=DENSE, letters=21),
    "digits": Page(lines=DIGITS, letters=38),
    "lines_turned": Page(lines=LINES_TURNED, letters=38),
    "skewed": Page(lines=SKEWED, letters=38, angle=6.0),
    "small": Page(lines=SMALL, letters=13, size=(400, 200)),
    "turned": Page(lines=TURNED, letters=40, angle=180.0),
}


def draw_page(page: Page, font_path: Path | None = None) -> Image.Image:
    """Draw a page with evenly spaced lines."""
    font = ImageFont.truetype(font_path, page.letters) if font_path else ImageFont.load_default(page.letters)
    picture = Image.new("RGB", page.size, page.paper)
    step = page.size[1] / (len(page.lines) + 0.5)
    for index, line in enumerate(page.lines):
        strip = draw_line(line, font, page)
        picture.paste(strip, (page.size[0] // 20, round(step * (index + 0.75) - strip.height / 2)))
    return picture.rotate(page.angle, resample=Image.Resampling.BICUBIC, fillcolor=page.paper)


def draw_line(line: Line, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, page: Page) -> Image.Image:
    """Draw a line on its background."""
    margin = page.letters // 4
    width = round(font.getlength(line.text)) + 2 * margin
    strip = Image.new("RGB", (width, round(page.letters * 1.4)), line.paper or page.paper)
    ImageDraw.Draw(strip).text((margin, strip.height / 2), line.text, fill=line.ink, font=font, anchor="lm")
    return strip.rotate(180) if line.upside_down else strip


def save(picture: Image.Image, path: Path) -> None:
    """Save with few colors, for small files without a visible difference."""
    picture.quantize(32).save(path, optimize=True)
    print(f"{path.name}: {path.stat().st_size / 1024:.1f} KiB")


def main() -> None:
    """Draw every page."""
    parser = argparse.ArgumentParser(description="Draw the pictures of text.")
    parser.add_argument("--font", type=Path, help="font file with Chinese characters, for bilingual.png")
    parser.add_argument("-o", "--out", type=Path, default=HERE, help="folder for the pictures")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        if chosen.font or not page.needs_font:
            save(draw_page(page, chosen.font if page.needs_font else None), chosen.out / f"{name}.png")


if __name__ == "__main__":
    main()
