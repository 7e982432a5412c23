"""The report of a compiled module as one HTML page: its text, and below it the page of every session."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from nnadapter.torch.facts import CompiledFacts

_STYLE = (
    "body{font:14px sans-serif;margin:2em}pre{white-space:pre-wrap}"
    "iframe{width:100%;height:80vh;border:1px solid #ccc}summary{cursor:pointer;margin:.5em 0}"
)


def to_page(report: CompiledFacts) -> str:
    """Return a page that needs no network and no other file."""
    title = escape(f"{report.name}: PyTorch graphs")
    head = f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
    body = f"<h1>{title}</h1><pre>{escape(str(report))}</pre>{''.join(_sessions(report))}"
    return f"{head}</head><body>{body}</body></html>\n"


def _sessions(report: CompiledFacts) -> Iterator[str]:
    for place, graph in enumerate(report.graphs):
        for index, session in enumerate(graph.sessions):
            name = f"graph {place}, {graph.kind}, session {index}"
            page = escape(session.to_html(f"{report.name}: {name}"))
            frame = f'<iframe title="{escape(name)}" srcdoc="{page}"></iframe>'
            yield f"<details><summary>{escape(name)}</summary>{frame}</details>"
