"""Arrays derived from constants: memoized results, and traces that replay with other constants.

Traces of arrays do for contents of constants what `ir.symbolic_numbers` does for sizes, so that a program compiled for
one set of weights serves others. A trace runs a computation once with traced arrays in place of the constants. It
records every step, and every answer that the computation depended on. `ArrayTrace.replay` repeats the steps with other
constants and fails if an answer differs.

A traced array is deliberately not a numpy array: reading its contents guards on them. Computations that should hold
for other contents use `applied`, `decided`, `group_key` or `derived`, which also accept plain arrays.

`derived` memoizes results, since a model is lowered again for every new shape while its weights stay. Entries live as
long as arrays with the same contents, across plans and sessions. Do not pass anything that depends on input shapes:
entries would pile up. Only read-only arrays are looked up.

Contents are identified by a digest, computed once per array, or by `know_contents`. A result that becomes an argument
is identified by its own key, so no entry keeps itself alive.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any, TypeVar, cast

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from nnadapter.ir.deferred_arrays import Deferral, DeferredArray, contents_of, deferral_of
from nnadapter.ir.operand import Array, digest_of, dtype_name
from nnadapter.ir.symbolic_numbers import guard_value, identity_key

_Answer = TypeVar("_Answer")
_Form = Hashable
"""Form of a result: data type and dimensions, an empty tuple for None, or a tuple of forms."""


@dataclass(frozen=True, slots=True, eq=False)
class _TracedStep:
    """One call of a function. Its results are appended to the trace's arrays."""

    function: Callable[..., Any]
    arrays: tuple[int | Array | None, ...]
    """Indices of traced arrays, and plain arrays."""
    parameters: dict[str, Any]
    form: _Form
    """Expected form of the result; None if the step is a question."""
    deferral: Deferral | None = None
    """Set if the call is deferred until the contents are read."""
    answer: Hashable = None
    """Expected answer to a question, which produces no array."""


@dataclass(slots=True, eq=False)
class _Comparison:
    """Grouping of arrays by a key."""

    key: Callable[[Array], Hashable]
    arrays: list[int] = field(default_factory=list)
    firsts: list[int] = field(default_factory=list)
    """First array with the same key, for each array."""
    first_array_by_key: dict[Hashable, int] = field(default_factory=dict)


class ArrayTrace:
    """Steps and answers of one computation over constants.

    Arrays are indexed: variables first, then in order of creation.
    """

    def __init__(self, arrays: Sequence[Array]) -> None:
        self._values: list[Any] = list(arrays)
        self._variables = [_form(array) for array in arrays]
        self._steps: list[_TracedStep] = []
        self._looked: dict[int, str] = {}
        self._comparisons: dict[Callable[[Array], Hashable], _Comparison] = {}

    def variables(self) -> list[TracedArray]:
        """Return the constants as traced arrays, in order."""
        return [self._traced(number) for number in range(len(self._variables))]

    def finish(self) -> list[Any]:
        """Release the contents and return them by index, some deferred (`ir.deferred_arrays`).

        Only replays are possible afterwards.
        """
        values, self._values = self._values, []
        for comparison in self._comparisons.values():
            comparison.first_array_by_key.clear()
        return values

    def replay(self, arrays: Sequence[Array]) -> list[Any] | None:
        """Return every array by index, computed from other constants; None if an answer would differ."""
        if [_form(array) for array in arrays] != self._variables:
            return None
        values: list[Any] = list(arrays)
        for step in self._steps:
            arguments = [values[argument] if isinstance(argument, int) else argument for argument in step.arrays]
            result = _apply(step.function, arguments, step.parameters, step.deferral)
            if step.form is None:
                if result != step.answer:
                    return None
            elif _form(result) != step.form:
                return None
            else:
                values.extend(result if isinstance(result, tuple) else (result,))
        if any(digest_of(contents_of(values[number])) != digest for number, digest in self._looked.items()):
            return None
        return values if all(_agrees(comparison, values) for comparison in self._comparisons.values()) else None

    def apply(
        self,
        function: Callable[..., Any],
        arrays: Sequence[Any],
        parameters: dict[str, Any],
        deferral: Deferral | None = None,
    ) -> Any:
        """Return the result of a function of arrays, at least one of them traced: an array, None, or a tuple of these.

        A deferred call happens when the contents are read.
        """
        result = _apply(function, list(map(self._value, arrays)), parameters, deferral)
        form = _form(result)
        self._steps.append(_TracedStep(function, tuple(map(_array_number, arrays)), parameters, form, deferral))
        parts = result if isinstance(result, tuple) else (result,)
        first = len(self._values)
        self._values.extend(parts)
        traced = [None if part is None else self._traced(first + at) for at, part in enumerate(parts)]
        return tuple(traced) if isinstance(result, tuple) else traced[0]

    def decide(self, function: Callable[..., _Answer], arrays: Sequence[Any], parameters: dict[str, Any]) -> _Answer:
        """Return the answer of a function about arrays, and guard on it."""
        answer = function(*map(self._contents, arrays), **parameters)
        self._steps.append(
            _TracedStep(function, tuple(map(_array_number, arrays)), parameters, None, answer=cast("Hashable", answer))
        )
        return answer

    def read_contents(self, array: TracedArray) -> Array:
        """Return the contents, and guard on them."""
        contents: Array = contents_of(self._values[array.number])
        if array.number not in self._looked:
            self._looked[array.number] = digest_of(contents)
        return contents

    def group_key(self, array: TracedArray, key: Callable[[Array], Hashable]) -> Hashable:
        """Return a key that is equal for arrays of this trace with equal `key`; guard on the grouping only."""
        comparison = self._comparisons.setdefault(key, _Comparison(key))
        first = comparison.first_array_by_key.setdefault(key(contents_of(self._values[array.number])), array.number)
        comparison.arrays.append(array.number)
        comparison.firsts.append(first)
        return ("traced", first)

    def _traced(self, number: int) -> TracedArray:
        value = self._values[number]
        return TracedArray(self, number, value.dtype, value.shape)

    def _value(self, array: Any) -> Any:
        return self._values[array.number] if isinstance(array, TracedArray) else array

    def _contents(self, array: Any) -> Any:
        return contents_of(self._value(array))


