"""Driver of the Acme A1. The entry point of nnadapter names this module, and nnadapter loads LIBRARY."""

from pathlib import Path

_FOLDER = Path(__file__).parent
LIBRARY = next(_FOLDER.glob("*nnadapter_acme_c.*"), _FOLDER / "nnadapter_acme_c.so")
