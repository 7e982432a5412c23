"""What a person may say of placement: pins, bans and limits, in TOML or in Python.

values     `Rules`, `Pin`, `Ban`, `Limits`: frozen and checked
reading    a TOML file or text -> `Rules`
selecting  a rule -> the nodes of a model that it means
applying   rules and verdicts -> verdicts, and what each rule did
limits     segments -> those that the limits have given up
"""

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

_HOMES = {
    "AppliedRules": "nnadapter.rules.application",
    "Ban": "nnadapter.rules.values",
    "SegmentsDroppedByLimits": "nnadapter.rules.application",
    "Limits": "nnadapter.rules.values",
    "Pin": "nnadapter.rules.values",
    "RuleEffect": "nnadapter.rules.application",
    "Rules": "nnadapter.rules.values",
    "SegmentCandidate": "nnadapter.rules.application",
    "apply_rules": "nnadapter.rules.application",
    "read_rules": "nnadapter.rules.reading",
    "segments_to_drop": "nnadapter.rules.application",
}
"""Where each public name lives."""

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

__getattr__ = lazily(__name__, _HOMES)
