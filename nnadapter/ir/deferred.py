"""Arrays that are computed when somebody asks for them: what is only counted, for a verdict or a report, is not made.

A function that is `deferrable` says what form its result has by what forms its arguments have. A trace of arrays
(`ir.traced_arrays`) then notes the call and makes nothing. A driver asks for contents when it compiles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from nnadapter.ir.operand import Array, freeze

ArrayForm = tuple[np.dtype[Any], tuple[int, ...]]
"""Data type and dimensions."""
FormRule = Callable[..., ArrayForm]
"""Arrays, of which only forms are looked at, and parameters -> the form of the result."""
_Function = TypeVar("_Function", bound=Callable[..., Array])
_deferrals: dict[Callable[..., Any], Deferral] = {}


class Deferral(NamedTuple):
    """How calls of a function are deferred."""

    form: FormRule
    follows: bool
    """Only where an argument is deferred: the function does nothing, mostly, with one that is there."""

    def holds(self, arrays: Sequence[Any]) -> bool:
        """Whether the call with these arguments is deferred."""
        return not self.follows or any(isinstance(array, DeferredArray) for array in arrays)


class DeferredArray:
    """What a function makes of arrays, not computed yet; it keeps nothing that it computes."""

    __slots__ = ("__weakref__", "_arrays", "_function", "_parameters", "dtype", "shape")

    def __init__(
        self, function: Callable[..., Array], arrays: Sequence[Any], parameters: Mapping[str, Any], form: ArrayForm
    ) -> None:
        self._function, self._arrays, self._parameters = function, tuple(arrays), parameters
        self.dtype, self.shape = form

    @property
    def nbytes(self) -> int:
        """Bytes of the contents."""
        return int(np.prod(self.shape, dtype=np.int64)) * int(self.dtype.itemsize)

    def contents(self) -> Array:
        """The array, computed now."""
        return self._function(*map(contents_of, self._arrays), **self._parameters)


def contents_of(array: Any) -> Any:
    """An array that is there: computed now, if it was deferred."""
    return array.contents() if isinstance(array, DeferredArray) else array


def deferrable(form: FormRule, *, follows: bool = False) -> Callable[[_Function], _Function]:
    """Return a decorator for a pure function that may be deferred, see `Deferral`."""

    def note(function: _Function) -> _Function:
        _deferrals[function] = Deferral(form, follows)
        return function

    return note


def deferral_of(function: Callable[..., Any]) -> Deferral | None:
    """How calls of a function are deferred; None if they are not."""
    return _deferrals.get(function)


def same_form(array: Array) -> ArrayForm:
    """The form of an array that is only laid out anew."""
    return array.dtype.newbyteorder("="), array.shape


deferrable(same_form, follows=True)(freeze)
