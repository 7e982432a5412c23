"""What is computed from constants, computed once: a model is lowered again for every new shape, its weights are not.

Results are known by the contents of the arrays that they were made from, and kept as long as arrays of these contents
live: plans share them, and so do sessions that hold equal weights. So what depends on a model's input shapes does not
belong here: it would pile up. Only arrays that cannot be written to are looked up, since their contents stay what they
were.

Contents are known by a digest, taken once per array, or by what was said of them (`know_contents`). A result that is
handed in again is known by what it was made of; so nothing here keeps itself alive, whatever a function returns.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterable
from functools import partial
from typing import Any, TypeVar

import numpy as np

from nnadapter.ir.deferred import deferral_of
from nnadapter.ir.digests import digest_of
from nnadapter.ir.operand import Array, dtype_name
from nnadapter.ir.traced_arrays import trace_of
from nnadapter.ir.tracing import plain, told_apart

Result = TypeVar("Result")


def derived(function: Callable[..., Result], *arrays: Array | None, **parameters: Hashable) -> Result:
    """Return `function(*arrays, **parameters)`, computed now if it was not before. Safe to use from many threads.

    Args:
        function: pure; it must not keep or change its arguments.
        arrays: constants, traced ones too (`ir.traced_arrays`); None stands for itself.
        parameters: what else the result depends on; a size among them that is traced is decided on.
    """
    parameters = {name: plain(value) for name, value in parameters.items()}
    trace = trace_of(arrays)
    if trace is not None:
        result: Result = trace.apply(partial(derived, function), arrays, parameters, deferral_of(function))
        return result
    present_arrays = [array for array in arrays if array is not None]
    if not present_arrays or any(array.flags.writeable or array.dtype.hasobject for array in present_arrays):
        return function(*arrays, **parameters)
    contents = [None if array is None else _contents(array) for array in arrays]
    exact = tuple((name, told_apart(parameters[name])) for name in sorted(parameters))
    key = (function, tuple(content and content.key for content in contents), exact)
    cache_entry = _results.get(key)
    if cache_entry is not None:
        cached_result: Result = cache_entry[0]
        return cached_result
    sealed_result: Result = _keep(key, _sealed(function(*arrays, **parameters), present_arrays), filter(None, contents))
    for content in contents:
        if content is not None and content.release is not None:
            content.release()
    return sealed_result


def know_contents(array: Array, key: Hashable, release: Callable[[], object] | None = None) -> None:
    """Say what an array holds, so that no digest need be taken: it is part of a file, say, which is read-only.

    Args:
        array: not to be written to.
        key: arrays with this key have equal contents.
        release: called when something was derived from it: what was made is mostly read in its place from then on.
            It must not keep the array.
    """
    _register(array, key).release = release


class _Contents:
    """What equal arrays hold, for as long as one of them lives."""

    __slots__ = ("__weakref__", "key", "release")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.release: Callable[[], object] | None = None


# Arrays go at any time, in any thread: while a lock is held, or between the steps of anything here. What forgets them
# is a `pop` of a dictionary, called by C with C's own hashes: it needs no lock, and no interrupt comes into it.
_holders: dict[int, tuple[weakref.ref[Array], _Contents]] = {}
"""What arrays hold, by their identity."""
_living: dict[Hashable, weakref.ref[_Contents]] = {}
_results: dict[Hashable, tuple[Any, tuple[weakref.ref[_Contents], ...]]] = {}
"""Results by key, each as long as all the contents that it was made of live."""


def _contents(array: Array) -> _Contents:
    """What the array holds, worked out if it was not before."""
    holder = _holders.get(id(array))
    if holder is not None and holder[0]() is array:
        return holder[1]
    return _register(array, (dtype_name(array.dtype), array.shape, digest_of(array)))


def _register(array: Array, key: Hashable) -> _Contents:
    """Note what the array holds; what was noted before stays."""
    reference = _living.get(key)
    contents = None if reference is None else reference()
    if contents is None:
        contents = _Contents(key)
        _living[key] = weakref.ref(contents, partial(_living.pop, key))
    holder = weakref.ref(array, partial(_holders.pop, id(array)))
    return _holders.setdefault(id(array), (holder, contents))[1]


def _keep(key: Hashable, result: Any, parts: Iterable[_Contents]) -> Any:
    """Keep a result as long as all its parts live; the one that is there, if another thread was first."""
    for place, array in enumerate(result if isinstance(result, tuple) else (result,)):
        if array is not None:
            _register(array, (key, place))
    ends = tuple(weakref.ref(part, partial(_results.pop, key)) for part in parts)
    return _results.setdefault(key, (result, ends))[0]


def _sealed(result: Any, arrays: list[Array]) -> Any:
    """The result with read-only arrays, since they are shared, and no views, which would keep `arrays` alive."""
    if isinstance(result, tuple):
        return tuple(_sealed(element, arrays) for element in result)
    if result is None:
        return None
    result = np.asarray(result)  # numpy makes scalars of arrays without dimensions
    sealed = result.copy() if any(np.may_share_memory(result, array) for array in arrays) else result
    sealed.flags.writeable = False
    return sealed
