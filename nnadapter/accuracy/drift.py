"""The sequential test of the shadow check: whether a step is beyond what is allowed more often than chance explains."""

from __future__ import annotations

from math import log

RIGHT, WRONG = 1e-3, 0.2
"""The share of checks in which a step of a device that computes rightly is beyond what is allowed, at most; and that of
one which drifts, from which on it is found soon."""
BETWEEN_FALSE_ALARMS = 1e6
"""Checks of a right step from one false alarm to the next, on average, at least."""
_BEYOND, _WITHIN = log(WRONG / RIGHT), log((1 - WRONG) / (1 - RIGHT))
_ALARM = log(BETWEEN_FALSE_ALARMS)


class Drift:
    """Page's CUSUM test on the share of checks in which one step is beyond what is allowed.

    Each check adds its log-likelihood ratio, of `WRONG` against `RIGHT`, to a sum that does not go below 0; the alarm
    is at log(`BETWEEN_FALSE_ALARMS`). By Lorden's bound, right steps (beyond in a share of `RIGHT` at most) then
    raise a false alarm once in `BETWEEN_FALSE_ALARMS` checks on average, or less often. Three checks in a row that are
    beyond are enough for an alarm; a step that is beyond in half of its checks raises one after 6 on average.

    Source: E. S. Page, Continuous inspection schemes, Biometrika 41, 1954; G. Lorden, Procedures for reacting to a
    change in distribution, Annals of Mathematical Statistics 42, 1971.
    """

    __slots__ = ("checks", "total")

    def __init__(self) -> None:
        self.total = 0.0
        """The sum."""
        self.checks = 0

    def add(self, *, is_beyond: bool) -> bool:
        """Take one check; whether there is an alarm."""
        self.checks += 1
        self.total = max(0.0, self.total + (_BEYOND if is_beyond else _WITHIN))
        return self.total >= _ALARM
