"""Placement rules: pins, bans and limits, in TOML or in Python."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnadapter.process.lazily import lazily

if TYPE_CHECKING:
    from nnadapter.rules.application import (
        AppliedRules,
        RuleEffect,
        SegmentCandidate,
        SegmentsDroppedByLimits,
        apply_rules,
        segments_to_drop,
    )
    from nnadapter.rules.reading import read_rules
    from nnadapter.rules.values import Ban, Limits, Pin, Rules


__all__ = [
    "AppliedRules",
    "Ban",
    "Limits",
    "Pin",
    "RuleEffect",
    "Rules",
    "SegmentCandidate",
    "SegmentsDroppedByLimits",
    "apply_rules",
    "read_rules",
    "segments_to_drop",
]

__getattr__ = lazily(
    __name__,
    {
        ".application": (
            "AppliedRules RuleEffect SegmentCandidate SegmentsDroppedByLimits apply_rules segments_to_drop"
        ),
        ".reading": "read_rules",
        ".values": "Ban Limits Pin Rules",
    },
)
