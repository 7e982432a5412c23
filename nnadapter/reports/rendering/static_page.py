"""Pages without a script in the style of the report's page: figures, bars and tables of what is counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from nnadapter.drivers.selection import HOSTS
from nnadapter.reports.rendering.html import page_style, policy_hash

_DEVICES = 8
"""Colors of devices that the style has."""
_COLORS = "".join(f".at-{number}{{background:var(--device-{number})}}" for number in range(_DEVICES))
_BARS = (
    ".at-host{background:var(--host)}.rows{display:grid;grid-template-columns:max-content 1fr max-content;gap:6px 14px}"
)
_METER = "meter{width:100%;height:14px}"
_TOP = "ul.detail{padding-left:20px;margin:8px 0 0}.subtitle{margin-top:4px}"


def static_page(kind: str, title: str, subtitle: str, body: str) -> str:
    """Return a page around `body`, which is markup. It makes no request: its policy allows its own style alone."""
    style = page_style() + _COLORS + _BARS + _METER + _TOP
    policy = f"default-src 'none'; style-src {policy_hash(style)}; base-uri 'none'; form-action 'none'"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)} · {escape(kind.lower())}</title>\n<style>{style}</style>\n</head>\n<body>\n"
        f'<header class="top"><div><p class="eyebrow">{escape(kind)}</p><h1>{escape(title)}</h1>'
        f'<p class="muted subtitle">{escape(subtitle)}</p></div></header>\n<main>{body}</main>\n'
        '<footer class="muted">This page holds all its data and asks no network for anything.</footer>\n'
        "</body>\n</html>\n"
    )


def tiles(figures: Sequence[tuple[str, str, str]]) -> str:
    """Figures, each with its name before it and what it means behind."""
    cells = "".join(
        f'<div class="tile"><dt>{escape(name)}</dt><dd>{escape(figure)}'
        f'<span class="small">{escape(small)}</span></dd></div>'
        for name, figure, small in figures
    )
    return f'<dl class="tiles">{cells}</dl>'


def table(head: Sequence[tuple[str, bool]], rows: Sequence[Sequence[object]]) -> str:
    """A table; the head says of each column its name and whether it holds numbers. Empty without rows."""
    if not rows:
        return ""
    marks = [' class="number"' if is_number else "" for _, is_number in head]
    names = "".join(f"<th{mark}>{escape(name)}</th>" for mark, (name, _) in zip(marks, head, strict=True))
    lines = "".join(
        "<tr>" + "".join(f"<td{mark}>{escape(str(cell))}</td>" for mark, cell in zip(marks, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f'<div class="wrapped"><table><thead><tr>{names}</tr></thead><tbody>{lines}</tbody></table></div>'


def bars(parts: Mapping[str, int], whole: int) -> str:
    """Parts of a whole by device, as bars with their numbers. Empty without parts."""
    cells = "".join(
        f'<span class="chip"><i class="{_color(place, name)}"></i>{escape(name)}</span>'
        f'<meter min="0" max="{max(whole, 1)}" value="{number}"></meter>'
        f'<span class="number">{number} ({number / max(whole, 1):.1%})</span>'
        for place, (name, number) in enumerate(parts.items())
    )
    return f'<div class="rows">{cells}</div>' if cells else ""


def _color(place: int, name: str) -> str:
    return "at-host" if name in HOSTS else f"at-{place % _DEVICES}"
