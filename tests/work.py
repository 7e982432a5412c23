"""Work counted instead of timed: a busy machine makes it no more."""

from __future__ import annotations

import sys
from collections import Counter


def calls(function) -> Counter[str]:
    """How often functions of each name, Python's and C's, are called while `function` runs in this thread."""
    counts: Counter[str] = Counter()

    def count(frame, event, argument):
        if event == "call":
            counts[frame.f_code.co_name] += 1
        elif event == "c_call":
            counts[argument.__name__] += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(before)
    return counts


def growth(work, size, factor=8) -> float:
    """How many times the calls of `work(size)` are needed for `factor` times the size; `work` gives what to call."""
    small, large = (calls(work(each)).total() for each in (size, factor * size))
    return large / small