def _reading(convert: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: TracedArray, *arguments: Any) -> Any:
        return convert(self.trace.read_contents(self), *arguments)

    return method


class TracedArray(NDArrayOperatorsMixin):
    """Array of a trace. Do not mix traces."""

    __slots__ = ("dtype", "number", "shape", "trace")

    def __init__(self, trace: ArrayTrace, number: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self.trace = trace
        self.number = number
        self.dtype = dtype
        self.shape = shape

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * int(self.dtype.itemsize)

    __getitem__, __contains__ = _reading(operator.getitem), _reading(operator.contains)
    __len__, __iter__ = _reading(len), _reading(iter)
    __bool__, __int__, __float__, __index__ = _reading(bool), _reading(int), _reading(float), _reading(operator.index)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Return the contents to numpy, guarding on them."""
        return np.asarray(self.trace.read_contents(self), dtype)

    def __array_ufunc__(self, function: np.ufunc, method: str, *arrays: Any, **arguments: Any) -> Any:
        """Compute with the contents, guarding on them."""
        plain = [self.trace.read_contents(array) if isinstance(array, TracedArray) else array for array in arrays]
        return getattr(function, method)(*plain, **arguments)

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the contents, guarding on them."""
        if name.startswith("__"):  # numpy probes dunder names to classify the object
            raise AttributeError(name)
        return getattr(self.trace.read_contents(self), name)


def applied(function: Callable[..., Any], *arrays: Any, **parameters: Any) -> Any:
    """Apply a function to arrays, as one step of the trace if one of them is traced.

    Args:
        function: pure; it returns an array, None, or a tuple of these.
        arrays: plain or traced; None is passed on.
        parameters: other arguments; a symbolic size among them is guarded.
    """
    parameters = {name: guard_value(value) for name, value in parameters.items()}
    trace = trace_of(arrays)
    if trace is None:
        return function(*arrays, **parameters)
    return trace.apply(function, arrays, parameters, deferral_of(function))


def decided(function: Callable[..., _Answer], *arrays: Any, **parameters: Any) -> _Answer:
    """Return a function's answer about arrays; guard on it if one of them is traced.

    Args:
        function: pure; its answer must be comparable.
        arrays: plain or traced; None is passed on.
        parameters: other arguments; a symbolic size among them is guarded.
    """
    parameters = {name: guard_value(value) for name, value in parameters.items()}
    trace = trace_of(arrays)
    return function(*arrays, **parameters) if trace is None else trace.decide(function, arrays, parameters)


def group_key(key: Callable[[Array], Hashable], array: Any) -> Hashable:
    """Return a lookup key that is equal for arrays with equal `key`.

    A trace records only the grouping, not the key. Traced and plain arrays never share a key.

    Args:
        key: pure; always the same object.
        array: plain or traced.
    """
    return array.trace.group_key(array, key) if isinstance(array, TracedArray) else key(array)


def trace_of(arrays: Sequence[Any]) -> ArrayTrace | None:
    """Return the trace of the first traced array, or None."""
    return next((array.trace for array in arrays if isinstance(array, TracedArray)), None)


def _apply(
    function: Callable[..., Any], arrays: Sequence[Any], parameters: dict[str, Any], deferral: Deferral | None
) -> Any:
    if deferral is not None and deferral.applies(arrays):
        return DeferredArray(function, arrays, parameters, deferral.form(*arrays, **parameters))
    return function(*map(contents_of, arrays), **parameters)


def _array_number(array: Any) -> int | Array | None:
    return array.number if isinstance(array, TracedArray) else array


def _form(result: Any) -> _Form:
    """Return the form; an empty tuple for None, as None marks a question."""
    if isinstance(result, tuple):
        return tuple(map(_form, result))
    return () if result is None else (dtype_name(result.dtype), result.shape)


def _agrees(comparison: _Comparison, values: Sequence[Any]) -> bool:
    numbers_by_key: dict[Hashable, int] = {}
    return all(
        numbers_by_key.setdefault(comparison.key(contents_of(values[number])), number) == first
        for number, first in zip(comparison.arrays, comparison.firsts, strict=True)
    )


Result = TypeVar("Result")


def derived(function: Callable[..., Result], *arrays: Array | None, **parameters: Hashable) -> Result:
    """Return `function(*arrays, **parameters)`, memoized by contents. Thread-safe.

    Args:
        function: pure; it must not keep or change its arguments.
        arrays: constants, plain or traced; None is passed on.
        parameters: other arguments; a symbolic size among them is guarded.
    """
    parameters = {name: guard_value(value) for name, value in parameters.items()}
    trace = trace_of(arrays)
    if trace is not None:
        result: Result = trace.apply(partial(derived, function), arrays, parameters, deferral_of(function))
        return result
    present_arrays = [array for array in arrays if array is not None]
    if not present_arrays or any(array.flags.writeable or array.dtype.hasobject for array in present_arrays):
        return function(*arrays, **parameters)
    contents = [None if array is None else _contents(array) for array in arrays]
    exact = tuple((name, identity_key(parameters[name])) for name in sorted(parameters))
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
    """Declare the identity of a read-only array's contents, such as a place in a file, to avoid a digest.

    Args:
        array: read-only.
        key: arrays with equal keys have equal contents.
        release: called after a derivation, as readers mostly use the result from then on. It must not reference the
            array.
    """
    _register(array, key).release = release


class _Contents:
    """Identity of contents, alive as long as an array with them."""

    __slots__ = ("__weakref__", "key", "release")

    def __init__(self, key: Hashable) -> None:
        self.key = key
        self.release: Callable[[], object] | None = None


# Arrays may be freed at any time, in any thread, even while a lock is held. Entries are removed by `dict.pop`, called
# from C with hashes computed in C: it takes no lock and cannot be interrupted.
_holders: dict[int, tuple[weakref.ref[Array], _Contents]] = {}
"""id of an array -> its contents."""
_living: dict[Hashable, weakref.ref[_Contents]] = {}
_results: dict[Hashable, tuple[Any, tuple[weakref.ref[_Contents], ...]]] = {}
"""Results by key, each alive as long as all contents that it was computed from."""


def _contents(array: Array) -> _Contents:
    """Return the identity of the array's contents, computing a digest if unknown."""
    holder = _holders.get(id(array))
    if holder is not None and holder[0]() is array:
        return holder[1]
    return _register(array, (dtype_name(array.dtype), array.shape, digest_of(array)))


def _register(array: Array, key: Hashable) -> _Contents:
    """Record the array's contents; an earlier record wins."""
    reference = _living.get(key)
    contents = None if reference is None else reference()
    if contents is None:
        contents = _Contents(key)
        _living[key] = weakref.ref(contents, partial(_living.pop, key))
    holder = weakref.ref(array, partial(_holders.pop, id(array)))
    return _holders.setdefault(id(array), (holder, contents))[1]


def _keep(key: Hashable, result: Any, parts: Iterable[_Contents]) -> Any:
    """Store a result as long as all its sources live. If another thread was first, return its result."""
    for place, array in enumerate(result if isinstance(result, tuple) else (result,)):
        if array is not None:
            _register(array, (key, place))
    ends = tuple(weakref.ref(part, partial(_results.pop, key)) for part in parts)
    return _results.setdefault(key, (result, ends))[0]


def _sealed(result: Any, arrays: list[Array]) -> Any:
    """Return the result as read-only arrays, since they are shared, and copy views of `arrays`, to let those go."""
    if isinstance(result, tuple):
        return tuple(_sealed(element, arrays) for element in result)
    if result is None:
        return None
    result = np.asarray(result)  # numpy returns scalars instead of arrays of rank 0
    sealed = result.copy() if any(np.may_share_memory(result, array) for array in arrays) else result
    sealed.flags.writeable = False
    return sealed
