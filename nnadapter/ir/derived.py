"""What is computed from constants, computed once: a model is lowered again for every new shape, its weights are not.

Results are known by the contents of the arrays that they were made from, and kept as long as arrays of these contents
live: plans share them, and so do sessions that hold equal weights. So what depends on a model's input shapes does not
belong here: it would pile up. Only arrays that cannot be written to are looked up, since their contents stay what they
were.

Contents are known by a digest, taken once per array. A result that is handed in again is known by what it was made
of; so nothing here keeps itself alive, whatever a function returns.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Hashable
from functools import partial
from threading import Lock
from typing import Any, TypeVar

import numpy as np

from nnadapter.ir.digests import digest_of
from nnadapter.ir.operand import Array, dtype_name
from nnadapter.ir.traced_arrays import trace_of

Result = TypeVar("Result")
Contents = Hashable
"""What equal arrays have in common: type, dimensions and digest; or how an array was made."""


def derived(function: Callable[..., Result], *arrays: Array | None, **parameters: Hashable) -> Result:
    """Return `function(*arrays, **parameters)`, computed now if it was not before. Safe to use from many threads.

    Args:
        function: pure; it must not keep or change its arguments.
        arrays: constants, traced ones too (`ir.traced_arrays`); None stands for itself.
        parameters: what else the result depends on.
    """
    trace = trace_of(arrays)
    if trace is not None:
        result: Result = trace.apply(partial(derived, function), arrays, parameters)
        return result
    given = [array for array in arrays if array is not None]
    if any(array.flags.writeable or array.dtype.hasobject for array in given):
        return function(*arrays, **parameters)
    contents = tuple(None if array is None else _results.contents(array) for array in arrays)
    key = (function, contents, tuple(sorted(parameters.items())))
    found = _results.get(key)
    if found is None:
        found = _results.keep(key, _sealed(function(*arrays, **parameters), given))
    kept: Result = found[0]
    return kept


class _Holder(weakref.ref[Array]):
    """An array that lives, and its contents."""

    contents: Contents
    identity: int


class _Results:
    """Results by key, and the arrays that keep them.

    Arrays can go at any time, in any thread, while the lock is held too: those that went are queued, and seen to by
    whoever has the lock next.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._gone: deque[_Holder] = deque()
        self._holders: dict[int, _Holder] = {}
        self._living: dict[Contents, int] = {}
        self._keys: dict[Contents, set[Hashable]] = {}
        self._results: dict[Hashable, tuple[Any]] = {}

    def contents(self, array: Array) -> Contents:
        """What the array holds, worked out if it was not before."""
        holder = self._holders.get(id(array))
        if holder is not None and holder() is array:
            return holder.contents
        return self._register(array, (dtype_name(array.dtype), array.shape, digest_of(array)))

    def get(self, key: Hashable) -> tuple[Any] | None:
        """The result, in a tuple."""
        return self._results.get(key)

    def keep(self, key: Any, result: Any) -> tuple[Any]:
        """Keep a result as long as all contents of the key live; the one that is there, if another thread was first."""
        with self._lock:
            found = self._results.setdefault(key, (result,))
            for contents in self._parts(key):
                self._keys.setdefault(contents, set()).add(key)
        for place, array in enumerate(found[0] if isinstance(found[0], tuple) else found):
            if array is not None:
                self._register(array, (key, place))
        return found

    def _register(self, array: Array, contents: Contents) -> Contents:
        holder = _Holder(array, self._let_go)
        holder.contents, holder.identity = contents, id(array)
        with self._lock:
            known = self._holders.get(id(array))
            if known is not None and known() is array:
                return known.contents
            self._holders[id(array)] = holder
            self._living[contents] = self._living.get(contents, 0) + 1
        self._see_to_gone()
        return contents

    def _let_go(self, holder: Any) -> None:
        # Called while the interpreter ends too, when this module's names are gone: only `self` is used from here on.
        self._gone.append(holder)
        self._see_to_gone()

    def _see_to_gone(self) -> None:
        """Forget what nothing that lives was made of. What is forgotten may let more go, which comes back here."""
        while self._gone and self._lock.acquire(blocking=False):
            dropped: list[Any] = []
            try:
                while self._gone:
                    self._forget(self._gone.popleft(), dropped)
            finally:
                self._lock.release()
            del dropped

    def _forget(self, holder: _Holder, dropped: list[Any]) -> None:
        if self._holders.get(holder.identity) is holder:
            del self._holders[holder.identity]
        self._living[holder.contents] -= 1
        if self._living[holder.contents]:
            return
        del self._living[holder.contents]
        for key in self._keys.pop(holder.contents, ()):
            dropped.append(self._results.pop(key, None))
            for contents in self._parts(key):
                self._keys.get(contents, set()).discard(key)

    @staticmethod
    def _parts(key: Any) -> set[Contents]:
        """The contents that a result was made of."""
        return {contents for contents in key[1] if contents is not None}


_results = _Results()


def _sealed(result: Any, arrays: list[Array]) -> Any:
    """The result with read-only arrays, since they are shared, and no views, which would keep `arrays` alive."""
    if isinstance(result, tuple):
        return tuple(_sealed(each, arrays) for each in result)
    if result is None:
        return None
    result = np.asarray(result)  # numpy makes scalars of arrays without dimensions
    sealed = result.copy() if any(np.may_share_memory(result, array) for array in arrays) else result
    sealed.flags.writeable = False
    return sealed
