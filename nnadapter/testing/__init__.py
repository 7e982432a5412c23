"""The conformance kit: whether a driver does what it says, for `nnadapter conformance`, pytest, and as functions."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nnadapter.testing.bench import Settings
    from nnadapter.testing.kit import BoundCase, ScoreCard, conformance_cases, run_conformance
    from nnadapter.testing.subjects import Precision

__all__ = ["BoundCase", "Precision", "ScoreCard", "Settings", "conformance_cases", "run_conformance"]

_MODULES = {
    "BoundCase": "bound",
    "Precision": "tolerances",
    "ScoreCard": "score",
    "Settings": "bench",
    "conformance_cases": "bound",
    "run_conformance": "kit",
}
"""Public name -> module, which is imported on first use."""


def __getattr__(name: str) -> Any:
    """Import a public name."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
