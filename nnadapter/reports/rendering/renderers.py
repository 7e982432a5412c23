"""The formats of a report: what renders it, with what changed since an older one where asked, and names of files."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from types import MappingProxyType

from nnadapter.reports.difference_facts import DifferenceFacts
from nnadapter.reports.facts import ReportFacts
from nnadapter.reports.plain import to_lines
from nnadapter.reports.rendering.difference_text import difference_markdown, difference_text
from nnadapter.reports.rendering.dot import to_dot
from nnadapter.reports.rendering.html import to_html
from nnadapter.reports.rendering.markdown import to_markdown
from nnadapter.reports.rendering.model_explorer import to_model_explorer
from nnadapter.reports.rendering.text import to_text

Renderer = Callable[[ReportFacts, str, DifferenceFacts | None], str]
"""A report, its title, what changed -> text."""


def _text(report: ReportFacts, title: str, difference: DifferenceFacts | None) -> str:
    return to_text(report) + ("" if difference is None else f"\n\n{difference_text(difference)}")


def _json(report: ReportFacts, title: str, difference: DifferenceFacts | None) -> str:
    return to_lines(report.to_dict() | ({} if difference is None else {"difference": difference.to_dict()}))


def _markdown(report: ReportFacts, title: str, difference: DifferenceFacts | None) -> str:
    return ("" if difference is None else f"{difference_markdown(difference)}\n") + to_markdown(report)


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """How a report is written down."""

    render: Renderer
    endings: tuple[str, ...]
    """Of files that are written so."""
    help: str = ""
    """What it is, for the command line; empty where the name says it."""
    shows_difference: bool = True
    """It has a place for a comparison."""


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        "text": Format(render=_text, endings=(".txt",)),
        "json": Format(render=_json, endings=(".json",)),
        "md": Format(render=_markdown, endings=(".md", ".markdown")),
        "html": Format(render=to_html, endings=(".html", ".htm"), help="one page that needs nothing else"),
        "dot": Format(
            render=lambda report, title, difference: to_dot(report),
            endings=(".dot", ".gv"),
            help="for Graphviz",
            shows_difference=False,
        ),
        "model-explorer": Format(
            render=lambda report, title, difference: to_model_explorer(report),
            endings=(".json",),
            help="custom node data for Google's Model Explorer",
            shows_difference=False,
        ),
    }
)
"""By name. A new one is a file beside this one and a row here."""


def formats_of(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Return the formats that go into files of such a name, the first being the one that it stands for."""
    ending = PurePath(path).suffix.lower()
    return tuple(name for name, form in FORMATS.items() if ending in form.endings)
