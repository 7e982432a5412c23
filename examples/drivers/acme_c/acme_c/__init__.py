"""The driver of the Acme A1. nnadapter's entry point names this module, and LIBRARY is what it looks for."""

from pathlib import Path

_FOLDER = Path(__file__).parent
LIBRARY = next(_FOLDER.glob("*nnadapter_acme_c.*"), _FOLDER / "nnadapter_acme_c.so")
