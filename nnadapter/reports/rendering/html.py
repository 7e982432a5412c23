"""The report as one HTML page: style, script and data inside, nothing from outside."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping
from importlib import resources

from nnadapter.process.cache import remembered
from nnadapter.reports.difference_facts import DifferenceFacts
from nnadapter.reports.facts import ReportFacts
from nnadapter.reports.plain import plain
from nnadapter.reports.rendering.page_data import page_data

_SCRIPTS = (
    "dom.js", "data.js", "table.js", "scale.js", "drawing.js", "lanes.js", "details.js", "overview.js", "breakdown.js",
    "nodes.js", "comparison.js", "start.js",
)  # fmt: skip
"""In the order in which they stand in the page; one scope holds them all."""


def to_html(report: ReportFacts, title: str, difference: DifferenceFacts | None) -> str:
    """Return the page.

    It makes no request: its policy allows the one style and the one script in it, by their hashes, and nothing else.
    Texts from the model reach the page as JSON in which no `<` stands, and are shown as text only.

    Args:
        report: what is shown.
        title: what the page is about, such as the model's file name.
        difference: what changed since an older report; the page shows both.
    """
    style, script = page_style(), _script()
    allowed = f"default-src 'none'; style-src {policy_hash(style)}; script-src {policy_hash(script)}"
    parts = {
        "title": html.escape(title or "model"),
        "policy": html.escape(f"{allowed}; base-uri 'none'; form-action 'none'"),
        "style": style,
        "script": script,
        "data": _data(report, title, difference),
    }
    return filled(_file("page.html"), parts)


def filled(template: str, parts: Mapping[str, str]) -> str:
    """Each `{{name}}` gives way to its part; what a part holds is not looked at again."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def _data(report: ReportFacts, title: str, difference: DifferenceFacts | None) -> str:
    text = json.dumps(
        plain(page_data(report, title, difference)), ensure_ascii=True, allow_nan=False, separators=(",", ":")
    )
    # Neither an end tag nor a comment can begin without one of these; inside JSON they only stand in strings.
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def policy_hash(text: str) -> str:
    """How a page's policy names the one style or script that it allows."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@remembered(1)
def page_style() -> str:
    """The style of all pages."""
    return _file("page.css")


@remembered(1)
def _script() -> str:
    return "(() => {\n" + "\n".join(_file(name) for name in _SCRIPTS) + "\n})();"


def _file(name: str) -> str:
    return resources.files("nnadapter.reports.rendering").joinpath("page", name).read_text(encoding="utf-8")
