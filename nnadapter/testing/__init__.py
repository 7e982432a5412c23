"""Conformance kit for drivers: used by `nnadapter conformance`, by pytest, or by calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnadapter.process.lazily import lazily

if TYPE_CHECKING:
    from nnadapter.testing.kit import BoundCase, ScoreCard, conformance_cases, run_conformance
    from nnadapter.testing.subjects import Precision, Settings

__all__ = ["BoundCase", "Precision", "ScoreCard", "Settings", "conformance_cases", "run_conformance"]


__getattr__ = lazily(
    __name__,
    {
        ".kit": "BoundCase ScoreCard conformance_cases run_conformance",
        ".subjects": "Precision Settings",
    },
)


def __dir__() -> list[str]:
    return list(__all__)
