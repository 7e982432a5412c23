"""What was made of the constants of a model, found again for the same constants in other sizes."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

from nnadapter.ir.operand import Array
from nnadapter.process.cache import Cache

_KEPT = 64
"""Sets of constants; the one that was used longest ago goes."""
_References = tuple[weakref.ref[Array], ...]


class BoundConstants:
    """Arrays by the arrays that they were made of, which are known by identity; safe to use from many threads.

    It keeps nothing alive: what is made of constants is held by the programs that use it.
    """

    def __init__(self) -> None:
        self._made: Cache[tuple[int, ...], tuple[_References, _References]] = Cache("fake_npu: constants", _KEPT)

    def keep(self, constant_arrays: Sequence[Array], made: Sequence[Array]) -> None:
        """Note what was made of `constant_arrays`."""
        key = tuple(map(id, constant_arrays))
        self._made.drop(key)  # what stood there was made of arrays that are gone
        self._made.keep(key, (tuple(map(weakref.ref, constant_arrays)), tuple(map(weakref.ref, made))))

    def look_up(self, constant_arrays: Sequence[Array]) -> Sequence[Array] | None:
        """What was made of `constant_arrays`; None if that is not known, or has gone meanwhile."""
        known = self._made.get(tuple(map(id, constant_arrays)))
        if known is None:
            return None
        sources, results = known
        if any(source() is not array for source, array in zip(sources, constant_arrays, strict=True)):
            return None
        made = [array for result in results if (array := result()) is not None]
        return made if len(made) == len(results) else None
