"""Where files lie that are kept between sessions."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """The folder of everything that is kept: NNADAPTER_CACHE_DIR, else the platform's; it need not exist."""
    named = os.environ.get("NNADAPTER_CACHE_DIR", "").strip()
    if named:
        return Path(named).expanduser()
    from platformdirs import user_cache_path

    return user_cache_path("nnadapter", False, opinion=False)
