"""What to say to somebody who wrote a name wrong."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def close_names(name: object, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: the known ones that are close to it, or all of them."""
    known = sorted(known)
    return near_names(name, known) or f"known: {', '.join(known) or 'none'}"


def near_names(name: object, known: Iterable[str], before: str = "") -> str:
    """Return a question for the known names that are close to an unknown one, behind `before`; empty if none is."""
    by_upper = {each.upper(): each for each in known}
    close = get_close_matches(str(name).upper(), by_upper, n=3, cutoff=0.6)
    return f"{before}did you mean {' or '.join(repr(by_upper[each]) for each in close)}?" if close else ""
