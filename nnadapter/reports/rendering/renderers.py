"""The table of renderings of a report, with what changed since an older one where that is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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


RENDERERS: Mapping[str, Renderer] = MappingProxyType(
    {
        "text": _text,
        "json": _json,
        "md": _markdown,
        "html": to_html,
        "dot": lambda report, title, difference: to_dot(report),
        "model-explorer": lambda report, title, difference: to_model_explorer(report),
    }
)
"""By format, see `formats.FORMATS`."""
PLAIN = frozenset({"dot", "model-explorer"})
"""Formats that have no place for a comparison."""
