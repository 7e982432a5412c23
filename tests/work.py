"""Work measured in function calls, which other load on the machine does not change."""

from __future__ import annotations

import sys
from collections import Counter


def calls(function) -> Counter[str]:
    """Return call counts by function name, Python and C, while `function` runs in this thread."""
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
    """Return the factor by which calls grow with `factor` times the size; `work(size)` returns the callable."""
    small, large = (calls(work(each)).total() for each in (size, factor * size))
    return large / small
