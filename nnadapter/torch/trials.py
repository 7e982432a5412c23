"""What of a session's values gains nothing by lying on its device: left out for a while, and then tried again.

What is seen in one call may be of that moment: a device that somebody else had filled. So nothing is left out for ever.
It is tried again two calls later, and where that was in vain after twice as many, up to `_MOST`.
"""

from __future__ import annotations

from collections.abc import Collection

_FIRST, _MOST = 2, 1024


class Trials:
    """What is tried. Safe to use from several threads: who is late tries once more."""

    def __init__(self, places: Collection[int]) -> None:
        """Take the places of results that may stay on the device."""
        self._places = frozenset(places)
        self.staying = self._places
        """Places of results that stay."""
        self.passing: frozenset[str] = frozenset()
        """Inputs that pass, as no step takes them from the device."""
        self.is_crowded = False
        """The device had no room when it was last tried."""
        self._calls = 0  # until all is tried again; 0 while nothing is left out
        self._next = _FIRST

    def begin(self) -> None:
        """Begin a call."""
        self._calls = max(self._calls - 1, 0)
        if not self._calls:
            self.staying, self.passing, self.is_crowded = self._places, frozenset(), False

    def leave_out(self, places: Collection[int], names: Collection[str]) -> None:
        """End a call, in which these results and inputs gained nothing."""
        self.staying, self.passing = self.staying.difference(places), self.passing.union(names)
        if places or names:
            self._wait()
        elif not self._calls:
            self._next = _FIRST

    def crowd(self) -> None:
        """Let no result stay, as the device has no room."""
        self.staying, self.is_crowded = frozenset(), True
        self._wait()

    def never(self, place: int) -> None:
        """Let a result stay no more, and do not try it again."""
        self._places, self.staying = self._places - {place}, self.staying - {place}

    def _wait(self) -> None:
        if not self._calls:
            self._calls, self._next = self._next, min(2 * self._next, _MOST)
