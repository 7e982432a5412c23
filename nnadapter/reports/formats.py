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
        "model-explorer": (".json",),
    }
)
"""Every format, with the endings of its files."""


def formats_of(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Return the formats that go into files of such a name, the first being the one that it stands for."""
    ending = PurePath(path).suffix.lower()
    return tuple(form for form, endings in FORMATS.items() if ending in endings)
