"""What to say to somebody who wrote a name wrong."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def close_names(name: object, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: the known ones that are close to it, or all of them."""
    known = sorted(known)
    close = get_close_matches(str(name).upper(), [each.upper() for each in known], n=3, cutoff=0.6)
    by_upper = {each.upper(): each for each in known}
    if close:
        return f"did you mean {' or '.join(repr(by_upper[each]) for each in close)}?"
    return f"known: {', '.join(known) or 'none'}"
