"""Where files lie that are kept between sessions."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_folder() -> Path:
    """The folder of everything that is kept: NNADAPTER_CACHE_DIR, else the platform's; it need not exist."""
    named = os.environ.get("NNADAPTER_CACHE_DIR")
    return Path(named) if named else _platform_folder() / "nnadapter"


def _platform_folder() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
