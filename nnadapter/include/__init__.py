"""Location of the C header."""

from __future__ import annotations

from pathlib import Path


def get_include() -> str:
    """Return the folder of `nnadapter_driver.h`, for a compiler's `-I`."""
    return str(Path(__file__).parent)
