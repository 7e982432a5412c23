"""What a person may say of placement: pins, bans and limits, in TOML or in Python.

values     `Rules`, `Pin`, `Ban`, `Limits`: frozen and checked
reading    a TOML file or text -> `Rules`
selecting  a rule -> the nodes of a model that it means
applying   rules and verdicts -> verdicts, and what each rule did
limits     segments -> those that the limits have given up
"""

from nnadapter.rules.applying import Applied, RuleEffect, apply_rules
from nnadapter.rules.limits import GivenUp, SegmentCandidate, segments_to_drop
from nnadapter.rules.reading import read_rules
from nnadapter.rules.values import Ban, Limits, Pin, Rules

__all__ = [
    "Applied",
    "Ban",
    "GivenUp",
    "Limits",
    "Pin",
    "RuleEffect",
    "Rules",
    "SegmentCandidate",
    "apply_rules",
    "read_rules",
    "segments_to_drop",
]
