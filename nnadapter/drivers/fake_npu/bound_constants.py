"""What was made of the constants of a model, found again for the same constants in other sizes."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock

from nnadapter.ir.operand import Array

_KEPT = 64
"""Sets of constants; the one that was used longest ago goes."""
_References = tuple[weakref.ref[Array], ...]


class BoundConstants:
    """Arrays by the arrays that they were made of, which are known by identity; safe to use from many threads.

    It keeps nothing alive: what is made of constants is held by the programs that use it.
    """

    def __init__(self) -> None:
        self._found: OrderedDict[tuple[int, ...], tuple[_References, _References]] = OrderedDict()
        self._lock = Lock()

    def keep(self, given: Sequence[Array], made: Sequence[Array]) -> None:
        """Note what was made of `given`."""
        with self._lock:
            self._found[tuple(map(id, given))] = tuple(map(weakref.ref, given)), tuple(map(weakref.ref, made))
            while len(self._found) > _KEPT:
                self._found.popitem(last=False)

    def look_up(self, given: Sequence[Array]) -> Sequence[Array] | None:
        """What was made of `given`; None if that is not known, or has gone meanwhile."""
        key = tuple(map(id, given))
        with self._lock:
            known = self._found.get(key)
            if known is not None:
                self._found.move_to_end(key)
        if known is None:
            return None
        sources, results = known
        if any(source() is not array for source, array in zip(sources, given, strict=True)):
            return None
        made = [array for result in results if (array := result()) is not None]
        return made if len(made) == len(results) else None
