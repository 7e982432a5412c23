"""The formats of reports, comparisons and what-if, and what files that are written in them are called."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import PurePath
from types import MappingProxyType

FORMATS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "text": (".txt",),
        "json": (".json",),
        "md": (".md", ".markdown"),
        "html": (".html", ".htm"),
        "dot": (".dot", ".gv"),
        "model-explorer": (),
    }
)
"""Every format, with the endings of its files."""


def format_of(path: str | os.PathLike[str]) -> str | None:
    """Return the format that a file's name asks for; None where it asks for none."""
    ending = PurePath(path).suffix.lower()
    return next((form for form, endings in FORMATS.items() if ending in endings), None)
