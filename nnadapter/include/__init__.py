"""Where the header of the C interface lies."""

from __future__ import annotations

from pathlib import Path


def get_include() -> str:
    """The folder of `nnadapter_driver.h`, for a compiler's `-I`."""
    return str(Path(__file__).parent)
