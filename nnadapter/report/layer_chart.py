"""Chart of the SQNR of each layer as SVG, and as an HTML page with a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from nnadapter.accuracy.distances import Distance
from nnadapter.accuracy.layers import FIGURES, LayerDistance, figures, worst_first
from nnadapter.report.html import static_page, table

_HEIGHT, _TOP, _LEFT, _STEP = 260.0, 12.0, 56.0, 20
_LOWEST, _HIGHEST = -40.0, 160.0
"""Range of the chart in dB; float32 rounds at about 150 dB."""
_ALONE, _ACCUMULATED = "#4c8fd6", "#d9822b"
_LEGEND = (
    f'layers in graph order; <tspan fill="{_ALONE}">&#9632; alone</tspan>, '
    f'<tspan fill="{_ACCUMULATED}">&#9679; accumulated</tspan>; exact results reach the top'
)


def to_svg(layers: Sequence[LayerDistance], title: str) -> str:
    """Return the chart as an SVG file."""
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{_svg(layers, title, "background:#fff;color:#222")}\n'


def to_page(layers: Sequence[LayerDistance], title: str, subtitle: str) -> str:
    """Return an HTML page with the chart and a table, worst layers first."""
    sides = [(f"{side} {name}", True) for side in ("alone", "accumulated") for name in FIGURES]
    rows = [(row.position, row, *figures(row.alone), *figures(row.accumulated)) for row in worst_first(layers)]
    parts = (f'<div class="wrapped">{_svg(layers, title)}</div>', table([("#", True), ("layer", False), *sides], rows))
    return static_page("Layers", title, subtitle, "".join(f"<section>{part}</section>" for part in parts))


def _svg(layers: Sequence[LayerDistance], title: str, style: str = "") -> str:
    ordered = sorted(layers, key=lambda layer: layer.position)
    pitch = min(24.0, max(3.0, 1000 / max(len(ordered), 1)))
    width = _LEFT + max(440.0, pitch * len(ordered)) + 12
    measured = [off.sqnr_db for layer in ordered for off in (layer.alone, layer.accumulated) if off is not None]
    finite = [number for number in measured if _LOWEST <= number <= _HIGHEST] or [0.0]
    chart = _Chart(min(0.0, min(finite) // _STEP * _STEP), (max(finite) // _STEP + 1) * _STEP, pitch)
    label = escape(f"SQNR per layer of {title}")
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="310" role="img" aria-label="{label}"'
    style = f' style="{style}"' if style else ""
    legend = f'<text x="{_LEFT}" y="{_HEIGHT + _TOP + 26}" fill="currentColor">{_LEGEND}</text>'
    body = (*chart.grid(width), chart.line(ordered), *map(chart.layer, range(len(ordered)), ordered), legend)
    return "\n".join([f'{head} font-family="sans-serif" font-size="11"{style}>', *body, "</svg>"])


class _Chart:
    def __init__(self, low: float, high: float, pitch: float) -> None:
        self.low, self.high, self.pitch = low, high, pitch

    def y(self, sqnr_db: float) -> float:
        return _TOP + _HEIGHT * (self.high - min(max(sqnr_db, self.low), self.high)) / (self.high - self.low)

    def grid(self, width: float) -> Iterator[str]:
        for mark in range(int(self.low), int(self.high) + 1, _STEP):
            yield f'<path d="M{_LEFT} {self.y(mark):.1f}H{width:.0f}" stroke="currentColor" stroke-opacity="0.15"/>'
            place = f'x="{_LEFT - 6}" y="{self.y(mark) + 4:.1f}"'
            yield f'<text {place} text-anchor="end" fill="currentColor">{mark} dB</text>'

    def line(self, layers: Sequence[LayerDistance]) -> str:
        places = ((at, layer.accumulated) for at, layer in enumerate(layers))
        points = (f"{_LEFT + (at + 0.5) * self.pitch:.1f},{self.y(off.sqnr_db):.1f}" for at, off in places if off)
        return f'<polyline points="{" ".join(points)}" fill="none" stroke="{_ACCUMULATED}" stroke-width="1.5"/>'

    def layer(self, at: int, layer: LayerDistance) -> str:
        x, pitch = _LEFT + at * self.pitch, self.pitch
        tip = f"#{layer.position} {layer}\nalone: {_words(layer.alone)}\naccumulated: {_words(layer.accumulated)}"
        area = f'<path d="M{x:.1f} {_TOP}h{pitch:.1f}v{_HEIGHT}h-{pitch:.1f}z" fill="none" pointer-events="all"/>'
        marks = [f"<title>{escape(tip)}</title>", area]
        if layer.alone is not None:
            y, zero = self.y(layer.alone.sqnr_db), self.y(0)
            top, height = min(y, zero), abs(zero - y) + 1
            bar = f'x="{x + pitch / 8:.1f}" y="{top:.1f}" width="{pitch * 0.75:.1f}" height="{height:.1f}"'
            marks.append(f'<rect {bar} fill="{_ALONE}" fill-opacity="0.7"/>')
        if layer.accumulated is not None:
            center = f'cx="{x + pitch / 2:.1f}" cy="{self.y(layer.accumulated.sqnr_db):.1f}"'
            marks.append(f'<circle {center} r="{min(3.0, pitch / 2):.1f}" fill="{_ACCUMULATED}"/>')
        return f"<g>{''.join(marks)}</g>"


def _words(off: Distance | None) -> str:
    return ", ".join(f"{name} {text}" for name, text in zip(FIGURES, figures(off), strict=True))
