"""Where files lie that are kept between sessions."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """The folder of everything that is kept: NNADAPTER_CACHE_DIR, else the platform's; it need not exist."""
    from platformdirs import user_cache_path

    named = os.environ.get("NNADAPTER_CACHE_DIR", "").strip()
    return Path(named).expanduser() if named else user_cache_path("nnadapter", False, opinion=False)
