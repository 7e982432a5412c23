"""What is computed from constants, computed once: a model is lowered again for every new shape, its weights are not.

Results are kept by the contents of the arrays they were made from, as long as an array of these contents lives: plans
share them, and so do sessions that hold the same weights. So what depends on a model's input shapes does not belong
here: it would pile up. Only arrays that cannot be written to are looked up, since their contents stay what they were.

A digest of a whole model's weights would cost more than most of what is saved. A few elements tell arrays apart; where
they agree, all bytes are compared.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import numpy as np

from nnadapter.ir.operand import Array

Result = TypeVar("Result")

_SAMPLE = 64
"""About how many elements tell contents apart."""


class _Contents:
    """What arrays of equal type, dimensions and bytes have in common; lives as long as one of them."""

    def __init__(self) -> None:
        self.arrays: weakref.WeakValueDictionary[int, Array] = weakref.WeakValueDictionary()


_contents: dict[int, _Contents] = {}
"""By the identity of an array that lives."""
_by_sample: weakref.WeakValueDictionary[Hashable, _Contents] = weakref.WeakValueDictionary()
_results: dict[Hashable, Any] = {}


def derived(function: Callable[..., Result], *arrays: Array | None, **parameters: Hashable) -> Result:
    """Return `function(*arrays, **parameters)`, computed now if it was not before.

    Args:
        function: pure; it must not keep or change its arguments.
        arrays: constants; None stands for itself.
        parameters: what else the result depends on.
    """
    given = [array for array in arrays if array is not None]
    if any(array.flags.writeable or array.dtype.hasobject for array in given):
        return function(*arrays, **parameters)
    all_contents = [None if array is None else _contents_of(array) for array in arrays]
    key = (function, tuple(map(id, all_contents)), tuple(sorted(parameters.items())))
    if key not in _results:
        result: Result = _sealed(function(*arrays, **parameters), given)
        _results[key] = result
        for contents in all_contents:
            if contents is not None:
                weakref.finalize(contents, _results.pop, key, None)
        return result
    kept: Result = _results[key]
    return kept


def _contents_of(array: Array) -> _Contents:
    """The contents that the array shares with those equal to it."""
    identity = id(array)
    if identity in _contents:
        return _contents[identity]
    sample = array.dtype, array.shape, array.flat[:: max(1, array.size // _SAMPLE)].tobytes()
    contents = _by_sample.setdefault(sample, _Contents())
    if any(not _equal(array, other) for other in [*contents.arrays.values()][:1]):
        contents = _Contents()  # the same sample, which is too seldom to look further
    contents.arrays[identity] = array
    _contents[identity] = contents
    weakref.finalize(array, _contents.pop, identity, None)
    return contents


def _equal(array: Array, other: Array) -> bool:
    """Whether all bytes are equal: NaN equals itself, and -0.0 is not 0.0."""
    first, second = (np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in (array, other))
    return np.array_equal(first, second)


def _sealed(result: Any, arrays: list[Array]) -> Any:
    """The result with read-only arrays, since they are shared, and no views, which would keep `arrays` alive."""
    if isinstance(result, tuple):
        return tuple(_sealed(each, arrays) for each in result)
    if result is None:
        return None
    sealed = result.copy() if any(np.may_share_memory(result, array) for array in arrays) else result
    sealed.flags.writeable = False
    return sealed
